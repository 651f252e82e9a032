// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// piped is how the standard input is named.
const piped = "-"

// extensions are of those files of a directory that are read, as by kubectl.
var extensions = []string{".json", ".yaml", ".yml"}

// ReadAll reads files, the manifests of directories, and the standard input, which is "-".
func (r *Reader) ReadAll(names []string, recursive bool, in io.Reader) error {
	for _, name := range names {
		if name == piped {
			if err := r.Read("standard input", in); err != nil {
				return err
			}
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("read the manifests: %w", err)
		}
		if !info.IsDir() {
			if err := r.readFile(name); err != nil {
				return err
			}
			continue
		}
		if err := r.readDirectory(name, recursive); err != nil {
			return err
		}
	}
	if len(names) > 0 && !r.objects {
		return fmt.Errorf("read the manifests: there is no object in %s", strings.Join(names, ", "))
	}
	return nil
}

func (r *Reader) readDirectory(name string, recursive bool) error {
	found := false
	err := filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fmt.Errorf("read the manifests: %w", err)
		case entry.IsDir() && path != name && !recursive:
			return filepath.SkipDir
		case entry.IsDir() || !slices.Contains(extensions, filepath.Ext(path)):
			return nil
		}
		found = true
		return r.readFile(path)
	})
	if err == nil && !found {
		err = fmt.Errorf("directory %s has no manifests: files that end in .yaml, .yml or .json; -R looks at directories "+
			"below it, too", name)
	}
	return err
}

func (r *Reader) readFile(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read the manifests: %w", err)
	}
	defer file.Close() //nolint:errcheck // It was only read.
	return r.Read(name, file)
}
