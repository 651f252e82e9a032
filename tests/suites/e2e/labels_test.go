// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	modeLabel = "ack.node.gpu.schedule"

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
