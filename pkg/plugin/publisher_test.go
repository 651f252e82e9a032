package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// loggedEvents remembers what is currently reported under each reason.
type loggedEvents struct{ current map[string]string }

func (e *loggedEvents) warn(reason, message string)   { e.current[reason] = message }
func (e *loggedEvents) normal(reason, message string) { e.current[reason] = message }
func (e *loggedEvents) clear(reason string)           { delete(e.current, reason) }

// bench is a publisher whose publications are caught.
type bench struct {
	*publisher
	client    *fake.Clientset
	events    *loggedEvents
	published []resourceslice.DriverResources
}

func newBench(objects ...runtime.Object) *bench {
	b := &bench{client: fake.NewClientset(objects...), events: &loggedEvents{current: map[string]string{}}}
	b.publisher = newPublisher(b.client, "n1", b.events, func(_ context.Context, r resourceslice.DriverResources) error {
		b.published = append(b.published, r)
		return nil
	})
	b.SetMachine(&gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-a", MemoryMiB: 16130}}})
	return b
}

func (b *bench) label(labels map[string]string) {
	b.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: labels}})
}

// devices describes what was published last: each device's name, with "!"
// where it is tainted.
func (b *bench) devices(t *testing.T) string {
	t.Helper()
	if len(b.published) == 0 {
		t.Fatal("nothing was published")
	}
	var out []string
	for _, d := range b.published[len(b.published)-1].Pools["n1/gpu"].Slices[0].Devices {
		name := d.Name
		if len(d.Taints) > 0 {
			name += "!"
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

func (b *bench) reconciled(t *testing.T, wantSettled bool, wantDevices string) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	settled, err := b.reconcile(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if settled != wantSettled {
		t.Errorf("settled: %v, want %v", settled, wantSettled)
	}
	if got := b.devices(t); got != wantDevices {
		t.Errorf("published %q, want %q", got, wantDevices)
	}
}

func allocatedClaim(device string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "held"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: "gpu.aliyun.com", Pool: "n1/gpu", Device: device}},
		}}},
	}
}

func TestModeFollowsTheLabel(t *testing.T) {
	b := newBench()
	b.label(map[string]string{})
	b.reconciled(t, true, "gpu-0")
	b.label(map[string]string{mode.ScheduleLabel: "share"})
	b.reconciled(t, true, "gpu-0-share")
	b.label(map[string]string{mode.ScheduleLabel: "mps"})
	b.reconciled(t, true, "")
	if got := b.events.current[reasonModeRefused]; !strings.Contains(got, "mps") {
		t.Errorf("event %q does not say what is not served", got)
	}
	b.label(map[string]string{mode.ScheduleLabel: "bogus"})
	b.reconciled(t, true, "")
	if got := b.events.current[reasonModeRefused]; !strings.Contains(got, `"bogus"`) {
		t.Errorf("event %q does not name the value", got)
	}
	b.label(map[string]string{mode.ScheduleLabel: "default"})
	b.reconciled(t, true, "gpu-0")
	if got, ok := b.events.current[reasonModeRefused]; ok {
		t.Errorf("still reported: %q", got)
	}
}

func TestDevicePluginOnTheNode(t *testing.T) {
	b := newBench()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4"), "aliyun.com/gpu-mem": resource.MustParse("0")}
	b.SetNode(node)
	b.reconciled(t, true, "")
	if got := b.events.current[reasonModeRefused]; !strings.Contains(got, "serves nvidia.com/gpu here") {
		t.Errorf("event %q", got)
	}
	node = node.DeepCopy()
	node.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("0")
	b.SetNode(node)
	b.reconciled(t, true, "gpu-0")
}

func TestSwitchWaitsForClaims(t *testing.T) {
	b := newBench(allocatedClaim("gpu-0-share"))
	b.label(map[string]string{mode.ScheduleLabel: "share"})
	b.reconciled(t, true, "gpu-0-share")
	b.label(map[string]string{mode.ScheduleLabel: "default"})
	b.reconciled(t, false, "gpu-0-share!")
	b.reconciled(t, false, "gpu-0-share!")
	if got := b.events.current[reasonSwitchWaiting]; !strings.Contains(got, "team/held") {
		t.Errorf("event %q does not name the claim", got)
	}
	b.label(map[string]string{mode.ScheduleLabel: "share"})
	b.reconciled(t, true, "gpu-0-share")
	b.label(map[string]string{mode.ScheduleLabel: "default"})
	b.reconciled(t, false, "gpu-0-share!")
	if err := b.client.Tracker().Delete(resourceapi.SchemeGroupVersion.WithResource("resourceclaims"), "team", "held"); err != nil {
		t.Fatal(err)
	}
	b.reconciled(t, true, "gpu-0")
	if _, ok := b.events.current[reasonSwitchWaiting]; ok {
		t.Error("still reported as waiting")
	}
}

func TestSwitchWhileThePluginWasDown(t *testing.T) {
	b := newBench(allocatedClaim("gpu-0"))
	b.label(map[string]string{mode.ScheduleLabel: "share"})
	b.reconciled(t, false, "gpu-0!")
}

func TestUnchangedPoolIsNotPublishedAgain(t *testing.T) {
	b := newBench()
	b.label(map[string]string{mode.ScheduleLabel: "share"})
	b.reconciled(t, true, "gpu-0-share")
	b.label(map[string]string{mode.ScheduleLabel: "share", "unrelated": "label"})
	b.reconciled(t, true, "gpu-0-share")
	if len(b.published) != 1 {
		t.Errorf("published %d times", len(b.published))
	}
	b.label(map[string]string{mode.ScheduleLabel: "share", mode.MaxPodLabel: "x"})
	b.reconciled(t, true, "gpu-0-share")
	if got := b.events.current[reasonInvalidLabel]; !strings.Contains(got, `"x"`) {
		t.Errorf("event %q", got)
	}
}

// An API server without DRAConsumableCapacity stores the devices as ones for a
// single claim.
func TestDroppedFieldsPublishNothing(t *testing.T) {
	b := newBench()
	gateOff := true
	b.client.PrependReactor("create", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		create := action.(k8stesting.CreateActionImpl)
		if len(create.GetCreateOptions().DryRun) != 1 {
			return true, nil, errors.New("the preflight must not store anything")
		}
		slice := create.GetObject().(*resourceapi.ResourceSlice).DeepCopy()
		for i := range slice.Spec.Devices {
			if gateOff {
				slice.Spec.Devices[i].AllowMultipleAllocations = nil
			}
		}
		return true, slice, nil
	})
	b.label(map[string]string{mode.ScheduleLabel: "share"})
	b.reconciled(t, false, "")
	if got := b.events.current[reasonFeatureDisabled]; !strings.Contains(got, "DRAConsumableCapacity") {
		t.Errorf("event %q does not name the feature gate", got)
	}
	gateOff = false
	b.reconciled(t, true, "gpu-0-share")
	gateOff = true
	b.SetDropped(errors.New("dropped"))
	b.reconciled(t, false, "")
	b.label(map[string]string{})
	b.reconciled(t, true, "gpu-0")
}

func TestFailClosedWhenTheAPIServerCannotBeAsked(t *testing.T) {
	for _, verb := range []string{"create resourceslices", "list resourceclaims"} {
		b := newBench()
		v, resource, _ := strings.Cut(verb, " ")
		b.client.PrependReactor(v, resource, func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, fmt.Errorf("connection refused")
		})
		b.label(map[string]string{mode.ScheduleLabel: "share"})
		_, ctx := ktesting.NewTestContext(t)
		if settled, err := b.reconcile(ctx); err == nil || settled || len(b.published) != 0 {
			t.Errorf("%s: settled %v, error %v, published %v", verb, settled, err, b.published)
		}
	}
}
