// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
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
	b := newBench(t)
	b.mode("share")
	b.reconciled(t, true, shares)
	return b
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
	b.SetMachine(&gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0", MemoryMiB: 16130}, {Index: 1, UUID: "GPU-1",
		MemoryMiB: 16130}}})
}

// state is the node's, as any process sees it.
func (b *bench) state() *state.Store {
	store, err := state.Open(b.pluginDir)
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

// gate takes from the API server, while it is off, what DRAConsumableCapacity
// gives: it stores shareable devices as ones for a single claim.
func (b *bench) gate(t *testing.T) (off *bool) {
	off = new(bool)
	apitest.Answer(b.client, "create", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		create := action.(k8stesting.CreateActionImpl)
		if len(create.GetCreateOptions().DryRun) != 1 {
			t.Error("the preflight must not store anything")
		}
		slice := create.GetObject().(*resourceapi.ResourceSlice).DeepCopy()
		for i := range slice.Spec.Devices {
			if *off {
				slice.Spec.Devices[i].AllowMultipleAllocations = nil
			}
		}
		return true, slice, nil
	})
	return off
}

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

// devices describes what was published last: each device's name, with "!"
// where it is closed to new claims. Monitors, which show GPUs and give nothing, are left out.
func (b *bench) devices(t *testing.T) string {
	t.Helper()
	if len(b.published) == 0 {
		t.Fatal("nothing was published")
	}
	var out []string
	for _, slice := range b.published[len(b.published)-1].Pools["n1/gpu"].Slices {
		for _, d := range slice.Devices {
			name := d.Name
			if strings.HasSuffix(name, "-monitor") {
				continue
			}
			if len(d.Taints) > 0 {
				name += "!"
			}
			out = append(out, name)
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

func (b *bench) reconciled(t *testing.T, wantSettled bool, wantDevices string) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	settled, err := b.reconcile(ctx)
	expect.NoError(t, err)
	expect.Equal(t, wantSettled, settled, "settled")
	expect.Equal(t, wantDevices, b.devices(t), "published")
}

// switched goes through a change of the mode with nothing in its way.
func (b *bench) switched(t *testing.T, before, after string) {
	t.Helper()
	b.reconciled(t, false, before)
	b.clock.Step(mode.Settle)
	b.reconciled(t, true, after)
}

func (b *bench) allocate(t *testing.T, device string, pods ...string) {
	t.Helper()
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "held"},
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
	claims := b.client.ResourceV1().ResourceClaims("team")
	c, err := claims.Get(t.Context(), "held", metav1.GetOptions{})
	expect.NoError(t, err)
	c.Status.Allocation.Devices.Results[0].Tolerations = []resourceapi.DeviceToleration{
		{Operator: resourceapi.DeviceTolerationOpExists}}
	_, err = claims.UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
	expect.NoError(t, err)
}

func (b *bench) release(t *testing.T) {
	t.Helper()
	expect.NoError(t, b.client.Tracker().Delete(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), "team",
		"held"))
}

const (
	whole       = "gpu-0 gpu-1"
	shares      = "gpu-0-share gpu-1-share"
	wholeClosed = "gpu-0! gpu-1!"
	shareClosed = "gpu-0-share! gpu-1-share!"
)

func TestModeFollowsTheLabel(t *testing.T) {
	b := newBench(t)
	b.label(map[string]string{})
	b.reconciled(t, true, whole)
	b.mode("share")
	b.switched(t, wholeClosed, shares)
	b.mode("default")
	b.switched(t, shareClosed, whole)
}

func TestTakingTheLabelOffKeepsTheMode(t *testing.T) {
	b := sharing(t)
	b.label(nil)
	b.reconciled(t, true, shares)
	b.restart()
	b.label(nil)
	b.reconciled(t, true, shares)
	b.mode("bogus")
	b.reconciled(t, true, shares)
	expect.Says(t, b.events.current[v1alpha1.ReasonInvalidLabel], `"bogus"`, "stay in mode share")
	b.mode("default")
	b.switched(t, shareClosed, whole)
}

// A mode that cannot be served yet is one that was asked for.
func TestTakingTheLabelOffKeepsAModeThatIsNotServed(t *testing.T) {
	b := newBench(t)
	b.mode("mps")
	b.reconciled(t, true, "")
	b.label(nil)
	b.reconciled(t, true, "")
	b.restart()
	b.label(nil)
	b.reconciled(t, true, "")
	defer b.supervised(t)()
	b.reconciled(t, true, "gpu-0-mps gpu-1-mps")
}

// A label that was overruled stays so in the node's memory.
func TestTakingTheLabelOffLeavesNothingToTheOlderOne(t *testing.T) {
	b := newBench(t)
	b.label(map[string]string{ack.NodeLabelSchedule: "share", ack.NodeLabelCGPU: "false"})
	b.reconciled(t, true, shares)
	for range 2 {
		b.label(map[string]string{ack.NodeLabelCGPU: "false"})
		b.reconciled(t, true, shares)
		b.restart()
	}
	b.label(map[string]string{ack.NodeLabelCGPU: "false", ack.NodeLabelGPUShare: "false"})
	b.switched(t, shareClosed, whole)
}

func TestUnknownModeOnANewNode(t *testing.T) {
	b := newBench(t)
	b.mode("bogus")
	b.reconciled(t, true, "")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], `"bogus"`)
}
