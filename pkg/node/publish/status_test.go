// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
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

// counted are what the metrics were told.
type counted struct {
	lags   []time.Duration
	failed int
}

func (c *counted) Published(lag time.Duration) { c.lags = append(c.lags, lag) }
func (c *counted) PublishFailed()              { c.failed++ }

// noted is a pass that is noted, as each of Run's is.
func (b *bench) noted(t *testing.T) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	_, err := b.reconcileNoted(ctx)
	expect.NoError(t, err)
}

// A change is behind until a reconciliation succeeds that began after it, however often one
// fails before.
func TestHowFarBehind(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	b, counts := newBench(t), &counted{}
	b.Metrics = counts
	reconcile := func(want error) {
		t.Helper()
		if _, err := b.reconcileNoted(ctx); !errors.Is(err, want) {
			t.Fatalf("error %v, want %v", err, want)
		}
	}
	behind := func(want time.Duration) {
		t.Helper()
		expect.Equal(t, want, b.Status().Behind, "behind by")
	}
	expect.ErrorIs(t, b.Status().Err, errUnpublished)
	broken := errors.New("expected by the test")
	failing := true
	apitest.Answer(b.client, "create", "resourceslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		return failing, nil, broken
	})
	b.mode("share")
	b.clock.Step(time.Second)
	reconcile(broken)
	b.clock.Step(time.Second)
	behind(2 * time.Second)
	expect.ErrorIs(t, b.Status().Err, broken)
	failing = false
	b.granted()
	b.clock.Step(time.Second)
	reconcile(nil)
	behind(0)
	expect.Error(t, b.Status().Err)
	reconcile(nil)
	if counts.failed != 1 || !slices.Equal(counts.lags, []time.Duration{3 * time.Second}) {
		t.Errorf("counted %+v", counts)
	}
}

func TestStatusOfDevicesAndOfASwitch(t *testing.T) {
	b := newBench(t)
	b.mode("share")
	b.noted(t)
	b.SetHealth(map[string]health.Unhealthy{"GPU-1": {Reason: "lost", Message: "it is lost"}})
	want := []DeviceStatus{
		{Name: "gpu-0-share", Mode: mode.Share, Isolation: "none", IsolationLevel: "none"},
		{Name: "gpu-1-share", Mode: mode.Share, Isolation: "none", IsolationLevel: "none", Unhealthy: "it is lost"},
	}
	expect.Equal(t, want, b.Status().Devices, "devices")
	b.mode("default")
	b.noted(t)
	b.clock.Step(3 * time.Second)
	expect.Equal(t, 3*time.Second, b.Status().SwitchWaiting, "it waits to change its mode for")
	b.mode("share")
	b.noted(t)
	expect.Equal(t, 0, b.Status().SwitchWaiting, "it waits to change its mode back for")
}

// What the API server refuses is told after it was published.
func TestRefusedSlicesAreBehind(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	b, refused, reads := newBench(t), errors.New("refused"), 0
	apitest.Answer(b.client, "list", "resourceslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		reads++
		return false, nil, nil
	})
	pass := func(wantErr error, wantBehind time.Duration) {
		t.Helper()
		_, err := b.reconcileNoted(ctx)
		expect.ErrorIs(t, err, wantErr)
		if s := b.Status(); s.Behind != wantBehind || !errors.Is(s.Err, wantErr) {
			t.Errorf("behind by %s, %v, want %s, %v", s.Behind, s.Err, wantBehind, wantErr)
		}
	}
	counts := &counted{}
	b.Metrics = counts
	b.mode("default")
	pass(nil, 0)
	taken := b.published[0]
	expect.NoError(t, b.storeSlice(resourceslice.DriverResources{}))
	b.ReportFailed(refused)
	b.clock.Step(2 * time.Minute)
	if s := b.Status(); s.Behind != 2*time.Minute || !errors.Is(s.Err, refused) {
		t.Errorf("refused: behind by %s, %v", s.Behind, s.Err)
	}
	pass(refused, 2*time.Minute)
	b.clock.Step(time.Minute)
	b.granted()
	pass(refused, 3*time.Minute)
	expect.NoError(t, b.storeSlice(taken))
	reads = 0
	pass(refused, 3*time.Minute)
	expect.Equal(t, 0, reads, "times the ResourceSlices are read again at once")
	b.clock.Step(2 * retryInterval)
	pass(nil, 0)
	reads = 0
	pass(nil, 0)
	expect.Equal(t, 0, reads, "times the ResourceSlices are read at rest")
	// What is dropped was taken.
	b.SetDropped()
	expect.NoError(t, b.storeSlice(resourceslice.DriverResources{}))
	b.ReportFailed(refused)
	pass(nil, 0)
	expect.Equal(t, 2, counts.failed, "failures counted of 2 refusals")
}

// While it is not known what pods hold, nothing is published.
func TestUnreadPodsAreBehind(t *testing.T) {
	b := newBench(t)
	b.mode("share")
	b.unread = true
	for range 2 {
		b.clock.Step(time.Minute)
		b.noted(t)
	}
	expect.Equal(t, 2*time.Minute, b.Status().Behind, "behind by")
	b.unread = false
	b.noted(t)
	if s := b.Status(); s.Behind != 0 || s.Err != nil {
		t.Errorf("when they are read: %+v", s)
	}
}

// A device of an instance has the model of its GPU.
func TestModelsOfDevices(t *testing.T) {
	b := newBench(t)
	b.SetMachine(&gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0", Model: "T4", MemoryMiB: 16130}},
		Partitioned: []gpu.Partitioned{{GPU: gpu.GPU{Index: 2, UUID: "GPU-2", Model: "A100", MemoryMiB: 81920},
			Instances: []gpu.Instance{instanceAt(0, "MIG-a")}}}})
	b.mode("default")
	b.noted(t)
	got := map[string]string{}
	for _, d := range b.Status().Devices {
		got[d.Name] = d.Model
	}
	expect.Equal(t, map[string]string{"gpu-0": "T4", "gpu-2-mig-1g-10gb-0": "A100"}, got, "models")
}

// A node that has GPUs says that they have not been read; one that has none is silent.
func TestUnreadGPUs(t *testing.T) {
	for label, want := range map[string]bool{"": false, ack.NodeLabelSchedule: true, ack.NodeLabelModel: true,
		ack.NodeLabelMaxPod: false} {
		b := newBench(t)
		read := b.machine
		b.machine = nil
		expect.Equal(t, false, b.Status().GPUsUnread, "unread before the node is known")
		b.label(map[string]string{label: "T4"})
		expect.Equal(t, want, b.Status().GPUsUnread, "GPUs unread with label %q", label)
		b.SetMachine(read)
		expect.Equal(t, false, b.Status().GPUsUnread, "label %q: unread when they are read", label)
	}
}

func TestHealthOfDevices(t *testing.T) {
	p := New(Options{NodeName: "n1", Clock: clock.RealClock{}})
	expect.Equal(t, nil, p.Health(nil), "health before anything is known")
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
	machine := twoGPUs()
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
	publish(map[string]string{"GPU-1": "its daemon is down"}, "gpu-1-share")
	publish(nil)
}

func TestUnhealthyTaints(t *testing.T) {
	unhealthy := map[string]health.Unhealthy{"GPU-a": {Reason: "lost"}}
	for effect, want := range map[resourceapi.DeviceTaintEffect]resourceapi.DeviceTaintEffect{
		"":                                     resourceapi.DeviceTaintEffectNoSchedule,
		resourceapi.DeviceTaintEffectNoExecute: resourceapi.DeviceTaintEffectNoExecute,
	} {
		served := servedMode{notIsolated: map[string]string{"GPU-a": "no daemon", "GPU-b": "no daemon"}}
		machine := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}}}
		s := snapshot{given: given{machine: machine, unhealthy: unhealthy}, unhealthyEffect: effect}
		got := served.gpuTaints(machine, s.taints(), nil, held.Reserved{})
		notIsolated := resourceapi.DeviceTaint{Key: v1alpha1.TaintNotIsolated,
			Effect: resourceapi.DeviceTaintEffectNoSchedule}
		wanted := taints{
			"GPU-a": {{Key: v1alpha1.TaintUnhealthy, Value: "lost", Effect: want}, notIsolated},
			"GPU-b": {notIsolated},
		}
		expect.Equal(t, wanted, got, "unhealthy by effect %q", effect)
	}
}
