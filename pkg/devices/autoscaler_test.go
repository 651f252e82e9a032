// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// sameType is a machine of the type of v100 with GPUs of its own.
func sameType(node string) *gpu.Machine {
	m := v100()
	for i := range m.GPUs {
		m.GPUs[i].UUID = fmt.Sprintf("GPU-%s-%d", node, i)
	}
	return m
}

// The cluster autoscaler makes the slices of a node that does not exist yet from those of
// another one of its group: nodes of one type have to offer the same, but for what tells
// their GPUs apart.
func TestNodesOfATypeOfferTheSame(t *testing.T) {
	modes := []mode.Mode{mode.Exclusive, mode.Topology, mode.Share, mode.MPS, mode.CGPU, mode.CoreMem}
	for _, m := range modes {
		var offered [][]resourceapi.Device
		for _, node := range []string{"n1", "n2"} {
			o := Options{Pool: v1alpha1.PoolName(node), Mode: m, Slots: 20, Isolation: "any", IsolationLevel: "none"}
			devices := devicesOf(t, sameType(node), o)
			for _, d := range devices {
				delete(d.Attributes, v1alpha1.AttrUUID)
			}
			offered = append(offered, devices)
		}
		expect.Equal(t, offered[0], offered[1], "mode %s: two nodes of a type offer", m)
	}
}

// The autoscaler takes a node whose drivers have not published as many complete pools as
// others of its group for one that is not ready; a pool without devices is complete.
func TestAPoolWithoutDevicesIsComplete(t *testing.T) {
	pools := Empty("n1/gpu").Pools
	if pool, ok := pools["n1/gpu"]; !ok || len(pools) != 1 || len(pool.Slices) != 1 || len(pool.Slices[0].Devices) != 0 {
		t.Errorf("got %+v, want the pool with one slice without devices", pools)
	}
}
