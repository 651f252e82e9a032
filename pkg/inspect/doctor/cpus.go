// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// cpusOfOwn looks for nodes with GPUs whose dra-driver-cpu publishes CPUs that no pod can have near these.
func cpusOfOwn(s *Snapshot) []Finding {
	published, told := devices.Published(s.Slices), map[string]bool{}
	var out []Finding
	for _, slice := range s.CPUs {
		node := ptr.Deref(slice.Spec.NodeName, "")
		if slice.Spec.Driver != legacy.ClassCPUs || told[node] || len(published[node]) == 0 {
			continue
		}
		why, do := unfit(slice.Spec.Devices)
		switch {
		case why != "":
			why += ": claims for CPUs near its GPUs, and pods with the annotation cpuset-scheduler, wait"
		case slices.ContainsFunc(slice.Spec.Devices, isMapped):
			why = "the devices of class dra.cpu map to node-allocatable resources: a container that uses CPUs and GPUs of one " +
				"claim never starts"
			do = "dra-driver-cpu without publishNodeAllocatableResourceMapping: docs/legacy.md#cpus-of-a-containers-own"
		default:
			continue
		}
		told[node] = true
		out = append(out, Finding{Level: Warning, Object: "node/" + node, Text: why, Do: "run " + do})
	}
	return out
}

// isMapped reports whether the scheduler counts what claims have of a device as the node's (KEP-5517). The API server
// keeps that only with the feature gate.
func isMapped(d resourceapi.Device) bool { return len(d.NodeAllocatableResources) > 0 }

// unfit is explain.CPUsUnfit of the first of some devices that is.
func unfit(of []resourceapi.Device) (why, do string) {
	for i := range of {
		by, _ := legacy.GroupingOf(&of[i])
		if why, do = explain.CPUsUnfit(by); why != "" {
			break
		}
	}
	return why, do
}
