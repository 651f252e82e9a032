// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// The host's links lead on from its own root directory, or from that of its driver container.
func TestAbsoluteLinksOfTheHost(t *testing.T) {
	const cuda = "/libcuda.so.570.124.06"
	move := func(t *testing.T, o *BaseOptions, from, to string) {
		to = filepath.Join(o.DriverRoot, to)
		from = filepath.Join(o.DriverRoot, from)
		expect.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(from, to)))
	}
	link := func(t *testing.T, o *BaseOptions, path, target string) {
		path = filepath.Join(o.DriverRoot, path)
		expect.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)))
	}
	for name, test := range map[string]struct {
		change func(*testing.T, *BaseOptions)
		// mounts are the files, by where the container has them.
		mounts map[string]string
	}{
		"alternatives, as in Debian's packages": {func(t *testing.T, o *BaseOptions) {
			move(t, o, "usr/bin/nvidia-smi", "usr/lib/nvidia/current/nvidia-smi")
			link(t, o, "usr/bin/nvidia-smi", "/etc/alternatives/nvidia-smi")
			link(t, o, "etc/alternatives/nvidia-smi", "/usr/lib/nvidia/current/nvidia-smi")
		}, map[string]string{"/usr/bin/nvidia-smi": "/usr/lib/nvidia/current/nvidia-smi"}},
		"a link to the folder of one version": {func(t *testing.T, o *BaseOptions) {
			move(t, o, sim.LibraryDir, "opt/nvidia/570.124.06/lib64")
			move(t, o, "usr/bin/nvidia-smi", "opt/nvidia/570.124.06/bin/nvidia-smi")
			link(t, o, "opt/nvidia/current", "/opt/nvidia/570.124.06")
			o.LibrarySearchPaths = []string{"/opt/nvidia/current/lib64"}
			t.Setenv("PATH", "/opt/nvidia/current/bin")
		}, map[string]string{
			"/opt/nvidia/570.124.06/lib64" + cuda: "/opt/nvidia/570.124.06/lib64" + cuda,
			"/opt/nvidia/current/bin/nvidia-smi":  "/opt/nvidia/570.124.06/bin/nvidia-smi",
		}},
		"links to each library, as on NixOS": {func(t *testing.T, o *BaseOptions) {
			move(t, o, sim.LibraryDir, "nix/store/nvidia-x11/lib")
			libraries, err := os.ReadDir(filepath.Join(o.DriverRoot, "nix/store/nvidia-x11/lib"))
			expect.NoError(t, err)
			for _, l := range libraries {
				link(t, o, "nix/store/graphics-drivers/lib/"+l.Name(), "/nix/store/nvidia-x11/lib/"+l.Name())
			}
			link(t, o, "run/opengl-driver", "/nix/store/graphics-drivers")
			o.LibrarySearchPaths = []string{"/run/opengl-driver/lib"}
		}, map[string]string{"/nix/store/nvidia-x11/lib" + cuda: "/nix/store/nvidia-x11/lib" + cuda}},
		"a link that leads above its root": {func(t *testing.T, o *BaseOptions) {
			move(t, o, "usr/bin/nvidia-smi", "opt/nvidia-smi")
			link(t, o, "usr/bin/nvidia-smi", "../../../../../../../../../../../opt/nvidia-smi")
		}, map[string]string{"/usr/bin/nvidia-smi": "/opt/nvidia-smi"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(t, "t4x1")
			opts := s.options()
			test.change(t, &opts)
			b, err := NewBase(t.Context(), s.machine, opts)
			expect.NoError(t, err)
			got := map[string]string{}
			for _, m := range b.Common().Mounts {
				got[m.ContainerPath] = m.HostPath
			}
			for container, host := range test.mounts {
				expect.Equal(t, hostRoot+host, got[container], "%s comes from", container)
			}
			// A link that leads to no program leads to no mount.
			expect.Equal(t, "", got["/usr/bin/nvidia-imex"], "a program that is not there is mounted")
		})
	}
}

// NixOS has no /sbin/ldconfig, and the hook's default is that: no container would start.
func TestLdconfigOfTheHost(t *testing.T) {
	const nixos = "run/current-system/sw/bin/ldconfig"
	for name, test := range map[string]struct {
		files, hostDriverRoot, path string
	}{
		"where it usually is":                    {"sbin/ldconfig " + nixos, "/", ""},
		"as on NixOS":                            {nixos, "/", "/" + nixos},
		"a driver container's is not the host's": {nixos, hostRoot, ""},
		"nowhere: the hook says where it looks":  {"", "/", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(t, "t4x1")
			for _, file := range strings.Fields(test.files) {
				writeFile(t, filepath.Join(s.root, file), "")
			}
			opts := s.options()
			opts.HostDriverRoot = test.hostDriverRoot
			b, err := NewBase(t.Context(), s.machine, opts)
			expect.NoError(t, err)
			for _, h := range b.Common().Hooks {
				if i := slices.Index(h.Args, "--ldconfig-path"); h.Args[1] == "update-ldcache" {
					if i < 0 && test.path != "" || i >= 0 && h.Args[i+1] != test.path {
						t.Errorf("the hook's arguments are %q, want ldconfig at %q", h.Args, test.path)
					}
				}
			}
		})
	}
}
