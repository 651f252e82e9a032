// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiversion "k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// loggedEvents remembers what is currently reported under each reason.
type loggedEvents struct{ current map[string]string }

func (e *loggedEvents) Warn(reason, message string) { e.current[reason] = message }

func (e *loggedEvents) Normal(reason, message string) { e.current[reason] = message }

func (e *loggedEvents) Clear(reason string) { delete(e.current, reason) }

// bench is a publisher whose publications are caught and whose clock stands.
type bench struct {
	*Publisher
	client *fake.Clientset
	clock  *clocktesting.FakeClock
	events *loggedEvents
	// pluginDir is where what the node promised is kept.
	pluginDir string
	mps       mps.Dir
	registry  *isolation.Registry
	published []resourceslice.DriverResources
	records   []state.Record
	// unlisted is why they cannot be listed.
	unlisted error
	// notKnown is why there may be more of them.
	notKnown error
	// beforeLock is called before the node is locked.
	beforeLock func()
	// pods hold GPUs without a claim; unread says that they are not known.
	pods   []*corev1.Pod
	unread bool
	// nvidias are the GPUs that NVIDIA's DRA driver has, and the pods that it gave them to.
	nvidias map[string][]string
	// left is when the last device plugin left.
	left time.Time
	// requiredLabel is what the next process is told.
	requiredLabel string
}

func newBench(t *testing.T, objects ...runtime.Object) *bench {
	b := &bench{
		client: fake.NewClientset(objects...), clock: clocktesting.NewFakeClock(time.Unix(0, 0)),
		pluginDir: t.TempDir(), mps: mps.Dir(t.TempDir()),
		beforeLock: func() {},
	}
	b.kubernetes("v1.37.1")
	b.registry = isolation.NewRegistry(isolation.Config{MPSDir: string(b.mps), CGPUProc: "/proc/no_such_module"})
	// The fake client would store what a dry run creates.
	apitest.Answer(b.client, "create", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		return true, action.(k8stesting.CreateAction).GetObject(), nil
	})
	b.restart()
	return b
}

// sharing has a node in mode share whose shares are published.
func sharing(t *testing.T) *bench {
	t.Helper()
	return newBench(t).in(t, "share", shares)
}

// supervised has a node on whose GPUs MPS is available.
func supervised(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	t.Cleanup(b.supervised(t))
	return b
}

// in has the node in the mode, in which these devices are published.
func (b *bench) in(t *testing.T, mode, devices string) *bench {
	t.Helper()
	b.mode(mode)
	b.reconciled(t, true, devices)
	return b
}

// twoGPUs are the node's, as long as nothing happens to them.
func twoGPUs() *gpu.Machine {
	return &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0", MemoryMiB: 16130}, {Index: 1, UUID: "GPU-1",
		MemoryMiB: 16130}}}
}

// restart replaces the publisher, as a new process would.
func (b *bench) restart() {
	b.events = &loggedEvents{current: map[string]string{}}
	b.published = nil
	b.Publisher = New(Options{
		Client: b.client, NodeName: "n1", Events: b.events, State: b.state(), Clock: b.clock,
		Isolation: b.registry, Metrics: &counted{},
		Claims: b, Pods: b, MPS: b.mps, RequiredLabel: b.requiredLabel,
	})
	b.publish = func(_ context.Context, r resourceslice.DriverResources) error {
		b.published = append(b.published, r)
		return b.storeSlice(r)
	}
	b.SetMachine(twoGPUs())
}

// restartIn is a restart of a node that has the label of the mode.
func (b *bench) restartIn(mode string) {
	b.restart()
	b.mode(mode)
}

// state is the node's, as any process sees it.
func (b *bench) state() *state.Store {
	store, err := state.Open(b.pluginDir, "n1")
	if err != nil {
		panic(err)
	}
	return store
}

// promised is what it has of the node.
func (b *bench) promised(t *testing.T) state.Node {
	t.Helper()
	n, _, err := b.state().Node()
	expect.Error(t, err)
	return n
}

// nodeFile is where it lies.
func (b *bench) nodeFile() string { return filepath.Join(b.pluginDir, "node.json") }

// kubernetes sets the version that the API server tells.
func (b *bench) kubernetes(version string) {
	b.client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: version}
}

// supervised makes MPS available on both GPUs, until the function is called.
func (b *bench) supervised(t *testing.T) (stop func()) {
	t.Helper()
	release, err := b.mps.Hold()
	expect.NoError(t, err)
	b.daemons(t, mps.Ready)
	return func() { expect.NoError(t, release()) }
}

// daemons has the daemons of both GPUs in this state.
func (b *bench) daemons(t *testing.T, state mps.State) {
	t.Helper()
	for _, uuid := range []string{"GPU-0", "GPU-1"} {
		expect.NoError(t, b.mps.SetStatus(uuid, mps.Status{State: state}))
	}
}

// Prepared, Known and WithNodeLocked implement Claims.
func (b *bench) Prepared(context.Context) ([]state.Record, error) {
	if b.unlisted != nil {
		return nil, b.unlisted
	}
	return b.records, nil
}

func (b *bench) Known(context.Context) error { return b.notKnown }

func (b *bench) WithNodeLocked(_ context.Context, do func([]state.Record) error) error {
	b.beforeLock()
	return do(b.records)
}

// Observe and SetLeft implement Pods.
func (b *bench) Observe(_ context.Context, m *gpu.Machine) (held.Reserved, error) {
	if b.unread {
		return held.Reserved{}, held.ErrPodsUnread
	}
	gpus := slices.Clone(m.GPUs)
	for _, f := range m.Faults {
		gpus = append(gpus, gpu.GPU{Index: f.Index, UUID: f.UUID})
	}
	reserved := deviceplugin.Of(b.pods, deviceplugin.Node{GPUs: gpus, Left: b.left})
	for uuid, pods := range b.nvidias {
		reserved = reserved.OfDriver(uuid, "gpu.nvidia.com", pods)
	}
	return reserved, nil
}

func (b *bench) SetLeft(left time.Time) { b.left = left }

// storeSlice does what the helper's controller does in the background.
func (b *bench) storeSlice(r resourceslice.DriverResources) error {
	gvr := resourceapi.SchemeGroupVersion.WithResource("resourceslices")
	// The client may be in use for what stores this.
	stored, err := b.client.Tracker().List(gvr, resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), "")
	if err != nil {
		return err
	}
	for _, slice := range stored.(*resourceapi.ResourceSliceList).Items {
		if err := b.client.Tracker().Delete(gvr, "", slice.Name); err != nil {
			return err
		}
	}
	for i, slice := range r.Pools["n1/gpu"].Slices {
		err := b.client.Tracker().Add(
			&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slice-%d", i)},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: "gpu.aliyun.com", NodeName: ptr.To("n1"), Devices: slice.Devices, SharedCounters: slice.SharedCounters,
				}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) label(labels map[string]string) {
	b.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: labels}})
}

func (b *bench) mode(value string) { b.label(map[string]string{ack.NodeLabelSchedule: value}) }

// last are the devices that were published last.
func (b *bench) last(t *testing.T) []resourceapi.Device {
	t.Helper()
	if len(b.published) == 0 {
		t.Fatal("nothing was published")
	}
	return devicesIn(b.published[len(b.published)-1])
}

// shown is what each of them shows.
func (b *bench) shown(t *testing.T, show func(d resourceapi.Device) string) string {
	t.Helper()
	var out []string
	for _, d := range b.last(t) {
		out = append(out, show(d))
	}
	return strings.Join(out, " ")
}

// devices describes what was published last.
func (b *bench) devices(t *testing.T) string {
	t.Helper()
	return describeDevices(b.last(t))
}

func devicesIn(r resourceslice.DriverResources) (all []resourceapi.Device) {
	for _, slice := range r.Pools["n1/gpu"].Slices {
		all = append(all, slice.Devices...)
	}
	return all
}

// describeDevices names each device, with "!" where it is closed to new claims. Monitors, which show GPUs and give
// nothing, are left out.
func describeDevices(all []resourceapi.Device) string {
	var out []string
	for _, d := range all {
		if !strings.HasSuffix(d.Name, "-monitor") {
			out = append(out, d.Name+strings.Repeat("!", min(len(d.Taints), 1)))
		}
	}
	return strings.Join(out, " ")
}

// reconcile goes once through what Run does at the same time.
func (b *bench) reconcile(ctx context.Context) (settled bool, err error) {
	settled, err = b.Publisher.reconcile(ctx)
	if err != nil {
		return false, err
	}
	told, err := b.demand.Pass(ctx)
	return settled && told, err
}

// pass is reconcile where nothing fails.
func (b *bench) pass(t *testing.T) (settled bool) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	settled, err := b.reconcile(ctx)
	expect.NoError(t, err)
	return settled
}

// runs has the publisher run until the test ends, by the clock of the test's bubble.
func (b *bench) runs(t *testing.T) {
	b.Clock, b.demand.Clock = clock.RealClock{}, clock.RealClock{}
	var running sync.WaitGroup
	running.Go(func() { b.Run(t.Context(), b.publish) })
	t.Cleanup(running.Wait)
}

func (b *bench) reconciled(t *testing.T, wantSettled bool, wantDevices string) {
	t.Helper()
	expect.Equal(t, wantSettled, b.pass(t), "settled")
	expect.Equal(t, wantDevices, b.devices(t), "published")
}

// switched goes through a change of the mode with nothing in its way.
func (b *bench) switched(t *testing.T, before, after string) {
	t.Helper()
	b.reconciled(t, false, before)
	b.clock.Step(mode.Settle)
	b.reconciled(t, true, after)
}

// waits goes into a change of the mode that somebody holds up.
func (b *bench) waits(t *testing.T, closed string) {
	t.Helper()
	b.reconciled(t, false, closed)
	b.clock.Step(mode.Settle)
	b.reconciled(t, false, closed)
}

// freed goes on when the claim that is allocated has ended.
func (b *bench) freed(t *testing.T, after string) {
	t.Helper()
	b.release(t)
	b.clock.Step(retryInterval)
	b.reconciled(t, true, after)
}

func (b *bench) allocate(t *testing.T, device string, pods ...string) {
	t.Helper()
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "held", UID: "held"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{
					{Request: "r", Driver: "gpu.aliyun.com", Pool: "n1/gpu", Device: device}},
			}}},
	}
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod})
	}
	expect.NoError(t, b.client.Tracker().Add(c))
}

// tolerating has the claim that is allocated tolerate every taint.
func (b *bench) tolerating(t *testing.T) {
	t.Helper()
	apitest.Change(t, b.client, "team", "held", func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation.Devices.Results[0].Tolerations = []resourceapi.DeviceToleration{
			{Operator: resourceapi.DeviceTolerationOpExists}}
	})
}

func (b *bench) release(t *testing.T) {
	t.Helper()
	expect.NoError(t, b.client.Tracker().Delete(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), "team",
		"held"))
}

const (
	whole       = "gpu-0 gpu-1"
	wholeClosed = "gpu-0! gpu-1!"
	shares      = "gpu-0-share gpu-1-share"
	shareClosed = "gpu-0-share! gpu-1-share!"
	byMPS       = "gpu-0-mps gpu-1-mps"
	byMPSClosed = "gpu-0-mps! gpu-1-mps!"
	everyMode   = "gpu-0 gpu-0-share gpu-0-cgpu gpu-0-core-mem gpu-0-mps gpu-1 gpu-1-share gpu-1-cgpu " +
		"gpu-1-core-mem gpu-1-mps"
	everyModeClosed = "gpu-0! gpu-0-share! gpu-0-cgpu! gpu-0-core-mem! gpu-0-mps! gpu-1! gpu-1-share! gpu-1-cgpu! " +
		"gpu-1-core-mem! gpu-1-mps!"
)
