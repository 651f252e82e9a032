// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// rooted makes a driver root with files, of which one with an arrow is a link.
func rooted(t *testing.T, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, file := range files {
		name, target, link := strings.Cut(file, " → ")
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if link {
			err = errors.Join(err, os.Symlink(target, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, nil, 0o755))
		}
		expect.NoError(t, err)
	}
	return root
}

func TestFind(t *testing.T) {
	for name, tt := range map[string]struct {
		files, further []string
		want           Driver // without the root
		settings       map[string]string
	}{
		"as a package of Debian's or Ubuntu's installs it": {
			files: []string{"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
				"/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control"},
			want: Driver{NVML: "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", CUDA: "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
				SMI: "/usr/bin/nvidia-smi", MPSControl: "/usr/bin/nvidia-cuda-mps-control"},
		},
		"in a folder of its own, outside the loader's path": {
			files: []string{"/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libcuda.so.1",
				"/usr/local/nvidia/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-smi"},
			want: Driver{NVML: "/usr/local/nvidia/lib64/libnvidia-ml.so.1", CUDA: "/usr/local/nvidia/lib64/libcuda.so.1",
				Odd: "/usr/local/nvidia/lib64", SMI: "/usr/local/nvidia/bin/nvidia-smi",
				MPSControl: "/usr/local/nvidia/bin/nvidia-cuda-mps-control"},
			settings: map[string]string{"NVIDIA_LIBRARY_SEARCH_PATHS": "/usr/local/nvidia/lib64",
				"NVIDIA_MPS_CONTROL": "/usr/local/nvidia/bin/nvidia-cuda-mps-control"},
		},
		"in a folder of its own, to which the usual one has links": {
			files: []string{"/usr/local/nvidia/lib64/libnvidia-ml.so.580.1", "/usr/local/nvidia/bin/nvidia-smi",
				"/usr/local/nvidia/lib64/libnvidia-ml.so.1 → libnvidia-ml.so.580.1",
				"/usr/lib64/libnvidia-ml.so.1 → ../local/nvidia/lib64/libnvidia-ml.so.1"},
			want: Driver{NVML: "/usr/local/nvidia/lib64/libnvidia-ml.so.1", Odd: "/usr/local/nvidia/lib64",
				SMI: "/usr/local/nvidia/bin/nvidia-smi"},
			settings: map[string]string{"NVIDIA_LIBRARY_SEARCH_PATHS": "/usr/local/nvidia/lib64"},
		},
		"in a folder that only LD_LIBRARY_PATH names": {
			files:   []string{"/srv/gpu/driver/libs/libnvidia-ml.so.1", "/usr/bin/nvidia-smi"},
			further: []string{"/srv/gpu/driver/libs"},
			want: Driver{NVML: "/srv/gpu/driver/libs/libnvidia-ml.so.1", Odd: "/srv/gpu/driver/libs",
				SMI: "/usr/bin/nvidia-smi"},
			settings: map[string]string{"NVIDIA_LIBRARY_SEARCH_PATHS": "/srv/gpu/driver/libs"},
		},
		"somewhere below /opt": {
			files:    []string{"/opt/vendor/gpu/580/lib/libnvidia-ml.so.1"},
			want:     Driver{NVML: "/opt/vendor/gpu/580/lib/libnvidia-ml.so.1", Odd: "/opt/vendor/gpu/580/lib"},
			settings: map[string]string{"NVIDIA_LIBRARY_SEARCH_PATHS": "/opt/vendor/gpu/580/lib"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := rooted(t, tt.files...)
			got, err := Find(root, tt.further)
			expect.NoError(t, err)
			want := tt.want
			want.Root, want.NVML = root, filepath.Join(root, want.NVML)
			if want.CUDA != "" {
				want.CUDA = filepath.Join(root, want.CUDA)
			}
			expect.Equal(t, &want, got, "driver")
			settings := map[string]string{"NVIDIA_DRIVER_ROOT": root}
			maps.Copy(settings, tt.settings)
			expect.Equal(t, settings, got.Settings(), "settings")
			expect.Equal(t, []string{root}, got.Mounts(), "mounts")
		})
	}
}

// A node of a cluster has /usr and the like from the machine, and no other directory.
func TestMounts(t *testing.T) {
	for want, d := range map[string]Driver{
		"":                    {Root: "/", NVML: "/usr/lib64/libnvidia-ml.so.1", SMI: "/usr/bin/nvidia-smi"},
		"/opt/vendor":         {Root: "/", NVML: "/opt/vendor/gpu/580/lib/libnvidia-ml.so.1"},
		"/srv/gpu /opt/tools": {Root: "/", NVML: "/srv/gpu/libs/libnvidia-ml.so.1", SMI: "/opt/tools/nvidia-smi"},
		"/run/nvidia/driver":  {Root: "/run/nvidia/driver", NVML: "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1"},
	} {
		expect.Equal(t, want, strings.Join(d.Mounts(), " "), "mounts of %+v", d)
	}
}

// A library that was removed can leave its link behind.
func TestFindNone(t *testing.T) {
	root := rooted(t, "/usr/lib64/libc.so.6", "/opt/a/b/c/d/e/f/g/libnvidia-ml.so.1",
		"/usr/lib64/libnvidia-ml.so.1 → libnvidia-ml.so.580")
	_, err := Find(root, nil)
	expect.Error(t, err, "no NVIDIA driver: ")
	if err != nil && strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want one line", err)
	}
}
