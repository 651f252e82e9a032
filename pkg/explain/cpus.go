// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// cpusPage is where the versions and settings of dra-driver-cpu are said.
const cpusPage = ": docs/legacy.md#cpus-of-a-containers-own"

// CPUsUnfit says why devices of dra-driver-cpu serve no claims for CPUs near GPUs, and what would; both are empty where
// they do.
func CPUsUnfit(devices []resourceapi.Device) (why, do string) {
	for i := range devices {
		by, _ := legacy.GroupingOf(&devices[i])
		if why, do = unfit(by); why != "" {
			break
		}
	}
	return why, do
}

func unfit(by legacy.Grouping) (why, do string) {
	switch by {
	case legacy.ByOldNUMANode:
		return "the devices of class dra.cpu have no attribute resource.kubernetes.io/numaNode, as with release 0.2.0 of " +
				"dra-driver-cpu: which CPUs are near a GPU cannot be told",
			"a dra-driver-cpu of its main branch, from 2026-08-13 on" + cpusPage
	case legacy.ByMachine:
		return "all CPUs are one device of class dra.cpu, which only another scheduler can give away",
			"dra-driver-cpu with groupBy: numanode" + cpusPage
	case legacy.EachCPU:
		return "each CPU is a device of class dra.cpu of its own", "dra-driver-cpu in its mode grouped" + cpusPage
	}
	return "", ""
}

// lackOfCPUs says what a node has of the CPUs that are asked for, against where its GPUs are, and what would help.
func lackOfCPUs(node string, c *scheduling.CPUs) (lacks, helps string) {
	why, do := unfit(c.By)
	switch serves := !c.GPUs && c.By == legacy.ByOldNUMANode; {
	case len(c.Free) == 0:
		return "no devices of class dra.cpu", "dra-driver-cpu on node " + node + ", which publishes its CPUs" + cpusPage
	case why != "" && !serves:
		return why, do + ", on node " + node
	}
	free := make([]string, 0, len(c.Free))
	for _, f := range c.Free {
		text := fmt.Sprint(f.CPUs)
		if c.By == legacy.ByNUMANode {
			text += fmt.Sprintf(" on NUMA node %d", f.NUMANode)
		}
		free = append(free, text)
	}
	lacks = fmt.Sprintf("CPUs of class dra.cpu: asked %s, free %s", numbers(c.Asked, " and "), list(free))
	switch {
	case len(c.GPUNodes) > 0:
		lacks += "; GPUs for it are free on NUMA node " + numbers(c.GPUNodes, ", ")
	case c.GPUs:
		lacks += "; the GPUs for it show no NUMA node"
	case why != "":
		lacks += "; " + why
	}
	most := slices.MaxFunc(c.Free, func(a, b scheduling.FreeCPUs) int { return cmp.Compare(a.CPUs, b.CPUs) })
	if asked := slices.Max(c.Asked); asked > most.CPUs {
		return lacks, fmt.Sprintf("fewer CPUs for a container, or %d more of one device free on node %s", asked-most.CPUs,
			node)
	}
	return lacks, "CPUs and GPUs that are free on one NUMA node of node " + node + ": claims of class dra.cpu hold the " +
		"CPUs near the GPUs, or others the GPUs near the CPUs"
}

func numbers(of []int64, separator string) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(of), " ", separator), "[]")
}
