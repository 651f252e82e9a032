// SPDX-License-Identifier: Apache-2.0

package doctor

import (
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
		if why, do := explain.CPUsUnfit(slice.Spec.Devices); why != "" {
			told[node] = true
			out = append(out, Finding{Level: Warning, Object: "node/" + node, Do: "run " + do,
				Text: why + ": claims for CPUs near its GPUs, and pods with the annotation cpuset-scheduler, wait"})
		}
	}
	return out
}
