// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

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

// A node that leaves its mode for one that cannot be published must not go back
// and forth between the two.
func TestSwitchToAModeThatCannotBePublished(t *testing.T) {
	b := newBench(t)
	*b.gate(t) = true
	b.mode("default")
	b.reconciled(t, true, whole)
	b.mode("share")
	b.reconciled(t, false, wholeClosed)
	b.clock.Step(mode.Settle)
	for range 3 {
		b.reconciled(t, false, "")
		b.clock.Step(mode.Settle)
	}
}

func TestSpread(t *testing.T) {
	b := newBench(t)
	b.label(map[string]string{ack.NodeLabelSchedule: "share", ack.NodeLabelPlacement: "spread"})
	b.reconciled(t, true, shares)
	grant := func(g int, units int64) { b.records = append(b.records, recordOf("c", shareOf(g, units))) }
	grant(0, 4)
	b.reconciled(t, true, shares)
	expect.Equal(t, 1, len(b.published), "publications: of what was offered, GPU 1 is left")
	grant(1, 3)
	b.reconciled(t, true, "gpu-1-share gpu-0-share")
	grant(1, 2)
	b.reconciled(t, true, shares)
	b.label(map[string]string{ack.NodeLabelSchedule: "share", ack.NodeLabelPlacement: "random"})
	b.reconciled(t, true, "gpu-1-share gpu-0-share")
	expect.Says(t, b.events.current[v1alpha1.ReasonInvalidLabel], `"random"`)
}

func TestDevicePluginOnTheNode(t *testing.T) {
	b := newBench(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4"),
		"aliyun.com/gpu-mem": resource.MustParse("0")}
	b.SetNode(node)
	b.reconciled(t, true, "")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "serves nvidia.com/gpu here")
	node = node.DeepCopy()
	node.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("0")
	b.SetNode(node)
	b.clock.Step(time.Hour)
	// It may have been the kubelet that was restarted.
	b.reconciled(t, false, "")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "served the same GPUs here until "+
		"a moment ago")
	b.clock.Step(devicePluginGrace - time.Second)
	b.reconciled(t, false, "")
	b.clock.Step(time.Second)
	b.reconciled(t, true, whole)
}

// All modes hand out the same GPUs.
func TestDevicePluginKeepsTheNodeFromPublishingInAnyMode(t *testing.T) {
	for _, label := range []string{"default", "share", "topology", "dynamic"} {
		for _, resourceName := range []corev1.ResourceName{"nvidia.com/gpu", "nvidia.com/gpu.shared", "aliyun.com/gpu-mem",
			"aliyun.com/gpu-core.percentage", "aliyun.com/gpu"} {
			b := newBench(t)
			b.SetNode(serving(label, resourceName, "4", "4"))
			b.reconciled(t, true, "")
			b.refusedBecause(t, "serves "+string(resourceName)+" here")
		}
	}
}

// What gpu-compat-controller shows in the node's status is no device plugin's.
func TestAmountsShownByTheControllerAreNoDevicePlugin(t *testing.T) {
	b := newBench(t)
	node := serving("share", "aliyun.com/gpu-mem", "60", "0")
	wrote := func(manager string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager,
			FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:allocatable":{"f:aliyun.com/gpu-mem":{}}}}`)}
	}
	for _, writers := range [][]metav1.ManagedFieldsEntry{nil, {wrote("kubelet")},
		{wrote("gpu-compat-controller"), wrote("kubelet")}, {{FieldsV1: metav1.NewFieldsV1("[")}}} {
		node = node.DeepCopy()
		node.ManagedFields = writers
		b.SetNode(node)
		b.reconciled(t, true, "")
		b.refusedBecause(t, "serves aliyun.com/gpu-mem here")
	}
	node = node.DeepCopy()
	node.ManagedFields = []metav1.ManagedFieldsEntry{wrote("gpu-compat-controller")}
	b.SetNode(node)
	b.reconciled(t, false, "")
	b.clock.Step(devicePluginGrace)
	b.reconciled(t, true, shares)
}

func TestUnchangedPoolIsNotPublishedAgain(t *testing.T) {
	b := sharing(t)
	b.label(map[string]string{ack.NodeLabelSchedule: "share", "unrelated": "label"})
	b.reconciled(t, true, shares)
	expect.Equal(t, 1, len(b.published), "times published")
	b.label(map[string]string{ack.NodeLabelSchedule: "share", ack.NodeLabelMaxPod: "x"})
	b.reconciled(t, true, shares)
	expect.Says(t, b.events.current[v1alpha1.ReasonInvalidLabel], `"x"`)
}

// An API server without DRAConsumableCapacity stores the devices as ones for a
// single claim.
func TestDroppedFieldsPublishNothing(t *testing.T) {
	b := newBench(t)
	gateOff := b.gate(t)
	*gateOff = true
	b.mode("share")
	b.reconciled(t, false, "")
	expect.Says(t, b.events.current[v1alpha1.ReasonFeatureDisabled], "DRAConsumableCapacity")
	*gateOff = false
	b.reconciled(t, true, shares)
	*gateOff = true
	b.SetDropped()
	b.reconciled(t, false, "")
	*gateOff = false
	b.reconciled(t, true, shares)
}

// That it drops fields may be told while it is asked, and says that it does not.
func TestDroppedFieldsThatAreToldMeanwhile(t *testing.T) {
	b := newBench(t)
	gateOff := b.gate(t)
	tell := sync.OnceFunc(b.SetDropped)
	apitest.Answer(b.client, "create", "resourceslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		tell()
		return false, nil, nil
	})
	b.mode("share")
	b.reconciled(t, true, shares)
	*gateOff = true
	b.reconciled(t, false, "")
}

// The helper goes on to publish what was kept of a slice, so it is told again: once, where the fields are dropped
// by another server than the one that was asked, and then now and then.
func TestDroppedFieldsAreWrittenAgain(t *testing.T) {
	b := newBench(t)
	b.gate(t)
	b.mode("share")
	b.reconciled(t, true, shares)
	for _, step := range []struct {
		dropped bool
		after   time.Duration
		settled bool
		want    int
	}{{true, 0, true, 2}, {false, 0, true, 2}, {true, 0, false, 2}, {false, retryInterval, true, 3},
		{false, retryInterval, true, 3}} {
		if step.dropped {
			b.SetDropped()
		}
		b.clock.Step(step.after)
		b.reconciled(t, step.settled, shares)
		expect.Equal(t, step.want, len(b.published), "%+v: times published", step)
	}
	// Nobody asks whether the server keeps what such devices need.
	b.mode("default")
	b.switched(t, shareClosed, whole)
	b.SetDropped()
	b.reconciled(t, true, whole)
	expect.Equal(t, 5, len(b.published), "times published")
}

func TestFailClosedWhenTheAPIServerCannotBeAsked(t *testing.T) {
	for _, verb := range []string{"create resourceslices", "list resourceclaims"} {
		b := newBench(t)
		v, what, _ := strings.Cut(verb, " ")
		apitest.Answer(b.client, v, what, func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
		b.mode("share")
		_, ctx := ktesting.NewTestContext(t)
		if settled, err := b.reconcile(ctx); err == nil || settled || len(b.published) != 0 {
			t.Errorf("%s: settled %v, error %v, published %v", verb, settled, err, b.published)
		}
	}
}

func TestSwitchOfANodeWithoutGPUs(t *testing.T) {
	b := newBench(t)
	b.SetMachine(&gpu.Machine{})
	b.mode("share")
	b.reconciled(t, true, "")
	b.mode("default")
	b.switched(t, "", "")
	b.SetMachine(&gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0", MemoryMiB: 16130}}})
	b.reconciled(t, true, "gpu-0")
}

// While the NVIDIA driver does not answer the cluster autoscaler is to wait for the node, not to
// make another one; a node that has no GPUs is complete.
func TestNoPoolUntilTheGPUsAreRead(t *testing.T) {
	b := newBench(t)
	b.machine = nil
	b.mode("share")
	b.reconciled(t, true, "")
	if pools := b.published[len(b.published)-1].Pools; len(pools) != 0 {
		t.Errorf("published %v before the GPUs were read, want no pool", pools)
	}
	b.SetMachine(&gpu.Machine{})
	b.reconciled(t, true, "")
	if pools := b.published[len(b.published)-1].Pools; len(pools) != 1 {
		t.Errorf("published %v for a node without GPUs, want one pool", pools)
	}
}

func TestMPSDaemonsDecideWhatIsOffered(t *testing.T) {
	b := newBench(t).in(t, "mps", "")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "gpu-mps-supervisor does not run")
	release, err := b.mps.Hold()
	expect.NoError(t, err)
	daemon := func(g int, s mps.State) {
		t.Helper()
		expect.NoError(t, b.mps.SetStatus(fmt.Sprintf("GPU-%d", g), mps.Status{State: s, Reason: "exit status 1"}))
		expect.Equal(t, true, b.isolationChanged(), "the change is noticed")
	}
	daemon(0, mps.Ready)
	b.reconciled(t, true, "gpu-0-mps gpu-1-mps!")
	daemon(1, mps.Ready)
	b.reconciled(t, true, byMPS)
	daemon(0, mps.Down)
	b.reconciled(t, true, "gpu-0-mps! gpu-1-mps")
	expect.Says(t, b.events.current[v1alpha1.ReasonIsolationUnavailable], "GPU 0 is closed to new claims", "exit status 1")
	expect.NoError(t, release())
	b.reconciled(t, true, byMPSClosed)
}

// A node whose mode a wrong setting concerns says so and offers nothing; what was
// offered before is closed. The other modes are served.
func TestWrongIsolationSetting(t *testing.T) {
	b := newBench(t)
	wrong := isolation.NewRegistry(isolation.Config{CGPU: mode.IsolationHAMi, MPSDir: string(b.mps),
		CGPUProc: "/proc/no_such_module"})
	right := b.registry
	defer b.supervised(t)()
	b.registry = wrong
	b.restartIn("cgpu")
	b.reconciled(t, true, "")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "set HAMI_LIBRARY")
	b.mode("mps")
	b.reconciled(t, true, byMPS)
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "")

	b.registry = right
	b.restartIn("cgpu")
	b.switched(t, byMPSClosed, "gpu-0-cgpu gpu-1-cgpu")
	b.registry = wrong
	b.restartIn("cgpu")
	b.reconciled(t, false, "gpu-0-cgpu! gpu-1-cgpu!")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "set HAMI_LIBRARY")
	b.clock.Step(mode.Settle)
	b.reconciled(t, true, "")
}

// A GPU such as GB10's is handed out as a whole alone, and the node says why.
func TestGPUThatUsesTheHostsMemory(t *testing.T) {
	b := newBench(t)
	machine := twoGPUs()
	machine.GPUs[1].HostMemory = true
	b.SetMachine(machine)
	b.in(t, "share", "gpu-0-share")
	expect.Says(t, b.events.current[v1alpha1.ReasonIsolationUnavailable], "GPU 1 is closed to new claims",
		"it has no memory of its own")
	b.mode("default")
	b.switched(t, "gpu-0-share!", whole)
}

func TestProblemsNameEachReason(t *testing.T) {
	m := &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0"}}}
	served := []servedMode{
		{mode: mode.CGPU, notIsolated: map[string]string{"GPU-0": "no library"}},
		{mode: mode.CoreMem, notIsolated: map[string]string{"GPU-0": "no daemon"}},
		{mode: mode.MPS, notIsolated: map[string]string{"GPU-0": "no daemon"}},
	}
	const want = "GPU 0 is closed to new claims of mode cgpu: no library\nGPU 0 is closed to new claims of mode " +
		"core-mem, mps: no daemon"
	if got := problems(served, m); got == nil || got.Error() != want {
		t.Errorf("%v, want %s", got, want)
	}
}
