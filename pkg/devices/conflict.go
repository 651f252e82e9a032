// SPDX-License-Identifier: Apache-2.0

package devices

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Claims can be allocated what cannot be had together, as by two schedulers, or somebody else makes a MIG instance
// where one of a claim was. The scheduler's allocator takes each counter of the pool below zero for one that a claim
// exceeds, whichever devices the claim is for (checkAvailableCounters): no GPU of the node would be given away. So a
// counter is published as no lower than what is known to be consumed of it.
//
// What is published before the plugin knows of a conflict cannot help: a counter that keeps a second claim off has no
// room for it, and a set of counters for each GPU changes nothing, for those of all sets are compared. A pool for each
// GPU would bound that as well, but the scheduler goes through pools by their names, which allocations have: GPUs could
// not be ordered by how full they are, and linked sets are of several.

// counterOf is one counter of a pool.
type counterOf struct{ set, name string }

// closeConflicts raises the counters that the allocated devices exceed, and closes all devices that consume one of
// them: of what is given back first nobody is to have more than there is.
func closeConflicts(devices []resourceapi.Device, sets []resourceapi.CounterSet, o Options) {
	consumed := map[counterOf]int64{}
	for _, d := range devices {
		if o.allocated(d.Name) {
			eachCounter(d, func(c counterOf, n int64) { consumed[c] += n })
		}
	}
	exceeded := map[counterOf]bool{}
	for _, set := range sets {
		for name, c := range set.Counters {
			of := counterOf{set.Name, name}
			if n := consumed[of]; n > c.Value.Value() {
				set.Counters[name], exceeded[of] = counter(int(n)), true
			}
		}
	}
	taint := []resourceapi.DeviceTaint{{Key: v1alpha1.TaintConflict, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	for i := range devices {
		eachCounter(devices[i], func(c counterOf, _ int64) {
			if exceeded[c] {
				devices[i].Taints = withTaints(devices[i].Taints, taint)
			}
		})
	}
}

func eachCounter(d resourceapi.Device, see func(c counterOf, n int64)) {
	for _, of := range d.ConsumesCounters {
		for name, c := range of.Counters {
			see(counterOf{of.CounterSet, name}, c.Value.Value())
		}
	}
}

// allocated reports whether the device is known to be: MIG instances that were made for claims are.
func (o Options) allocated(device string) bool {
	for _, made := range o.MIG.Made {
		if made[device] {
			return true
		}
	}
	return o.Allocated[device]
}
