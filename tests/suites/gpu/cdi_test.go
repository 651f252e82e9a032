// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

func TestBaseEditsExist(t *testing.T) {
	n := openNode(t)
	base := n.base(t)
	common := base.Common()
	checkPaths(t, common)
	for _, library := range []string{"libcuda.so.", "libnvidia-ml.so."} {
		if !slices.ContainsFunc(common.Mounts, func(m *specs.Mount) bool {
			return filepath.Base(m.ContainerPath) == library+n.machine.DriverVersion
		}) {
			t.Errorf("no mount of %s%s", library, n.machine.DriverVersion)
		}
	}
	for _, g := range n.machine.GPUs {
		edits, err := base.GPU(g.UUID)
		if err != nil {
			t.Error(err)
			continue
		}
		checkPaths(t, edits)
		if err := base.Check(g.UUID); err != nil {
			t.Error(err)
		}
	}
}

// checkPaths checks that every path of the host that the edits name is there.
func checkPaths(t *testing.T, edits specs.ContainerEdits) {
	t.Helper()
	for _, m := range edits.Mounts {
		if _, err := os.Stat(m.HostPath); err != nil {
			t.Errorf("mount %s: %v", m.ContainerPath, err)
		}
		t.Log("mount", m.HostPath, "→", m.ContainerPath)
	}
	for _, d := range edits.DeviceNodes {
		path := d.HostPath
		if path == "" {
			path = d.Path
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Errorf("device node %s: %v", d.Path, err)
		} else if info.Mode()&fs.ModeCharDevice == 0 {
			t.Errorf("%s is no character device but %s", path, info.Mode())
		}
		t.Log("device node", path, "→", d.Path)
	}
	for _, h := range edits.Hooks {
		if _, err := os.Stat(h.Path); err != nil {
			t.Errorf("hook %s: %v", strings.Join(h.Args, " "), err)
		}
	}
	t.Log("env", edits.Env)
}
