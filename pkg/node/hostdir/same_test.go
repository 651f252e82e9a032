// SPDX-License-Identifier: Apache-2.0

package hostdir

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestSame(t *testing.T) {
	root := host(t)
	expect.NoError(t, os.MkdirAll(filepath.Join(root, "etc/cdi"), 0o755))
	for name, test := range map[string]struct {
		a, b string
		want bool
	}{
		"one path":              {"/run/cdi", "/run/cdi", true},
		"by a link of the host": {"/var/run/cdi", "/run/cdi", true},
		"two directories":       {"/etc/cdi", "/run/cdi", false},
		"one is not there":      {"/opt/cdi", "/run/cdi", false},
		"none is there":         {"/opt/cdi", "/opt/cdi", false},
	} {
		expect.Equal(t, test.want, Same(root, test.a, test.b), "%s", name)
	}
}
