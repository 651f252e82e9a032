// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// driverRoot is where nodes have the NVIDIA driver.
const driverRoot = "run/nvidia/driver"

// ChangeMachine changes the simulated GPUs of a node, as if they broke or were
// repaired, until the test ends or they are put back. The plugin sees it within
// seconds.
func (c *Cluster) ChangeMachine(t *testing.T, node string, change func(*sim.Spec)) (putBack func()) {
	t.Helper()
	before, err := sim.Load(c.NodeFile(node, driverRoot, sim.MachineFile))
	expect.NoError(t, err)
	c.KeepMachineChange(t, node, change)
	putBack = func() {
		t.Helper()
		c.KeepMachineChange(t, node, func(s *sim.Spec) {
			events := s.Events // what happened stays
			*s = *before
			s.Events = events
		})
	}
	t.Cleanup(putBack)
	return putBack
}

// KeepMachineChange is ChangeMachine for what is not put back, because others change the GPUs in the meantime.
func (c *Cluster) KeepMachineChange(t *testing.T, node string, change func(*sim.Spec)) {
	t.Helper()
	err := sim.Change(c.NodeFile(node, driverRoot), func(s *sim.Spec) error {
		change(s)
		return nil
	})
	if err != nil {
		t.Errorf("change the GPUs of node %s: %v", node, err)
	}
}

// UpgradeDriver installs another version of a node's NVIDIA driver in the place of
// the one that is there. Its programs stay.
func (c *Cluster) UpgradeDriver(t *testing.T, node, version string) {
	t.Helper()
	expect.NoError(t, sim.UpgradeDriver(c.NodeFile(node, driverRoot), version))
}
