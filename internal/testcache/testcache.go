// SPDX-License-Identifier: Apache-2.0

// Package testcache is for tests that have other programs read the checkout: `go list`, `go build`, a
// compiler. `go test` answers with a test's last result until its program changes, or a file of the
// module that the test itself has opened; what other programs read on its behalf it does not see.
package testcache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Reads makes the test that runs depend on all files below these directories, and on there being no
// others: Go remembers of a directory which files it has, their sizes and their times.
func Reads(dirs ...string) error {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			return fmt.Errorf("look at the files that a test depends on: %w", err)
		}
	}
	return nil
}

// Builds makes the test that runs depend on the sources of packages, as far as they are of the module
// in this directory, and on the versions of all others.
func Builds(ctx context.Context, module string, packages ...string) error {
	list := exec.CommandContext(ctx, "go", append([]string{"list", "-deps",
		"-f", "{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}"}, packages...)...)
	list.Dir = module
	out, err := list.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		return fmt.Errorf("list what %q import in %s: %w", packages, module, err)
	}
	if _, err := os.Stat(filepath.Join(module, "go.mod")); err != nil {
		return fmt.Errorf("look at the versions that a test depends on: %w", err)
	}
	return Reads(strings.Fields(string(out))...)
}
