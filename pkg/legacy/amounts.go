// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Names lists the resources.
func Names() []corev1.ResourceName {
	return []corev1.ResourceName{ack.ResourceMemory, ack.ResourceCount, ack.ResourceCores, ack.ResourceGPUs}
}

// served are those that device plugins serve. Count is not: ACK's plugin only
// writes it into the node's status, and nobody is given a GPU by it.
func served() []corev1.ResourceName {
	return []corev1.ResourceName{ack.ResourceMemory, ack.ResourceCores, ack.ResourceGPUs}
}

// wholePercent is the compute of a GPU.
const wholePercent = 100

// Of returns the amounts of a node that offers these GPUs, one entry for each mode
// that a GPU is offered in, ordered by index. What no GPU is offered for is 0, as
// ACK's nodes show the resources of all other modes.
//
// A GPU's memory is counted in whole GiB, rounded down for each GPU by itself;
// so mixed GPUs add up to what can be asked for, where tools that divide the sum
// by the number of GPUs show an average. A GPU that is offered in several modes
// (dynamic nodes) counts in full for each resource.
func Of(offered []view.GPU) corev1.ResourceList {
	var memory, count, cores, gpus int64
	last := int64(-1)
	for _, g := range offered {
		if g.Mode.Shared() && g.Index != last {
			last = g.Index
			count++
			memory += gpu.GPU{MemoryMiB: g.MemoryMiB}.MemoryUnits()
		}
		switch g.Mode {
		case mode.CoreMem:
			cores += wholePercent
		case mode.Topology:
			gpus++
		}
	}
	return corev1.ResourceList{ack.ResourceMemory: quantity(memory), ack.ResourceCount: quantity(count),
		ack.ResourceCores: quantity(cores), ack.ResourceGPUs: quantity(gpus)}
}

func quantity(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }

// Pick returns what the list says of the resources.
func Pick(list corev1.ResourceList) corev1.ResourceList {
	picked := corev1.ResourceList{}
	for _, name := range Names() {
		if amount, ok := list[name]; ok {
			picked[name] = amount
		}
	}
	return picked
}

// Equal reports whether both lists have the same of each of the resources.
func Equal(a, b corev1.ResourceList) bool {
	for _, name := range Names() {
		first, inA := a[name]
		second, inB := b[name]
		if inA != inB || first.Cmp(second) != 0 {
			return false
		}
	}
	return true
}
