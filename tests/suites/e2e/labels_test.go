// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	modeLabel   = "ack.node.gpu.schedule"
	maxPodLabel = "ack.node.gpu.max-pod"

	switchingTaint = "gpu.aliyun.com/mode-switch:NoSchedule"
)

func TestIdleNodeSwitchesItsMode(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	setMode := cluster.Label(t, "switch", modeLabel)
	ns := cluster.Namespace(t)
	ns.Template(t, "card", harness.Requests(harness.Exclusive("gpu", 1)))
	ns.Template(t, "share", harness.Requests(harness.Share("gpu", "3Gi")))

	// A test before may have left it in the mode that is asked for here.
	cluster.Publishes(t, "switch", "gpu-0-share")
	began := time.Now()
	setMode("default")
	cluster.Publishes(t, "switch", "gpu-0")
	cluster.WaitNodeEvent(t, "switch", began, "GPUModeServed", "mode exclusive")
	ns.Run(t, harness.Pod("whole", "switch", harness.FromTemplate("card")))
	ns.SeesItsGPUs(t, "whole", "main", ns.Granted(t, "whole"))
	ns.Delete(t, "whole")
	harness.Eventually(t, "the claim to be gone", ns.CheckNothingLeft)

	setMode("share")
	cluster.Publishes(t, "switch", "gpu-0-share")
	ns.Run(t, harness.Pod("share", "switch", harness.FromTemplate("share")))
	ns.HasEnv(t, "share", "main", harness.LegacyEnv(3, 15, 3, 0))
}

func TestBusyNodeWaitsToSwitchItsMode(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	setMode := cluster.Label(t, "switch", modeLabel)
	ns := cluster.Namespace(t)
	ns.Template(t, "card", harness.Requests(harness.Exclusive("gpu", 1)))
	ns.Template(t, "share", harness.Requests(harness.Share("gpu", "3Gi")))
	ns.Run(t, harness.Pod("early", "switch", harness.FromTemplate("share")))

	began := time.Now()
	setMode("default")
	cluster.Publishes(t, "switch", "gpu-0-share "+switchingTaint)
	cluster.WaitNodeEvent(t, "switch", began, "GPUModeSwitchWaiting", "when these have ended: pod "+ns.Name+"/early")
	// There is room for both, but no place: not for a share, nor for the whole GPU.
	ns.Create(t, harness.Pod("late", "switch", harness.FromTemplate("share")),
		harness.Pod("whole", "switch", harness.FromTemplate("card")))
	ns.WaitUnschedulable(t, "late", noRoom)
	ns.WaitUnschedulable(t, "whole", noRoom)
	ns.WaitRunning(t, "early")
	ns.HasEnv(t, "early", "main", harness.LegacyEnv(3, 15, 3, 0))

	// Whoever changes his mind has the node as it was.
	setMode("share")
	cluster.Publishes(t, "switch", "gpu-0-share")
	ns.WaitRunning(t, "late")

	setMode("default")
	cluster.Publishes(t, "switch", "gpu-0-share "+switchingTaint)
	ns.Delete(t, "early", "late")
	cluster.Publishes(t, "switch", "gpu-0")
	ns.WaitRunning(t, "whole")
	ns.SeesItsGPUs(t, "whole", "main", ns.Granted(t, "whole"))

	// The same the other way round.
	setMode("share")
	cluster.Publishes(t, "switch", "gpu-0 "+switchingTaint)
	ns.Delete(t, "whole")
	cluster.Publishes(t, "switch", "gpu-0-share")
}

func TestModeStaysUntilAnotherIsNamed(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	setMode := cluster.Label(t, "switch", modeLabel)
	began := time.Now()
	setMode("shared")
	cluster.WaitNodeEvent(t, "switch", began, "GPUInvalidLabel", `ack.node.gpu.schedule="shared" is not a known value`)
	cluster.Publishes(t, "switch", "gpu-0-share")

	// Without a label, and after the plugin was restarted, too.
	setMode("")
	cluster.ReplacePlugin(t, "switch")
	cluster.Publishes(t, "switch", "gpu-0-share")
	cluster.ShowsAmounts(t, "switch", "15 1 0 0")

	// The older labels are understood where the new one is not set.
	setOlder := cluster.Label(t, "switch", "gpushare")
	setOlder("false")
	cluster.Publishes(t, "switch", "gpu-0")
	setOlder("true")
	cluster.Publishes(t, "switch", "gpu-0-share")
	setMode("default")
	cluster.Publishes(t, "switch", "gpu-0")
	cluster.ShowsAmounts(t, "switch", "0 0 0 0")
	// What the new one overruled does not come back when that is taken off. That the
	// plugin has seen this is told by what it says about the label set next.
	began = time.Now()
	setMode("")
	cluster.Label(t, "switch", maxPodLabel)("none")
	cluster.WaitNodeEvent(t, "switch", began, "GPUInvalidLabel", `ack.node.gpu.max-pod="none"`)
	cluster.Publishes(t, "switch", "gpu-0")
	setMode("share")
	cluster.Publishes(t, "switch", "gpu-0-share")
}

func TestMaxPodLabelLimitsTheSharesOfAGPU(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	setMaxPod := cluster.Label(t, "switch", maxPodLabel)
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	hasSlots := func(want int64) {
		t.Helper()
		cluster.Slice(t, "switch", fmt.Sprintf("has %d slots", want), func(slice *resourceapi.ResourceSlice) error {
			for _, device := range slice.Spec.Devices {
				if slots := device.Capacity["slots"]; slots.Value.Value() != want {
					return fmt.Errorf("it has %s", slots.Value.String())
				}
			}
			return hasDevices(1)(slice)
		})
	}
	setMaxPod("2")
	hasSlots(2)
	ns.Run(t, harness.Pod("a", "switch", harness.FromTemplate("one")),
		harness.Pod("b", "switch", harness.FromTemplate("one")))
	ns.Create(t, harness.Pod("c", "switch", harness.FromTemplate("one")))
	ns.WaitUnschedulable(t, "c", noRoom)

	// A value that means nothing is the default, and is told.
	began := time.Now()
	setMaxPod("many")
	hasSlots(20)
	cluster.WaitNodeEvent(t, "switch", began, "GPUInvalidLabel", `ack.node.gpu.max-pod="many" is not a whole number`)
	ns.WaitRunning(t, "c")
}
