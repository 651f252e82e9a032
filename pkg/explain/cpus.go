// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// cpusPage is where the versions and settings of dra-driver-cpu are said.
const cpusPage = "docs/legacy.md#cpus-of-a-containers-own"

// CPUsUnfit says why devices of dra-driver-cpu serve no claims for CPUs near GPUs, and what would; both are empty where
// they do.
func CPUsUnfit(by legacy.Grouping) (why, do string) {
	switch by {
	case legacy.ByOldNUMANode:
		return "the devices of class dra.cpu have no attribute resource.kubernetes.io/numaNode, as with release 0.2.0 of " +
				"dra-driver-cpu: which CPUs are near a GPU cannot be told",
			"a dra-driver-cpu of its main branch, from 2026-08-13 on: " + cpusPage
	case legacy.ByMachine:
		return "all CPUs are one device of class dra.cpu, which only another scheduler can give away",
			"dra-driver-cpu with groupBy: numanode: " + cpusPage
	case legacy.EachCPU:
		return "each CPU is a device of class dra.cpu of its own", "dra-driver-cpu in its mode grouped: " + cpusPage
	default:
		return "", ""
	}
}

// lackOfCPUs says what a node has of the CPUs that are asked for, against where its GPUs are.
func lackOfCPUs(c *scheduling.CPUs) string {
	unfit, _ := CPUsUnfit(c.By)
	switch {
	case !c.Published:
		return "no devices of class " + legacy.ClassCPUs
	case unfit != "" && !servesAlone(c):
		return unfit
	}
	asked := make([]string, 0, len(c.Asked))
	for _, amount := range c.Asked {
		asked = append(asked, fmt.Sprint(amount))
	}
	var free, gpus []string
	for _, f := range c.Free {
		text := fmt.Sprint(f.Free)
		if c.By == legacy.ByNUMANode {
			text += fmt.Sprintf(" on NUMA node %d", f.NUMANode)
		}
		free = append(free, text)
	}
	for _, node := range c.GPUNodes {
		gpus = append(gpus, fmt.Sprint(node))
	}
	text := fmt.Sprintf("CPUs of class %s: asked %s, free %s", legacy.ClassCPUs, strings.Join(asked, " and "), list(free))
	switch {
	case c.GPUs && len(gpus) > 0:
		text += "; GPUs for it are free on NUMA node " + strings.Join(gpus, ", ")
	case c.GPUs:
		text += "; the GPUs for it show no NUMA node"
	case unfit != "":
		text += "; " + unfit
	}
	return text
}

// servesAlone reports whether devices that are not compared with GPUs serve claims without GPUs.
func servesAlone(c *scheduling.CPUs) bool { return !c.GPUs && c.By == legacy.ByOldNUMANode }

// helpCPUs says what would help on a node that lacks CPUs alone.
func helpCPUs(node string, c *scheduling.CPUs) string {
	if _, do := CPUsUnfit(c.By); do != "" && c.Published && !servesAlone(c) {
		return do + ", on node " + node
	}
	if !c.Published {
		return "dra-driver-cpu on node " + node + ", which publishes its CPUs: " + cpusPage
	}
	most := slices.MaxFunc(c.Free, func(a, b scheduling.FreeCPUs) int { return cmp.Compare(a.Free, b.Free) })
	asked := slices.Max(c.Asked)
	switch {
	case asked <= most.Free && c.GPUs:
		return "CPUs and GPUs that are free on one NUMA node of node " + node + ": claims of class " + legacy.ClassCPUs +
			" hold CPUs near the GPUs, or other pods the GPUs near the CPUs"
	case c.By == legacy.ByNUMANode:
		return fmt.Sprintf("fewer CPUs for a container, or %d more free on NUMA node %d of node %s", max(1, asked-most.Free),
			most.NUMANode, node)
	default:
		return fmt.Sprintf("fewer CPUs for a container, or %d more free on node %s", max(1, asked-most.Free), node)
	}
}
