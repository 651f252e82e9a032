// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Where instances are made on demand, each place that one of a profile can have is a device, whether the instance is
// there or not: 25 of an A100 or H100. While a device is allocated, it consumes counters of its GPU: one for each of
// its memory slices, and its engines. So the scheduler allocates no two that cannot be there together. Compute slices
// are not counted: what fits the eight memory slices has no more than seven of them.
//
// The scheduler takes the first device that fits, so the order is the placement. Of a profile the last place comes
// first, and at the very end those behind which a slice is left that no instance can begin at: a 1g at slice 6 of an
// A100 leaves slice 7. Of the 424 orders in which instances that fit one GPU can be asked for, 392 are served so to
// the end; 316 with the last place always first, 287 with the first (TestOrderOfPlacements).

// MemorySlice begins the names of the counters of a GPU's memory slices, one for each.
const MemorySlice = "memory-slice-"

// placements are the devices of a GPU's places, but for those in whose way somebody else's instances are.
func placements(m *gpu.Machine, p gpu.Partitioned, o Options) []resourceapi.Device {
	var devices []resourceapi.Device
	others := o.MIG.ofOthers(p)
	left := enginesLeft(p, others)
	leftOfHeld := enginesLeft(p, slices.Concat(others, o.MIG.heldOf(p)))
	for _, profile := range p.Profiles {
		for _, start := range order(profile, p.Profiles) {
			i := profile.At(start)
			if !o.MIG.made(p, i) && (!within(engines(i), left) || slices.ContainsFunc(others,
				func(other gpu.Instance) bool { return other.PlaceOf().Overlaps(i.PlaceOf()) })) {
				continue
			}
			d := instance(m, p, i, o)
			// Its attributes stay while instances come and go: a pool that changes is passed over for a moment.
			d.Taints = withTaints(d.Taints, o.GPUTaints[uuidAt(p, i.PlaceOf())])
			if slices.ContainsFunc(o.MIG.Held[p.UUID], i.PlaceOf().Overlaps) || !within(engines(i), leftOfHeld) {
				d.Taints = withTaints(d.Taints, []resourceapi.DeviceTaint{
					{Key: v1alpha1.TaintHeld, Effect: resourceapi.DeviceTaintEffectNoSchedule}})
			}
			d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: instanceCounterSet(p.Index),
				Counters: consumed(i)}}
			devices = append(devices, d)
		}
	}
	return devices
}

// order is that in which a profile's places are offered.
func order(profile gpu.Profile, all []gpu.Profile) []int {
	begins, end := map[int]bool{}, 0
	for _, p := range all {
		for _, start := range p.Starts {
			begins[start], end = true, max(end, start+p.Kind.Size)
		}
	}
	begins[end] = true
	starts := slices.Clone(profile.Starts)
	slices.SortFunc(starts, func(a, b int) int {
		wastesA, wastesB := !begins[a+profile.Kind.Size], !begins[b+profile.Kind.Size]
		if wastesA != wastesB {
			if wastesA {
				return 1
			}
			return -1
		}
		return b - a
	})
	return starts
}

// uuidAt is the UUID of the instance in a place; empty where none is.
func uuidAt(p gpu.Partitioned, place gpu.Place) string {
	at := slices.IndexFunc(p.Instances, func(i gpu.Instance) bool { return i.PlaceOf() == place })
	if at < 0 {
		return ""
	}
	return p.Instances[at].UUID
}

// instanceCounters are the counters of the GPUs whose instances are made on demand, a set for each GPU.
func instanceCounters(m *gpu.Machine, o MIGOptions) []resourceapi.CounterSet {
	var sets []resourceapi.CounterSet
	for _, p := range m.Partitioned {
		counters := map[string]resourceapi.Counter{}
		for name, n := range enginesLeft(p, o.ofOthers(p)) {
			// Also of one that nobody has left: a claim's own instance, whose device stays, may consume it.
			counters[name] = counter(n)
		}
		for _, profile := range p.Profiles {
			for _, start := range profile.Starts {
				maps.Copy(counters, slicesOf(profile.At(start)))
			}
		}
		// The API takes no empty set.
		if len(counters) > 0 {
			sets = append(sets, resourceapi.CounterSet{Name: instanceCounterSet(p.Index), Counters: counters})
		}
	}
	return sets
}

// enginesLeft are the engines of a GPU that somebody else's instances do not have, those among them that can be handed
// out or not. There are as many as most instances of one profile have together: the profile of the whole GPU does not
// have all on each model.
func enginesLeft(p gpu.Partitioned, others []gpu.Instance) map[string]int {
	left := map[string]int{}
	for _, profile := range p.Profiles {
		for name, n := range engines(profile.Kind) {
			left[name] = max(left[name], n*profile.Count)
		}
	}
	for _, other := range others {
		for name, n := range engines(other) {
			if all, is := left[name]; is {
				left[name] = max(0, all-n)
			}
		}
	}
	return left
}

// within reports whether there are as many engines left as an instance needs.
func within(needed, left map[string]int) bool {
	for name, n := range needed {
		if n > left[name] {
			return false
		}
	}
	return true
}

func instanceCounterSet(index int) string { return fmt.Sprintf("mig-%s", counterName(index)) }

// consumed is what an instance takes of its GPU.
func consumed(i gpu.Instance) map[string]resourceapi.Counter {
	counters := slicesOf(i)
	for name, n := range engines(i) {
		counters[name] = counter(n)
	}
	return counters
}

func slicesOf(i gpu.Instance) map[string]resourceapi.Counter {
	counters := map[string]resourceapi.Counter{}
	for slice := i.Start; slice < i.Start+i.Size; slice++ {
		counters[fmt.Sprintf(MemorySlice+"%d", slice)] = counter(1)
	}
	return counters
}

// engines are those that an instance has to itself, but for kinds of which it has none. Copy engines are left out: A100
// has fewer of them than the instances that fit would have together.
func engines(i gpu.Instance) map[string]int {
	all := map[string]int{"decoders": i.Decoders, "encoders": i.Encoders, "jpeg-engines": i.JPEGs, "ofa-engines": i.OFAs}
	maps.DeleteFunc(all, func(_ string, n int) bool { return n == 0 })
	return all
}

func counter(n int) resourceapi.Counter {
	return resourceapi.Counter{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
}
