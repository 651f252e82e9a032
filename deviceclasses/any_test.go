// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/topologytest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// A whole GPU of the class gpu.aliyun.com is one that a mode hands out whole.
func TestAnyWholeGPU(t *testing.T) {
	for m, want := range map[mode.Mode]string{
		mode.Exclusive: "gpu-0", mode.Topology: "gpu-0-topology", mode.Dynamic: "gpu-0",
		mode.Share: "", mode.CGPU: "", mode.MPS: "", mode.CoreMem: "",
	} {
		t.Run(string(m), func(t *testing.T) {
			installed, err := All()
			expect.NoError(t, err)
			_, resources := poolIn(m)
			n := allocatortest.NewNode("n1", v1alpha1.DriverName, resources, installed)
			expect.Equal(t, want, n.Devices(t, asking("gpu.aliyun.com", nil)), "allocated")
		})
	}
}

// An administrator's request for all devices of the class sees each GPU once, on a
// machine with 45 linked sets, too, which are more devices than a claim can have.
func TestMonitoringSeesEachGPUOnce(t *testing.T) {
	installed, err := All()
	expect.NoError(t, err)
	_, ctx := ktesting.NewTestContext(t)
	dgx, err := topologytest.Machine(ctx, "../demo/machines/dgx1.yaml")
	expect.NoError(t, err)
	all := func(class string) resourceapi.DeviceClaim {
		claim := asking(class, map[string]string{"memory": "0"})
		claim.Requests[0].Exactly.AllocationMode, claim.Requests[0].Exactly.Count = resourceapi.DeviceAllocationModeAll, 0
		claim.Requests[0].Exactly.AdminAccess = ptr.To(true)
		claim.Requests[0].Exactly.Tolerations = []resourceapi.DeviceToleration{
			{Operator: resourceapi.DeviceTolerationOpExists}}
		return claim
	}
	const monitor = "monitor.gpu.aliyun.com"

	linked := devices.Build(dgx, devices.Options{Pool: "n1/gpu", Mode: mode.Topology, Isolation: "whole-card"})
	n := allocatortest.NewNode("n1", v1alpha1.DriverName, linked, installed)
	if _, err := n.Allocate(ctx, all("topology.gpu.aliyun.com")); err == nil {
		t.Error("all devices of the machine fit into a claim: this test shows nothing")
	}
	const eight = "gpu-0-monitor gpu-1-monitor gpu-2-monitor gpu-3-monitor gpu-4-monitor gpu-5-monitor gpu-6-monitor " +
		"gpu-7-monitor"
	expect.Equal(t, eight, n.Devices(t, all(monitor)), "a DGX-1")
	for m, want := range map[mode.Mode]string{mode.Exclusive: "gpu-0 gpu-1",
		mode.Topology: "gpu-0-topology gpu-1-topology", mode.Share: "gpu-0-share gpu-1-share",
		mode.CoreMem: "gpu-0-core-mem gpu-1-core-mem"} {
		_, resources := poolIn(m)
		n := allocatortest.NewNode("n1", v1alpha1.DriverName, resources, installed)
		// A GPU in use is seen as well.
		used := asking("tesla-v100-sxm2-16gb.gpu.aliyun.com", nil)
		if m == mode.Exclusive {
			used = asking("exclusive.gpu.aliyun.com", nil)
		}
		if m == mode.Share {
			used = asking("share.gpu.aliyun.com", map[string]string{"memory": "15Gi"})
		}
		if m == mode.Exclusive || m == mode.Share {
			if got := n.Devices(t, used); got == "" {
				t.Fatalf("%s: nothing is allocated before", m)
			}
		}
		expect.Equal(t, want, n.Devices(t, all(monitor)), "%s", m)
	}
}
