// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// A GPU that another DRA driver publishes, too, takes no claims here, and whoever waits is told so.
// Once the administrator has said whose it is, it does as soon as no pod has it from the other.
func TestGPUThatAnotherDRADriverPublishes(t *testing.T) {
	t.Parallel()
	const node, nvidia = "switch", "gpu.nvidia.com"
	const closed = "gpu-0-share gpu.aliyun.com/other-driver:NoSchedule"
	cluster.Whole(t, node)
	setMode, setDriver := cluster.Label(t, node, modeLabel), cluster.Label(t, node, "gpu.aliyun.com/gpu-driver")
	setMode("share")
	ns := cluster.Namespace(t)
	ns.Template(t, "ours", harness.Requests(harness.Share("gpu", "3Gi")))
	theirs := ns.DeviceClass(t, resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
		CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", nvidia)}}}})
	ns.Template(t, "theirs", harness.Requests(harness.Exactly(&resourceapi.ExactDeviceRequest{DeviceClassName: theirs})))
	cluster.Publishes(t, node, "gpu-0-share")
	ns.Run(t, harness.Pod("early", node, harness.FromTemplate("ours")))
	before := ns.Containers(t)

	began := time.Now()
	stop := cluster.DRADriver(t, node, nvidia, cluster.GPUs(t, node)[0].UUID)
	cluster.Publishes(t, node, closed)
	cluster.WaitNodeEvent(t, node, began, "GPUOtherDriver", "GPU 0 (gpu.nvidia.com)")
	ns.Create(t, harness.Pod("late", node, harness.FromTemplate("ours")))
	ns.WaitPodEvent(t, "late", "GPUClaimWaiting", "another DRA driver publishes")
	if out, notes := cluster.Inspect(t, node); !strings.Contains(out+notes, "gpu-0 (gpu.nvidia.com)") {
		t.Errorf("inspect cgpu says\n%s\n%s", out, notes)
	}

	// Who has it there keeps it closed, whatever the administrator says, also when that driver is gone.
	ns.Run(t, harness.Pod("theirs", node, harness.FromTemplate("theirs")))
	cluster.WaitNodeEvent(t, node, began, "GPUOtherDriver", "held by "+ns.Name+"/theirs")
	setDriver("gpu.aliyun.com")
	cluster.Publishes(t, node, closed)
	ns.Delete(t, "theirs")
	cluster.Publishes(t, node, "gpu-0-share")
	ns.WaitRunning(t, "late")
	setDriver("")
	cluster.Publishes(t, node, closed)
	stop()
	cluster.Publishes(t, node, "gpu-0-share")
	ns.KeptRunning(t, before)
}
