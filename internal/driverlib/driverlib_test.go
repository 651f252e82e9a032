// SPDX-License-Identifier: Apache-2.0

package driverlib

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// write makes the files of a driver root, by their names in it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return root
}

// library is a library of that class that has nothing in it.
func library(t *testing.T, class elf.Class) string {
	t.Helper()
	var content bytes.Buffer
	ident := [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(class), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	var header any = elf.Header64{Ident: ident, Type: uint16(elf.ET_DYN), Version: uint32(elf.EV_CURRENT)}
	if class == elf.ELFCLASS32 {
		header = elf.Header32{Ident: ident, Type: uint16(elf.ET_DYN), Version: uint32(elf.EV_CURRENT)}
	}
	expect.NoError(t, binary.Write(&content, binary.LittleEndian, header))
	return content.String()
}

// Absolute links are the node's: they begin at its root directory, and none leads out of it.
func TestResolve(t *testing.T) {
	root := write(t, map[string]string{"nix/store/a/lib/x": ""})
	for link, target := range map[string]string{
		"driver": "/nix/store/a", "up": "../../../../nix/store", "twice": "/driver", "circle": "circle",
	} {
		expect.NoError(t, os.Symlink(target, filepath.Join(root, link)))
	}
	for path, want := range map[string]string{
		"/driver/lib/x": "/nix/store/a/lib/x", "/up/a": "/nix/store/a", "/twice/lib": "/nix/store/a/lib",
		"/circle/x": "/circle/x", "/nothing/here": "/nothing/here",
	} {
		expect.Equal(t, filepath.Join(root, want), Resolve(root, path), "%s leads to", path)
	}
}

func TestDirs(t *testing.T) {
	nvml64, nvml32 := library(t, elf.ELFCLASS64), library(t, elf.ELFCLASS32)
	conf := map[string]string{
		"etc/ld.so.conf": "include ld.so.conf.d/*.conf /etc/more.conf\n",
		// Files may include each other.
		"etc/more.conf":                "include ld.so.conf\n/opt/more/lib # the last\n",
		"etc/ld.so.conf.d/cuda.conf":   "/usr/local/cuda/lib64\n",
		"etc/ld.so.conf.d/i386.conf":   "# of 32 bits\n/usr/lib/i386-linux-gnu\n",
		"etc/ld.so.conf.d/nvidia.conf": "/usr/local/nvidia/lib64\n",
	}
	odd, i386 := "usr/local/nvidia/lib64/"+NVML, "usr/lib/i386-linux-gnu/"+NVML
	for name, test := range map[string]struct {
		files   map[string]string
		further []string
		// first and last are the directories before and after the usual ones.
		first, last []string
	}{
		"nothing is there": {},
		"a package's":      {files: map[string]string{"usr/lib64/" + NVML: nvml64, odd: nvml64}},
		"further ones come first, whether they are there or not": {
			files: map[string]string{"usr/lib64/" + NVML: nvml64}, further: []string{"/opt/a/", "/opt/b"},
			first: []string{"/opt/a", "/opt/b"},
		},
		"where the loader is told to look": {
			files: map[string]string{odd: nvml64, i386: nvml32}, last: []string{"/usr/local/nvidia/lib64"},
		},
		"where the loader looks by itself": {
			files: map[string]string{"usr/lib/" + NVML: nvml64}, last: []string{"/usr/lib"},
		},
		"by a file that is included in one that includes it": {
			files: map[string]string{"opt/more/lib/" + NVML: nvml64}, last: []string{"/opt/more/lib"},
		},
		"what is named is enough": {
			files: map[string]string{odd: nvml64, "opt/more/lib/" + NVML: nvml64}, further: []string{"/usr/local/nvidia/lib64"},
			first: []string{"/usr/local/nvidia/lib64"},
		},
		"no library": {files: map[string]string{odd: "a text"}},
	} {
		t.Run(name, func(t *testing.T) {
			for file, content := range conf {
				if test.files == nil {
					test.files = map[string]string{}
				}
				test.files[file] = content
			}
			root := write(t, test.files)
			var want []string
			for _, dir := range slices.Concat(test.first, usual, test.last) {
				want = append(want, filepath.Join(root, dir))
			}
			expect.Equal(t, want, Dirs(root, test.further), "directories")
		})
	}
}
