// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// bridged is a machine whose GPUs are linked in pairs, without the GPUs that
// are sick.
func bridged(sick ...int) *gpu.Machine {
	m := &gpu.Machine{}
	for i := range 4 {
		if slices.Contains(sick, i) {
			m.Faults = append(m.Faults, gpu.Fault{Index: i, Reason: gpu.FaultLost})
			continue
		}
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: "GPU-" + string(rune('0'+i)), Model: "V100", MemoryMiB: 16130})
	}
	for _, pair := range [][2]int{{0, 1}, {2, 3}} {
		if !slices.Contains(sick, pair[0]) && !slices.Contains(sick, pair[1]) {
			m.Links = append(m.Links, gpu.Link{A: pair[0], B: pair[1], Kind: gpu.LinkNVLink, GBps: 50})
		}
	}
	return m
}

const (
	bridgedWhole  = "gpu-0-topology gpu-1-topology gpu-2-topology gpu-3-topology gpus-0-1-2-3 gpus-0-1 gpus-2-3"
	bridgedClosed = "gpu-0-topology! gpu-1-topology! gpu-2-topology! gpu-3-topology! gpus-0-1-2-3! gpus-0-1! gpus-2-3!"
)

func topologyBench(t *testing.T) *bench {
	b := newBench(t)
	b.SetMachine(bridged())
	b.mode("topology")
	b.reconciled(t, true, bridgedWhole)
	return b
}

func TestSwitchToAndFromTopology(t *testing.T) {
	b := topologyBench(t)
	b.allocate(t, "gpus-0-1", "trainer")
	b.mode("default")
	b.waits(t, bridgedClosed)
	expect.Says(t, b.events.current[v1alpha1.ReasonModeSwitchWaiting], "pod team/trainer")
	b.freed(t, "gpu-0 gpu-1 gpu-2 gpu-3")
	b.mode("topology")
	b.switched(t, "gpu-0! gpu-1! gpu-2! gpu-3!", bridgedWhole)
}

func TestUniformMachineInTopology(t *testing.T) {
	b := newBench(t).in(t, "topology", "gpu-0-topology gpu-1-topology")
	expect.Equal(t, 1, len(b.published[0].Pools["n1/gpu"].Slices), "slices of a uniform machine, which needs no counters")
}

// Without counters, GPUs of a set would be given away a second time.
func TestTopologyNeedsCounters(t *testing.T) {
	b := newBench(t)
	off := true
	apitest.Answer(b.client, "create", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		slice := action.(k8stesting.CreateAction).GetObject().(*resourceapi.ResourceSlice).DeepCopy()
		if off {
			slice.Spec.SharedCounters = nil
			eachDevice(&slice.Spec, func(d *resourceapi.Device) { d.ConsumesCounters = nil })
		}
		return true, slice, nil
	})
	b.SetMachine(bridged())
	b.mode("topology")
	b.reconciled(t, false, "")
	expect.Says(t, b.events.current[v1alpha1.ReasonFeatureDisabled], "mode topology", "DRAPartitionableDevices")
	off = false
	b.reconciled(t, true, bridgedWhole)
}

// What may be allocated stays published, whatever becomes of the GPUs: only so
// do its other GPUs count as taken.
func TestSetsOfASickGPUStayClosed(t *testing.T) {
	b := topologyBench(t)
	b.SetMachine(bridged(3))
	b.reconciled(t, true, "gpu-0-topology gpu-1-topology gpu-2-topology gpus-0-1 gpus-0-1-2-3! gpus-2-3!")
	// They are closed for good now: what nobody holds goes with the next change.
	b.allocate(t, "gpus-2-3", "trainer")
	b.SetMachine(bridged(1, 3))
	b.reconciled(t, true, "gpu-0-topology gpu-2-topology gpus-0-1! gpus-2-3!")
	b.restart()
	b.SetMachine(bridged(1, 3))
	b.mode("topology")
	b.reconciled(t, true, "gpu-0-topology gpu-2-topology gpus-2-3!")
	b.release(t)
	b.SetMachine(bridged())
	b.reconciled(t, true, bridgedWhole)
}

// Where the slices are gone, as after a long absence of the plugin, claims and
// records tell.
func TestSetsAreFoundByTheirClaims(t *testing.T) {
	b := newBench(t)
	b.allocate(t, "gpus-2-3", "trainer")
	b.records = []state.Record{{Namespace: "team", Name: "gone", Grants: []claim.Grant{
		{Mode: mode.Topology, Device: "gpus-0-3", GPU: claim.GPU{Index: 0}},
		{Mode: mode.Topology, Device: "gpus-0-3", GPU: claim.GPU{Index: 3}},
	}}}
	b.SetMachine(bridged(3))
	b.mode("topology")
	b.reconciled(t, true, "gpu-0-topology gpu-1-topology gpu-2-topology gpus-0-1 gpus-0-3! gpus-2-3!")
}

// Grants come and go without a look at all claims of the cluster.
func TestOnlyAChangeOfTheMachineAsksForClaims(t *testing.T) {
	b := topologyBench(t)
	before := len(b.client.Actions())
	for range 3 {
		b.pass(t)
	}
	if after := len(b.client.Actions()); after != before {
		t.Errorf("%d further requests: %v", after-before, b.client.Actions()[before:])
	}
}

func eachDevice(s *resourceapi.ResourceSliceSpec, change func(*resourceapi.Device)) {
	for i := range s.Devices {
		change(&s.Devices[i])
	}
}
