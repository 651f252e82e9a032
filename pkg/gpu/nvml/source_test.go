// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
)

func TestDriverRootThroughALink(t *testing.T) {
	host := t.TempDir()
	expect.NoError(t, os.MkdirAll(filepath.Join(host, "run/nvidia/driver"), 0o755))
	for link, target := range map[string]string{"var": "/", "current": "run/nvidia/driver"} {
		expect.NoError(t, os.Symlink(target, filepath.Join(host, link)))
	}
	for _, tt := range []struct{ root, says string }{
		{"/var/run/nvidia/driver", "leads through the symbolic link /var to /:"},
		{"/current", "leads through the symbolic link /current to run/nvidia/driver:"},
		{"/run/nvidia/driver", "libnvidia-ml"},
		{"/not/there", "libnvidia-ml"},
	} {
		_, err := NewSource(SourceOptions{HostRoot: host, DriverRoot: tt.root}).Read(t.Context())
		expect.Error(t, err, tt.says)
	}
}

// countedLibrary counts how often it is initialised, as NVML does.
type countedLibrary struct {
	nvml.Interface
	initialised int
	count       nvml.Return
}

func (l *countedLibrary) Init() nvml.Return     { l.initialised++; return nvml.SUCCESS }
func (l *countedLibrary) Shutdown() nvml.Return { l.initialised--; return nvml.SUCCESS }

func (l *countedLibrary) DeviceGetCount() (int, nvml.Return) {
	if l.count != nvml.SUCCESS {
		return 0, l.count
	}
	return l.Interface.DeviceGetCount()
}

// Who asks and sets something of a GPU beside the readings goes on when one fails.
func TestDevicesOutliveAReadingThatFails(t *testing.T) {
	spec := load(t, "t4x1")
	for name, devices := range map[string]int{"without devices": 0, "with devices": 2} {
		t.Run(name, func(t *testing.T) {
			lib := &countedLibrary{Interface: spec.NVML(), initialised: 1}
			s := NewSource(SourceOptions{HostRoot: "/", DriverRoot: t.TempDir()})
			s.lib, s.reader = lib, NewReader(lib, Options{})
			machine, err := s.Read(t.Context())
			if err != nil || len(machine.GPUs) != 1 {
				t.Fatal(machine, err)
			}
			for range devices {
				_, err := s.Device(t.Context(), machine.GPUs[0].UUID)
				expect.NoError(t, err)
			}
			lib.count = nvml.ERROR_UNKNOWN
			if _, err := s.Read(t.Context()); err == nil {
				t.Fatal("the reading did not fail")
			}
			expect.Equal(t, min(devices, 1), lib.initialised, "times the library is initialised")
		})
	}
}

// What the driver root is on may hang, and its readings are of one goroutine that does more.
func TestSourceWhoseDriverRootHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSource(SourceOptions{HostRoot: t.TempDir(), DriverRoot: "/run/nvidia/driver", CallTimeout: time.Second})
		release := make(chan struct{})
		defer close(release)
		_, _ = bounded.Try(t.Context(), s.files, "looking at a file", func() (struct{}, error) {
			<-release
			return struct{}{}, nil
		})
		_, err := s.Read(t.Context())
		expect.ErrorIs(t, err, bounded.ErrHung)
	})
}
