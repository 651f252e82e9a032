// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

func TestSwitchWaitsForClaims(t *testing.T) {
	b := sharing(t)
	b.allocate(t, "gpu-0-share", "trainer", "evaluator")
	b.mode("default")
	b.waits(t, shareClosed)
	expect.Says(t, b.events.current[v1alpha1.ReasonModeSwitchWaiting], "pod team/evaluator, pod team/trainer")
	b.label(nil)
	b.reconciled(t, false, shareClosed)
	expect.Says(t, b.events.current[v1alpha1.ReasonModeSwitchWaiting], "pod team/trainer. No label asks for that any "+
		"more; the mode that was asked for last counts until ack.node.gpu.schedule has another value")
	b.mode("share")
	b.reconciled(t, true, shares)
	if _, ok := b.events.current[v1alpha1.ReasonModeSwitchWaiting]; ok {
		t.Error("still reported as waiting although it was changed back")
	}
	b.mode("default")
	b.reconciled(t, false, shareClosed)
	b.release(t)
	b.reconciled(t, false, shareClosed)
	b.clock.Step(mode.Settle)
	b.reconciled(t, true, whole)
}

// The label's value "disabled" takes the GPUs from the driver when their claims have ended, and gives them back when it
// is gone, also to another process.
func TestDisabledNodeOffersNothingAfterItsClaims(t *testing.T) {
	b := sharing(t)
	b.allocate(t, "gpu-0-share", "trainer")
	b.mode("disabled")
	b.reconciled(t, false, shareClosed)
	b.refusedBecause(t, "ack.node.gpu.schedule=disabled")
	expect.Equal(t, "", b.events.current[v1alpha1.ReasonInvalidLabel], "event of a label that is valid")
	b.clock.Step(mode.Settle)
	b.reconciled(t, false, shareClosed)
	expect.Says(t, b.events.current[v1alpha1.ReasonModeSwitchWaiting], "pod team/trainer")
	b.freed(t, "")
	b.restartIn("disabled")
	b.reconciled(t, true, "")
	b.label(nil)
	b.reconciled(t, true, shares)
}

// A claim in each gap of a switch: whatever has been allocated when the node
// looks keeps the old mode.
func TestClaimInEveryGapOfASwitch(t *testing.T) {
	for _, gap := range []string{"before the label", "before the taint is seen", "just before the last look"} {
		t.Run(gap, func(t *testing.T) {
			b := sharing(t)
			allocateIn := func(here string) {
				if here == gap {
					b.allocate(t, "gpu-1-share", "late")
				}
			}
			allocateIn("before the label")
			b.mode("default")
			b.reconciled(t, false, shareClosed)
			allocateIn("before the taint is seen")
			b.clock.Step(mode.Settle / 2)
			b.reconciled(t, false, shareClosed)
			b.clock.Step(mode.Settle / 2)
			allocateIn("just before the last look")
			b.reconciled(t, false, shareClosed)
			b.freed(t, whole)
		})
	}
}

// The allocation of a scheduler that is late beyond that is refused: the plugin
// tells what is prepared from then on of the change before it shows the new
// devices. What was prepared before that keeps the old mode.
func TestClaimAfterTheLastLook(t *testing.T) {
	b := sharing(t)
	b.mode("default")
	b.reconciled(t, false, shareClosed)
	b.clock.Step(mode.Settle)
	_, ctx := ktesting.NewTestContext(t)
	b.beforeLock = func() {
		b.allocate(t, "gpu-1-share", "late")
		b.records = []state.Record{recordOf("held", shareOf(0, 1))}
	}
	_, err := b.reconcile(ctx)
	expect.Error(t, err, "claim team/held was prepared in the moment before")
	expect.Equal(t, mode.Share, b.promised(t).Published, "mode in which claims are prepared")
	b.beforeLock = func() {}
	b.reconciled(t, false, shareClosed)
	b.release(t)
	b.records = nil
	publish := b.publish
	b.publish = func(ctx context.Context, r resourceslice.DriverResources) error {
		expect.Equal(t, mode.Exclusive, b.promised(t).Published,
			"mode in which claims are prepared while whole GPUs are published")
		return publish(ctx, r)
	}
	b.reconciled(t, true, whole)
}

// Without the file everything would be refused until the plugin is restarted.
func TestMemoryRemovedWhileThePluginRuns(t *testing.T) {
	b := sharing(t)
	expect.NoError(t, os.Remove(b.nodeFile()))
	b.reconciled(t, true, shares)
	expect.Equal(t, mode.Share, b.promised(t).Published, "published mode")
}

func TestSwitchWaitsForWhatIsStillPrepared(t *testing.T) {
	b := sharing(t)
	b.records = []state.Record{recordOf("gone", shareOf(0, 1))}
	b.mode("default")
	b.waits(t, shareClosed)
	expect.Says(t, b.events.current[v1alpha1.ReasonModeSwitchWaiting], "claim team/gone")
	b.records = nil
	b.reconciled(t, true, whole)
}

func TestMonitorsDoNotHoldASwitchUp(t *testing.T) {
	b := newBench(t, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "monitor"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{
					{Request: "r", Driver: "gpu.aliyun.com", Pool: "n1/gpu", Device: "gpu-0-share", AdminAccess: ptr.To(true)}},
			}}},
	})
	b.mode("share")
	b.reconciled(t, true, shares)
	b.mode("default")
	b.switched(t, shareClosed, whole)
}

func TestSwitchWhileThePluginWasDown(t *testing.T) {
	b := newBench(t).in(t, "default", whole)
	b.allocate(t, "gpu-0")
	b.restartIn("share")
	b.waits(t, wholeClosed)
}

func TestMemoryLost(t *testing.T) {
	b := newBench(t)
	b.allocate(t, "gpu-0")
	b.mode("share")
	b.waits(t, wholeClosed)
	b.freed(t, shares)
}

// A label that never stands still must not get the node to give GPUs out in
// two modes, nor to write without end.
func TestFlappingLabel(t *testing.T) {
	b := sharing(t)
	b.allocate(t, "gpu-0-share", "trainer")
	for range 60 {
		b.mode("default")
		b.reconciled(t, false, shareClosed)
		b.clock.Step(time.Second)
		b.mode("share")
		b.reconciled(t, true, shares)
		b.clock.Step(time.Second)
	}
	expect.Equal(t, 121, len(b.published), "publications for 120 changes of the label")
}

// A claim that tolerates everything is allocated from closed devices, and so would keep
// the node in its mode for ever: it is not prepared any more once they have been closed
// for long enough, and what is not prepared does not count. One that tolerates nothing
// was allocated before, and is waited for.
func TestClaimThatToleratesTheSwitch(t *testing.T) {
	b := newBench(t)
	closed := func() bool { return b.promised(t).Closed }
	b.mode("share")
	b.reconciled(t, true, shares)
	b.records = []state.Record{recordOf("early", shareOf(0, 1))}
	b.mode("default")
	b.reconciled(t, false, shareClosed)
	expect.Equal(t, false, closed(), "claims that were allocated before are refused at once")
	b.clock.Step(mode.Settle)
	b.reconciled(t, false, shareClosed)
	expect.Equal(t, true, closed(), "claims that tolerate it are refused")
	b.restartIn("default")
	b.reconciled(t, false, shareClosed)
	expect.Equal(t, true, closed(), "claims that tolerate it are refused after a restart, too")
	b.clock.Step(mode.Settle)
	b.reconciled(t, false, shareClosed)
	b.allocate(t, "gpu-1-share", "stubborn")
	b.tolerating(t)
	b.records = nil
	b.clock.Step(retryInterval)
	b.reconciled(t, true, whole)
	expect.Equal(t, false, closed(), "still closed")
}

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
	b.label(map[string]string{ack.NodeLabelSchedule: "bogus", ack.NodeLabelPlacement: "random"})
	b.reconciled(t, true, shares)
	expect.Says(t, b.events.current[v1alpha1.ReasonInvalidLabel], `="random" is not a known value`,
		`; node label ack.node.gpu.schedule="bogus" is not`, "stay in mode share")
	b.mode("default")
	b.switched(t, shareClosed, whole)
}

// A mode that cannot be served yet is one that was asked for.
func TestTakingTheLabelOffKeepsAModeThatIsNotServed(t *testing.T) {
	b := newBench(t).in(t, "mps", "")
	b.label(nil)
	b.reconciled(t, true, "")
	b.restart()
	b.label(nil)
	b.reconciled(t, true, "")
	defer b.supervised(t)()
	b.reconciled(t, true, byMPS)
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
	b := newBench(t).in(t, "bogus", "")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], `"bogus"`)
}

// With a wrong setting every pod would be allocated a GPU and none would start.
func TestNodeOnWhichNothingCouldStartOffersNothing(t *testing.T) {
	b := newBench(t)
	b.SetUnusable(errors.New("CDI_DIR: directory /cdi is another one than the host's"))
	b.mode("share")
	b.reconciled(t, false, "")
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], "CDI_DIR")
	b.SetUnusable(nil)
	b.reconciled(t, true, shares)
	expect.Equal(t, "", b.events.current[v1alpha1.ReasonModeNotServed], "it is still said")

	// What is allocated keeps its devices, closed to new claims.
	b.allocate(t, "gpu-0-share", "a")
	b.SetUnusable(errors.New("NVIDIA_DEV_ROOT: device node /dev/nvidiactl: is missing"))
	b.waits(t, shareClosed)
	b.SetUnusable(nil)
	b.reconciled(t, true, shares)
}
