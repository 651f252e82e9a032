// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestNodesPublishTheirGPUs(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{
		"fill": {
			"gpu-0-share Tesla-V100-SXM2-16GB 0000:00:08.0 memory=15Gi/1Gi cores=100/0 slots=20/1 mode=share isolation=none " +
				"mib=16130 nvlink=1,2,3@50",
			"gpu-1-share Tesla-V100-SXM2-16GB 0000:00:09.0 memory=15Gi/1Gi cores=100/0 slots=20/1 mode=share isolation=none " +
				"mib=16130 nvlink=0,2,3@50",
			"gpu-2-share Tesla-V100-SXM2-16GB 0000:00:0a.0 memory=15Gi/1Gi cores=100/0 slots=20/1 mode=share isolation=none " +
				"mib=16130 nvlink=0,1,3@50",
			"gpu-3-share Tesla-V100-SXM2-16GB 0000:00:0b.0 memory=15Gi/1Gi cores=100/0 slots=20/1 mode=share isolation=none " +
				"mib=16130 nvlink=0,1,2@50",
		},
		"share": {
			"gpu-0-share NVIDIA-A10 0000:17:00.0 memory=22Gi/1Gi cores=100/0 slots=20/1 mode=share isolation=none mib=23028 " +
				"nvlink=@0",
			"gpu-1-share NVIDIA-A10 0000:31:00.0 memory=22Gi/1Gi cores=100/0 slots=20/1 mode=share isolation=none mib=23028 " +
				"nvlink=@0",
			"gpu-2-share NVIDIA-A10 0000:b1:00.0 memory=22Gi/1Gi cores=100/0 slots=20/1 mode=share isolation=none mib=23028 " +
				"nvlink=@0",
			"gpu-3-share NVIDIA-A10 0000:ca:00.0 memory=22Gi/1Gi cores=100/0 slots=20/1 mode=share isolation=none mib=23028 " +
				"nvlink=@0",
		},
		"whole": {
			"gpu-0 NVIDIA-A100-SXM4-80GB 0000:07:00.0 memory=80Gi cores=100 mode=exclusive isolation=whole-card mib=81920 " +
				"nvlink=1,2,3,4,5,6,7@300",
			"gpu-1 NVIDIA-A100-SXM4-80GB 0000:0b:00.0 memory=80Gi cores=100 mode=exclusive isolation=whole-card mib=81920 " +
				"nvlink=0,2,3,4,5,6,7@300",
			"gpu-2 NVIDIA-A100-SXM4-80GB 0000:48:00.0 memory=80Gi cores=100 mode=exclusive isolation=whole-card mib=81920 " +
				"nvlink=0,1,3,4,5,6,7@300",
			"gpu-3 NVIDIA-A100-SXM4-80GB 0000:4c:00.0 memory=80Gi cores=100 mode=exclusive isolation=whole-card mib=81920 " +
				"nvlink=0,1,2,4,5,6,7@300",
			"gpu-4 NVIDIA-A100-SXM4-80GB 0000:88:00.0 memory=80Gi cores=100 mode=exclusive isolation=whole-card mib=81920 " +
				"nvlink=0,1,2,3,5,6,7@300",
			"gpu-5 NVIDIA-A100-SXM4-80GB 0000:8b:00.0 memory=80Gi cores=100 mode=exclusive isolation=whole-card mib=81920 " +
				"nvlink=0,1,2,3,4,6,7@300",
			"gpu-6 NVIDIA-A100-SXM4-80GB 0000:c8:00.0 memory=80Gi cores=100 mode=exclusive isolation=whole-card mib=81920 " +
				"nvlink=0,1,2,3,4,5,7@300",
			"gpu-7 NVIDIA-A100-SXM4-80GB 0000:cb:00.0 memory=80Gi cores=100 mode=exclusive isolation=whole-card mib=81920 " +
				"nvlink=0,1,2,3,4,5,6@300",
		},
		"mixed": {
			"gpu-0 NVIDIA-A10 0000:17:00.0 memory=23028Mi cores=100 mode=exclusive isolation=whole-card mib=23028 nvlink=@0",
			"gpu-1 NVIDIA-A10 0000:31:00.0 memory=23028Mi cores=100 mode=exclusive isolation=whole-card mib=23028 nvlink=@0",
			"gpu-2 Tesla-T4 0000:b1:00.0 memory=15Gi cores=100 mode=exclusive isolation=whole-card mib=15360 nvlink=@0",
			"gpu-3 Tesla-T4 0000:ca:00.0 memory=15Gi cores=100 mode=exclusive isolation=whole-card mib=15360 nvlink=@0",
		},
	}
	uuids := map[string]string{}
	for _, node := range slices.Sorted(maps.Keys(tests)) {
		want := tests[node]
		// Other tests change the mode of a node that they have to themselves.
		cluster.Share(t, node)
		slice := cluster.Slice(t, node, "is as expected", func(slice *resourceapi.ResourceSlice) error {
			return expect.Diff(want, slices.Sorted(slices.Values(inShort(slice))))
		})
		if got, want := slice.Spec.Pool.Name, node+"/gpu"; got != want {
			t.Errorf("the pool of node %s is %q, want %q", node, got, want)
		}
		for _, g := range cluster.GPUs(t, node) {
			if other := uuids[g.UUID]; other != "" {
				t.Errorf("GPU %s of node %s has the UUID of %s", g.Device, node, other)
			}
			uuids[g.UUID] = g.Device + " of node " + node
		}
	}
}

// inShort writes one line for each device, with capacities as amount/default.
func inShort(slice *resourceapi.ResourceSlice) []string {
	var lines []string
	for _, device := range slice.Spec.Devices {
		text := func(name resourceapi.QualifiedName) string { return ptr.Deref(device.Attributes[name].StringValue, "") }
		number := func(name resourceapi.QualifiedName) int64 { return ptr.Deref(device.Attributes[name].IntValue, 0) }
		fields := []string{device.Name, text("model"), text("resource.kubernetes.io/pciBusID")}
		for _, name := range []resourceapi.QualifiedName{"memory", "cores", "slots"} {
			if capacity, ok := device.Capacity[name]; ok {
				fields = append(fields, fmt.Sprintf("%s=%s", name, inShortCapacity(capacity)))
			}
		}
		fields = append(fields,
			"mode="+text("mode"), "isolation="+text("isolation"), fmt.Sprintf("mib=%d", number("memoryMiB")),
			fmt.Sprintf("nvlink=%s@%d", text("nvlinkPeers"), number("nvlinkGBps")))
		for _, taint := range device.Taints {
			fields = append(fields, fmt.Sprintf("taint=%s:%s", taint.Key, taint.Effect))
		}
		lines = append(lines, strings.Join(fields, " "))
	}
	return lines
}

func inShortCapacity(capacity resourceapi.DeviceCapacity) string {
	if capacity.RequestPolicy == nil {
		return capacity.Value.String()
	}
	return capacity.Value.String() + "/" + capacity.RequestPolicy.Default.String()
}
