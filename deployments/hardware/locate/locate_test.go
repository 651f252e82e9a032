// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func machine(files ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for _, file := range files {
		m[strings.TrimPrefix(file, "/")] = &fstest.MapFile{Mode: 0o755}
	}
	return m
}

// linked has links beside the files: a name and its target, and so on.
func linked(m fstest.MapFS, links ...string) fstest.MapFS {
	for pair := range slices.Chunk(links, 2) {
		m[strings.TrimPrefix(pair[0], "/")] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte(pair[1])}
	}
	return m
}

func TestFind(t *testing.T) {
	for _, tt := range []struct {
		name     string
		search   Search
		want     Driver
		settings map[string]string
		mounts   []string
	}{
		{
			name: "as a package of Debian's or Ubuntu's installs it",
			search: Search{FS: machine("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
				"/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control")},
			want: Driver{Root: "/", NVML: "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
				CUDA: "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
				SMI:  "/usr/bin/nvidia-smi", MPSControl: "/usr/bin/nvidia-cuda-mps-control"},
			settings: map[string]string{"NVIDIA_DRIVER_ROOT": "/"},
		},
		{
			name: "in a folder of its own, outside the loader's path",
			search: Search{FS: machine("/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libcuda.so.1",
				"/usr/local/nvidia/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-cuda-mps-control")},
			want: Driver{Root: "/", NVML: "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
				CUDA: "/usr/local/nvidia/lib64/libcuda.so.1",
				Odd:  "/usr/local/nvidia/lib64", SMI: "/usr/local/nvidia/bin/nvidia-smi",
				MPSControl: "/usr/local/nvidia/bin/nvidia-cuda-mps-control"},
			settings: map[string]string{
				"NVIDIA_DRIVER_ROOT":          "/",
				"NVIDIA_LIBRARY_SEARCH_PATHS": "/usr/local/nvidia/lib64",
				"NVIDIA_MPS_CONTROL":          "/usr/local/nvidia/bin/nvidia-cuda-mps-control",
			},
		},
		{
			name: "in a folder of its own, to which the usual one has links",
			search: Search{FS: linked(
				machine("/usr/local/nvidia/lib64/libnvidia-ml.so.580.1", "/usr/local/nvidia/bin/nvidia-smi"),
				"/usr/local/nvidia/lib64/libnvidia-ml.so.1", "libnvidia-ml.so.580.1",
				"/usr/lib/libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1")},
			want: Driver{Root: "/", NVML: "/usr/local/nvidia/lib64/libnvidia-ml.so.1", Odd: "/usr/local/nvidia/lib64",
				SMI: "/usr/local/nvidia/bin/nvidia-smi"},
			settings: map[string]string{
				"NVIDIA_DRIVER_ROOT":          "/",
				"NVIDIA_LIBRARY_SEARCH_PATHS": "/usr/local/nvidia/lib64",
			},
		},
		{
			name:   "a driver container's, in a folder of its own",
			search: Search{FS: machine("/run/nvidia/driver/usr/local/nvidia/lib64/libnvidia-ml.so.1")},
			want: Driver{Root: "/run/nvidia/driver", NVML: "/run/nvidia/driver/usr/local/nvidia/lib64/libnvidia-ml.so.1",
				Odd: "/usr/local/nvidia/lib64"},
			settings: map[string]string{
				"NVIDIA_DRIVER_ROOT":          "/run/nvidia/driver",
				"NVIDIA_LIBRARY_SEARCH_PATHS": "/usr/local/nvidia/lib64",
			},
			mounts: []string{"/run/nvidia/driver"},
		},
		{
			name: "in a folder that only LD_LIBRARY_PATH names, which a node does not have",
			search: Search{FS: machine("/srv/gpu/driver/libs/libnvidia-ml.so.1", "/usr/bin/nvidia-smi"),
				Libraries: []string{"/srv/gpu/driver/libs"}},
			want: Driver{Root: "/", NVML: "/srv/gpu/driver/libs/libnvidia-ml.so.1", Odd: "/srv/gpu/driver/libs",
				SMI: "/usr/bin/nvidia-smi"},
			settings: map[string]string{
				"NVIDIA_DRIVER_ROOT":          "/",
				"NVIDIA_LIBRARY_SEARCH_PATHS": "/srv/gpu/driver/libs",
			},
			mounts: []string{"/srv/gpu"},
		},
		{
			name:   "somewhere below /opt",
			search: Search{FS: machine("/opt/vendor/gpu/580/lib/libnvidia-ml.so.1")},
			want:   Driver{Root: "/", NVML: "/opt/vendor/gpu/580/lib/libnvidia-ml.so.1", Odd: "/opt/vendor/gpu/580/lib"},
			settings: map[string]string{
				"NVIDIA_DRIVER_ROOT":          "/",
				"NVIDIA_LIBRARY_SEARCH_PATHS": "/opt/vendor/gpu/580/lib",
			},
			mounts: []string{"/opt/vendor"},
		},
		{
			name: "a driver container's",
			search: Search{FS: machine("/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
				"/run/nvidia/driver/usr/bin/nvidia-smi")},
			want: Driver{Root: "/run/nvidia/driver",
				NVML: "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", SMI: "/usr/bin/nvidia-smi"},
			settings: map[string]string{"NVIDIA_DRIVER_ROOT": "/run/nvidia/driver"},
			mounts:   []string{"/run/nvidia/driver"},
		},
		{
			name: "a driver root that was named, beside the machine's own driver",
			search: Search{FS: machine("/usr/lib64/libnvidia-ml.so.1", "/srv/driver/usr/lib64/libnvidia-ml.so.1"),
				Root: "/srv/driver"},
			want:     Driver{Root: "/srv/driver", NVML: "/srv/driver/usr/lib64/libnvidia-ml.so.1"},
			settings: map[string]string{"NVIDIA_DRIVER_ROOT": "/srv/driver"},
			mounts:   []string{"/srv/driver"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Find(tt.search)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got); diff != "" {
				t.Error("driver:", diff)
			}
			if diff := cmp.Diff(tt.settings, got.Settings()); diff != "" {
				t.Error("settings:", diff)
			}
			if diff := cmp.Diff(tt.mounts, got.Mounts()); diff != "" {
				t.Error("mounts:", diff)
			}
		})
	}
}

func TestFindNone(t *testing.T) {
	_, err := Find(Search{FS: machine("/usr/lib64/libc.so.6", "/opt/a/b/c/d/e/f/g/libnvidia-ml.so.1")})
	if !errors.Is(err, ErrNone) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want one line that there is no driver", err)
	}
}

// A library that was removed can leave its link behind.
func TestLinkThatLeadsNowhere(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "usr/lib64"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("libnvidia-ml.so.580", filepath.Join(root, "usr/lib64/libnvidia-ml.so.1")); err != nil {
		t.Fatal(err)
	}
	if d, err := Find(Search{FS: os.DirFS(root)}); err == nil {
		t.Errorf("found %+v", d)
	}
}
