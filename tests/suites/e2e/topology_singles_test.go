// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// publishesSingleGPUs checks that the node offers these GPUs, in this order, one
// by one, in one slice and without counters.
func publishesSingleGPUs(t *testing.T, node string, indices ...int) {
	t.Helper()
	var want []string
	for _, index := range indices {
		want = append(want, fmt.Sprintf("gpu-%d-topology", index))
	}
	cluster.Slice(t, node, "is the only one, with single GPUs in order", func(slice *resourceapi.ResourceSlice) error {
		var got []string
		for _, device := range slice.Spec.Devices {
			got = append(got, device.Name)
			if len(device.ConsumesCounters) > 0 {
				return fmt.Errorf("%s consumes counters", device.Name)
			}
		}
		if diff := expect.Diff(want, got); diff != nil || slice.Spec.Pool.ResourceSliceCount != 1 {
			return fmt.Errorf("%d slices, devices %v", slice.Spec.Pool.ResourceSliceCount, diff)
		}
		return nil
	})
}

// On an NVSwitch machine all GPUs are linked alike: claims for linked GPUs get single ones, and no GPUs are counted. A
// GPU whose lane to the NVSwitches is down is offered after the others, and an Event of the node tells it.
func TestTopologyWithALaneDown(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "whole")
	setMode := cluster.Label(t, "whole", modeLabel)
	ns := cluster.Namespace(t)
	linkedTemplates(t, ns)
	setMode("topology")
	publishesSingleGPUs(t, "whole", 0, 1, 2, 3, 4, 5, 6, 7)

	began := time.Now()
	repair := changeMachine(t, "whole", func(s *sim.Spec) { s.GPUs[3].NVSwitchLanes = ptr.To(s.NVSwitchLanes - 1) })
	cluster.WaitNodeEvent(t, "whole", began, "GPUNVLinkDegraded", "GPU 3 has 11 NVLink lanes to NVSwitches, others of "+
		"its model have 12")
	publishesSingleGPUs(t, "whole", 0, 1, 2, 4, 5, 6, 7, 3)
	ns.Run(t, harness.Pod("four", "whole", harness.FromTemplate("cards-4")))
	grants := ns.Granted(t, "four")
	if diff := expect.Diff([]int{0, 1, 2, 4}, grantedIndices(grants)); diff != nil || grants[0].Request != "gpus/any" {
		t.Errorf("request %s got %v", grants[0].Request, diff)
	}
	ns.Delete(t, "four")

	repair()
	publishesSingleGPUs(t, "whole", 0, 1, 2, 3, 4, 5, 6, 7)
	setMode("default")
	cluster.Publishes(t, "whole", "gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-7")
}
