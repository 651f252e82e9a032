// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// profilesOfA100 are those of an A100 with 80 GB (source: NVIDIA MIG user guide).
func profilesOfA100() []gpu.Profile {
	profile := func(id int, name string, size, count, decoders, jpegs, ofas int, starts ...int) gpu.Profile {
		return gpu.Profile{Starts: starts, Count: count, Kind: gpu.Instance{ProfileID: id, Profile: name, Size: size,
			MemoryMiB: int64(size) * 9728, Decoders: decoders, JPEGs: jpegs, OFAs: ofas}}
	}
	return []gpu.Profile{
		profile(19, "1g.10gb", 1, 7, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6), profile(20, "1g.10gb+me", 1, 1, 1, 1, 1, 0, 1, 2,
			3, 4, 5, 6),
		profile(15, "1g.20gb", 2, 4, 1, 0, 0, 0, 2, 4, 6), profile(14, "2g.20gb", 2, 3, 1, 0, 0, 0, 2, 4),
		profile(9, "3g.40gb", 4, 2, 2, 0, 0, 0, 4), profile(5, "4g.40gb", 4, 1, 2, 0, 0, 0),
		profile(0, "7g.80gb", 8, 1, 5, 1, 1, 0),
	}
}

// onDemand is a node with so many GPUs in MIG mode of which instances are made on demand.
func onDemand(gpus int, instances ...gpu.Instance) *gpu.Machine {
	m := &gpu.Machine{DriverVersion: "570.124.06", CUDADriverVersion: "12.8"}
	for i := range gpus {
		p := cutA100(i, instances...)
		p.Profiles = profilesOfA100()
		m.Partitioned = append(m.Partitioned, p)
	}
	return m
}

func TestPlacesAreDevices(t *testing.T) {
	var oneSlice []string
	for _, start := range []int{5, 4, 3, 2, 1, 0, 6} {
		oneSlice = append(oneSlice, fmt.Sprintf("gpu-0-mig-1g-10gb-%d", start))
	}
	all := built(onDemand(1), migOptions(mode.Exclusive))
	if len(all) != 25 || !slices.Equal(allOf(all)[:7], oneSlice) {
		t.Errorf("%d devices, %v", len(all), allOf(all))
	}
	// Those in whose way somebody else's instance is are not offered, and that is, as it is.
	foreign := gpu.Instance{InstanceID: gpu.InstanceID{GI: 2}, UUID: "MIG-f", ProfileID: 9, Profile: "3g.40gb",
		Start: 0, Size: 4}
	all = built(onDemand(1, foreign), migOptions(mode.Exclusive))
	names := allOf(all)
	if names[0] != "gpu-0-mig-3g-40gb-0" || len(all[0].ConsumesCounters) > 0 || slices.Contains(names,
		"gpu-0-mig-7g-80gb-0") ||
		slices.Contains(names, "gpu-0-mig-1g-10gb-3") || !slices.Contains(names, "gpu-0-mig-3g-40gb-4") {
		t.Errorf("beside somebody else's: %v", names)
	}
	// What is published stays the same when a claim's instance is made.
	o := migOptions(mode.Exclusive)
	o.MIG.Made = map[string]map[string]bool{"GPU-0": {"gpu-0-mig-3g-40gb-0": true}}
	before := built(onDemand(1), o)
	expect.Equal(t, before, built(onDemand(1, foreign), o), "the instance of a claim changes what is published")
	o.GPUTaints = map[string][]resourceapi.DeviceTaint{"MIG-f": {{Key: "k", Effect: "NoSchedule"}}}
	for _, d := range built(onDemand(1, foreign), o) {
		expect.Equal(t, len(d.Taints) > 0, (d.Name == "gpu-0-mig-3g-40gb-0"), "%s has the taints %v", d.Name, d.Taints)
	}
}

// The API server takes no pool with two devices of one name.
func TestPlacesHaveNamesOfTheirOwn(t *testing.T) {
	for _, table := range sim.MIGTables() {
		m, all := onDemand(1), 0
		p := &m.Partitioned[0]
		p.Profiles = nil
		for _, profile := range sim.MIGTable(table) {
			p.Profiles = append(p.Profiles, profile.Profile)
			all += len(profile.Starts)
		}
		names := map[string]string{}
		for _, d := range built(m, migOptions(mode.Exclusive)) {
			profile := *d.Attributes[v1alpha1.AttrProfile].StringValue
			if other, taken := names[d.Name]; taken {
				t.Errorf("%s: %s is one of %s and of %s", table, d.Name, other, profile)
			}
			names[d.Name] = profile
			if i, there := devices.PlacementNamed(*p, d.Name); !there || i.Profile != profile {
				t.Errorf("%s: %s is taken for one of %q, want %s", table, d.Name, i.Profile, profile)
			}
		}
		expect.Equal(t, all, len(names), "%s: names of places", table)
	}
}

// Engines of somebody else's instances are not there for claims: a place that needs more than is left is not offered,
// as no instance could be made there. Those of a claim's instance are counted by its device.
func TestEnginesOfOthersAreTaken(t *testing.T) {
	at := func(i gpu.Instance, start int) gpu.Instance {
		i.Start = start
		return i
	}
	two := gpu.Instance{UUID: "MIG-two", ProfileID: 15, Profile: "1g.20gb", Size: 2, Decoders: 1}
	closed := at(small, 0)
	closed.UUID, closed.LeftOut = "", "it has no compute instance"
	made := map[string]map[string]bool{"GPU-0": {"gpu-0-mig-1g-10gb-me-0": true}}
	for name, test := range map[string]struct {
		there    []gpu.Instance
		made     map[string]map[string]bool
		media    int
		counters map[string]int64
	}{
		"none":                  {nil, nil, 7, map[string]int64{"decoders": 5, "jpeg-engines": 1, "ofa-engines": 1}},
		"one with all JPEG":     {[]gpu.Instance{at(small, 0)}, nil, 0, map[string]int64{"decoders": 4}},
		"without a compute one": {[]gpu.Instance{closed}, nil, 0, map[string]int64{"decoders": 4}},
		"decoders alone": {[]gpu.Instance{at(two, 0), at(two, 2)}, nil, 3,
			map[string]int64{"decoders": 3, "jpeg-engines": 1, "ofa-engines": 1}},
		"of a claim": {[]gpu.Instance{at(small, 0)}, made, 7,
			map[string]int64{"decoders": 5, "jpeg-engines": 1, "ofa-engines": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			o := migOptions(mode.Exclusive)
			o.MIG.Made = test.made
			pool, counters, media := devices.Build(onDemand(1, test.there...), o).Pools["p"], map[string]int64{}, 0
			for _, s := range pool.Slices {
				for _, set := range s.SharedCounters {
					for name, c := range set.Counters {
						if n := c.Value.Value(); n > 0 && !strings.HasPrefix(name, devices.MemorySlice) {
							counters[name] = n
						}
					}
				}
				for _, d := range s.Devices {
					if *d.Attributes["profile"].StringValue == "1g.10gb+me" && len(d.ConsumesCounters) > 0 {
						media++
					}
				}
			}
			if diff := expect.Diff(test.counters, counters); diff != nil || media != test.media {
				t.Errorf("%d places of 1g.10gb+me, want %d; counters %v", media, test.media, diff)
			}
		})
	}
}

// An instance of a claim that is gone keeps its place and its engines until it is destroyed.
func TestWhatHeldInstancesHaveIsClosed(t *testing.T) {
	o := migOptions(mode.Exclusive)
	o.MIG.Made = map[string]map[string]bool{"GPU-0": {"gpu-0-mig-1g-10gb-me-6": true}}
	o.MIG.Held = map[string][]gpu.Place{"GPU-0": {small.PlaceOf()}}
	for _, d := range built(onDemand(1, small), o) {
		start, size := *d.Attributes["placementStart"].IntValue, *d.Attributes["placementSize"].IntValue
		want := start+size > 6 && start <= 6 || *d.Attributes["profile"].StringValue == "1g.10gb+me"
		if closed := slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
			return t.Key == v1alpha1.TaintHeld
		}); closed != want {
			t.Errorf("%s is closed: %v", d.Name, closed)
		}
	}
}

// Where instances are not made on demand nothing is counted.
func TestCutGPUsHaveNoCounters(t *testing.T) {
	for _, s := range devices.Build(migMachine(), migOptions(mode.Exclusive)).Pools["p"].Slices {
		if len(s.SharedCounters) > 0 {
			t.Errorf("there are the counters %v", s.SharedCounters)
		}
	}
}

// Eight GPUs and more keep within the limits of the API.
func TestPlacesKeepWithinTheAPILimits(t *testing.T) {
	pool := devices.Build(onDemand(9), migOptions(mode.Exclusive)).Pools["p"]
	sets, count := 0, 0
	for _, s := range pool.Slices {
		sets += len(s.SharedCounters)
		count += len(s.Devices)
		if len(s.Devices) > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures ||
			len(s.SharedCounters) > resourceapi.ResourceSliceMaxCounterSets || len(s.Devices) > 0 && len(s.SharedCounters) > 0 {
			t.Errorf("a slice of %d devices and %d counter sets", len(s.Devices), len(s.SharedCounters))
		}
		for _, set := range s.SharedCounters {
			if len(set.Counters) == 0 || len(set.Counters) > resourceapi.ResourceSliceMaxCountersPerCounterSet {
				t.Errorf("set %s has %d counters", set.Name, len(set.Counters))
			}
		}
	}
	if sets != 9 || count != 9*25 {
		t.Errorf("%d counter sets, %d devices", sets, count)
	}
}

// fill allocates profiles one after the other, as the scheduler does: the first device whose counters are free. It
// returns how many it could.
func fill(pool []resourceapi.Device, counters map[string]int64, profiles []string) int {
	left := map[string]int64{}
	for name, n := range counters {
		left[name] = n
	}
	for n, profile := range profiles {
		at := slices.IndexFunc(pool, func(d resourceapi.Device) bool {
			if *d.Attributes["profile"].StringValue != profile {
				return false
			}
			for name, c := range d.ConsumesCounters[0].Counters {
				if left[name] < c.Value.Value() {
					return false
				}
			}
			return true
		})
		if at < 0 {
			return n
		}
		for name, c := range pool[at].ConsumesCounters[0].Counters {
			left[name] -= c.Value.Value()
		}
	}
	return len(profiles)
}

// arrivals are all orders in which instances can be asked for that fit a GPU together.
func arrivals(pool []resourceapi.Device, counters map[string]int64, names []string) (orders [][]string) {
	var grow func(multiset []string, from int)
	grow = func(multiset []string, from int) {
		if len(multiset) > 0 {
			orders = append(orders, permutations(multiset)...)
		}
		for n := from; n < len(names); n++ {
			next := append(slices.Clone(multiset), names[n])
			if sizeOf(next) <= 8 && placeable(pool, counters, next) {
				grow(next, n)
			}
		}
	}
	slices.Sort(names)
	grow(nil, 0)
	return orders
}

// sizeOf is how many memory slices they have together.
func sizeOf(profiles []string) int {
	n := 0
	for _, p := range profilesOfA100() {
		for _, profile := range profiles {
			if p.Kind.Profile == profile {
				n += p.Kind.Size
			}
		}
	}
	return n
}

// placeable reports whether there is any way to have them all at once.
func placeable(pool []resourceapi.Device, counters map[string]int64, profiles []string) bool {
	if len(profiles) == 0 {
		return true
	}
	for _, d := range pool {
		if *d.Attributes["profile"].StringValue != profiles[0] {
			continue
		}
		left, ok := map[string]int64{}, true
		for name, n := range counters {
			left[name] = n
		}
		for name, c := range d.ConsumesCounters[0].Counters {
			left[name] -= c.Value.Value()
			ok = ok && left[name] >= 0
		}
		if ok && placeable(pool, left, profiles[1:]) {
			return true
		}
	}
	return false
}

// permutations are the different orders of a sorted list.
func permutations(sorted []string) [][]string {
	if len(sorted) == 0 {
		return [][]string{nil}
	}
	var out [][]string
	for i, first := range sorted {
		if i > 0 && sorted[i-1] == first {
			continue
		}
		for _, rest := range permutations(slices.Delete(slices.Clone(sorted), i, i+1)) {
			out = append(out, append([]string{first}, rest...))
		}
	}
	return out
}

// Of all orders in which instances can be asked for that fit one GPU, the order of the devices serves more to the end
// than others would, and it serves all where the largest come first.
func TestOrderOfPlacements(t *testing.T) {
	resources := devices.Build(onDemand(1), migOptions(mode.Exclusive)).Pools["p"]
	var pool []resourceapi.Device
	counters := map[string]int64{}
	for _, s := range resources.Slices {
		pool = append(pool, s.Devices...)
		for _, set := range s.SharedCounters {
			for name, c := range set.Counters {
				counters[name] = c.Value.Value()
			}
		}
	}
	byStart := func(sign int64) []resourceapi.Device {
		sorted := slices.Clone(pool)
		slices.SortStableFunc(sorted, func(a, b resourceapi.Device) int {
			return int(sign * (*a.Attributes["placementStart"].IntValue - *b.Attributes["placementStart"].IntValue))
		})
		return sorted
	}
	size := map[string]int{}
	var names []string
	for _, p := range profilesOfA100() {
		if p.Kind.Profile != "1g.10gb+me" {
			names = append(names, p.Kind.Profile)
			size[p.Kind.Profile] = p.Kind.Size
		}
	}
	orders := arrivals(pool, counters, names)
	served := map[string]int{}
	for _, order := range orders {
		for name, devices := range map[string][]resourceapi.Device{"as offered": pool, "first place first": byStart(1),
			"last place first": byStart(-1)} {
			if fill(devices, counters, order) == len(order) {
				served[name]++
			} else if name == "as offered" && slices.IsSortedFunc(order, func(a, b string) int { return size[b] - size[a] }) {
				t.Errorf("not served although the largest come first: %v", order)
			}
		}
	}
	want := map[string]int{"as offered": 392, "first place first": 287, "last place first": 316}
	if diff := expect.Diff(want, served); diff != nil || len(orders) != 424 {
		t.Errorf("of %d orders are served %v", len(orders), diff)
	}
}
