// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// ServeMIG has a node's simulated driver make and destroy MIG instances until the test ends. Without it such calls do
// not return.
func (c *Cluster) ServeMIG(t *testing.T, node string, p sim.Partitioning) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.ServeMIG(ctx, c.NodeFile(node, driverRoot)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("simulate the driver of node %s: %v", node, err)
		}
	})
}

// MIGDevices are the MIG devices that a node's simulated driver has now.
func (c *Cluster) MIGDevices(t *testing.T, node string) []sim.MIGDevice {
	t.Helper()
	spec, err := sim.Load(c.NodeFile(node, driverRoot, sim.MachineFile))
	expect.NoError(t, err)
	return spec.MIGDevices()
}

// MIGInstance is the UUID of the instance of which the status of a claim tells.
func MIGInstance(claim *resourceapi.ResourceClaim) (uuid string, err error) {
	if len(claim.Status.Devices) != 1 || claim.Status.Devices[0].Data == nil {
		return "", fmt.Errorf("the status of claim %s says %+v", claim.Name, claim.Status.Devices)
	}
	var data v1alpha1.DeviceStatus
	if err := json.Unmarshal(claim.Status.Devices[0].Data.Raw, &data); err != nil {
		return "", err
	}
	if len(data.GPUs) != 1 || data.GPUs[0].MIG == nil {
		return "", fmt.Errorf("the status of claim %s says %s", claim.Name, claim.Status.Devices[0].Data.Raw)
	}
	return data.GPUs[0].UUID, nil
}
