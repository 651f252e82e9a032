// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

func TestHealthOfDevices(t *testing.T) {
	p := New(Options{NodeName: "n1", Clock: clock.RealClock{}})
	if got := p.Health(nil); got != nil {
		t.Errorf("before anything is known: %v", got)
	}
	machine := &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-a", MemoryMiB: 16130},
		{Index: 1, UUID: "GPU-b", MemoryMiB: 16130}, {Index: 3, UUID: "GPU-d", MemoryMiB: 16130}},
		Faults: []gpu.Fault{{Index: 2, UUID: "GPU-c", Reason: gpu.FaultLost, Message: "it is lost"}},
		Links:  []gpu.Link{{A: 0, B: 1, Kind: gpu.LinkNVLink, Lanes: 4, GBps: 100}}}
	p.SetMachine(machine)
	p.SetHealth(map[string]health.Unhealthy{"GPU-b": {Reason: "xid-79", Message: "XID 79"}})
	served, err := servedModes(mode.Offer{Mode: mode.Topology}, isolation.NewRegistry(isolation.Config{}))
	expect.NoError(t, err)
	p.noteHealth(buildPool(machine, mode.Topology, served, held.Reserved{}, nil, devices.Options{Pool: p.pool()}))
	prepared := []state.Record{{Grants: []claim.Grant{
		{Device: "gpu-2-topology", GPU: claim.GPU{Index: 2, UUID: "GPU-c"}},
		{Device: "gpu-7-share", GPU: claim.GPU{Index: 7, UUID: "GPU-h"}},
		{Device: "gpu-0-topology", GPU: claim.GPU{Index: 0, UUID: "GPU-a"}},
		{Device: "gpus-2-3", GPU: claim.GPU{Index: 2, UUID: "GPU-c"}},
		{Device: "gpus-2-3", GPU: claim.GPU{Index: 3, UUID: "GPU-d"}}}}}
	want := []DeviceHealth{{"gpu-0-monitor", ""}, {"gpu-0-topology", ""}, {"gpu-1-monitor", "XID 79"},
		{"gpu-1-topology", "XID 79"}, {"gpu-2-topology", "it is lost"}, {"gpu-3-monitor", ""},
		{"gpu-3-topology", ""}, {"gpu-7-share", "the GPU is not there any more"}, {"gpus-0-1", "XID 79"},
		{"gpus-2-3", "it is lost"}}
	expect.Equal(t, want, p.Health(prepared), "health")
}

// A GPU whose MPS daemon is down is told to the pods that have it.
func TestHealthOfDevicesThatAreNotIsolated(t *testing.T) {
	var changed signal.Broadcast
	p := New(Options{NodeName: "n1", Clock: clock.RealClock{}, HealthChanged: &changed})
	machine := &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-a", MemoryMiB: 16130},
		{Index: 1, UUID: "GPU-b", MemoryMiB: 16130}}}
	p.SetMachine(machine)
	served, err := servedModes(mode.Offer{Mode: mode.Share}, isolation.NewRegistry(isolation.Config{}))
	expect.NoError(t, err)
	publish := func(unhealthy map[string]string, want ...string) {
		t.Helper()
		served[0].notIsolated = unhealthy
		told := changed.Next()
		p.noteHealth(buildPool(machine, mode.Share, served, held.Reserved{}, nil, devices.Options{Pool: p.pool()}))
		select {
		case <-told:
		default:
			t.Error("it is not said that the health may be another one")
		}
		var got []string
		for _, d := range p.Health(nil) {
			if d.Message != "" && !strings.Contains(d.Message, "keeps the users of the GPU apart") {
				t.Errorf("%s: %s", d.Device, d.Message)
			}
			if d.Message != "" {
				got = append(got, d.Device)
			}
		}
		expect.Equal(t, want, got, "unhealthy")
	}
	publish(map[string]string{"GPU-b": "its daemon is down"}, "gpu-1-share")
	publish(nil)
}

func TestUnhealthyTaints(t *testing.T) {
	unhealthy := map[string]health.Unhealthy{"GPU-a": {Reason: "lost"}}
	for effect, want := range map[resourceapi.DeviceTaintEffect]resourceapi.DeviceTaintEffect{
		"":                                     resourceapi.DeviceTaintEffectNoSchedule,
		resourceapi.DeviceTaintEffectNoExecute: resourceapi.DeviceTaintEffectNoExecute,
	} {
		common := unhealthyTaints(unhealthy, effect)
		served := servedMode{notIsolated: map[string]string{"GPU-a": "no daemon", "GPU-b": "no daemon"}}
		machine := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}}}
		got := served.gpuTaints(machine, common, nil, held.Reserved{})
		notIsolated := resourceapi.DeviceTaint{Key: v1alpha1.TaintNotIsolated,
			Effect: resourceapi.DeviceTaintEffectNoSchedule}
		wanted := map[string][]resourceapi.DeviceTaint{
			"GPU-a": {{Key: v1alpha1.TaintUnhealthy, Value: "lost", Effect: want}, notIsolated},
			"GPU-b": {notIsolated},
		}
		expect.Equal(t, wanted, got, "unhealthy by effect %q", effect)
	}
}
