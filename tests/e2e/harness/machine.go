// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/sim"
)

// driverRoot is where nodes have the NVIDIA driver.
const driverRoot = "run/nvidia/driver"

// ChangeMachine changes the simulated cards of a node, as if they broke or were
// repaired, until the test ends. The plugin sees it within seconds.
func (c *Cluster) ChangeMachine(t *testing.T, node string, change func(*sim.Spec)) (putBack func()) {
	t.Helper()
	file := c.NodeFile(node, driverRoot, sim.MachineFile)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := sim.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	change(spec)
	after, err := yaml.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	write := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(file+".new", content, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(after)
	putBack = func() { write(before) }
	t.Cleanup(putBack)
	return putBack
}

// UpgradeDriver installs another version of a node's NVIDIA driver in the place of
// the one that is there. Its programs stay.
func (c *Cluster) UpgradeDriver(t *testing.T, node, version string) {
	t.Helper()
	root := c.NodeFile(node, driverRoot)
	spec, err := sim.Load(filepath.Join(root, sim.MachineFile))
	if err != nil {
		t.Fatal(err)
	}
	spec.Driver.Version = version
	programs, err := filepath.Glob(filepath.Join(root, "usr/bin/*"))
	if err != nil {
		t.Fatal(err)
	}
	var kept []sim.Program
	for _, path := range programs {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, sim.Program{Name: filepath.Base(path), Content: content})
	}
	if err := spec.WriteRoot(root, kept...); err != nil {
		t.Fatal(err)
	}
}
