// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
)

// InstalledProgram is where Run installs a program of the image, so that the host's
// container runtime can start it as a hook; "" for "".
func InstalledProgram(source, pluginDir string) string {
	if source == "" {
		return ""
	}
	return filepath.Join(pluginDir, filepath.Base(source))
}

// IsOnHost reports whether a program is the host's, as NVIDIA's nvidia-cdi-hook: the image lacks it, and the host has
// it. It is used where it is.
func IsOnHost(source, hostRoot string) bool {
	if _, err := os.Stat(source); source == "" || !errors.Is(err, os.ErrNotExist) {
		return false
	}
	// A link may lead to what only the host sees.
	_, err := os.Lstat(filepath.Join(hostRoot, source))
	return err == nil
}

// installPrograms copies programs from the image to the plugin's directory. Those that
// are there already are left alone: the disk may be full by now.
func installPrograms(sources []string, pluginDir string) error {
	for _, source := range sources {
		if source == "" {
			continue
		}
		if err := installProgram(source, InstalledProgram(source, pluginDir)); err != nil {
			return fmt.Errorf("install a CDI hook for the container runtime: %w", err)
		}
	}
	return nil
}

func installProgram(source, target string) error {
	from, err := os.Open(source)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s does not exist: the image comes with it; where the plugin runs without the image, set the "+
			"hook's path, or an empty one to do without", source)
	}
	if err != nil {
		return err
	}
	defer from.Close()
	same, err := sameProgram(from, target)
	if err != nil || same {
		return err
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return atomicfile.Copy(target, from, 0o755)
}

// sameProgram reports whether the target is an executable file of the same content. One
// that cannot be read is not.
func sameProgram(from *os.File, target string) (bool, error) {
	to, err := os.Open(target)
	if err != nil {
		return false, nil
	}
	defer to.Close()
	source, err := from.Stat()
	if err != nil {
		return false, err
	}
	there, err := to.Stat()
	if err != nil || there.Size() != source.Size() || there.Mode() != 0o755 {
		return false, nil
	}
	return sameContent(from, to)
}

// sameContent compares piece by piece, so that starting takes no more memory than
// running.
func sameContent(a, b io.Reader) (bool, error) {
	const piece = 64 << 10
	left, right := make([]byte, piece), make([]byte, piece)
	for {
		n, err := io.ReadFull(a, left)
		m, otherErr := io.ReadFull(b, right)
		if !bytes.Equal(left[:n], right[:m]) {
			return false, nil
		}
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if ended {
			return true, nil
		}
		if err != nil || otherErr != nil {
			return false, err
		}
	}
}
