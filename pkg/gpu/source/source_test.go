// SPDX-License-Identifier: Apache-2.0

package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDriverRootThroughALink(t *testing.T) {
	host := t.TempDir()
	if err := os.MkdirAll(filepath.Join(host, "run/nvidia/driver"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"var": "/", "current": "run/nvidia/driver"} {
		if err := os.Symlink(target, filepath.Join(host, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ root, says string }{
		{"/var/run/nvidia/driver", "leads through the symbolic link /var to /:"},
		{"/current", "leads through the symbolic link /current to run/nvidia/driver:"},
		{"/run/nvidia/driver", "libnvidia-ml"},
		{"/not/there", "libnvidia-ml"},
	} {
		_, err := New(Options{HostRoot: host, DriverRoot: tt.root}).Read(t.Context())
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("driver root %s: %v, want an error with %q", tt.root, err, tt.says)
		}
	}
}
