// SPDX-License-Identifier: Apache-2.0

package topology_test

import (
	"fmt"
	"math/bits"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/topologytest"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/topology"
)

func shipped(t *testing.T, name string) *gpu.Machine {
	t.Helper()
	m, err := topologytest.Machine(t.Context(), filepath.Join("..", "..", "demo", "machines", name+".yaml"))
	expect.NoError(t, err)
	return m
}

// linked is a machine of so many GPUs with NVLink between these pairs, given
// as "a-b:GB/s", and an equal PCIe link between all others.
func linked(gpus int, pairs ...string) *gpu.Machine {
	m := &gpu.Machine{}
	nvlink := map[[2]int]int{}
	for _, p := range pairs {
		var a, b, gbps int
		if _, err := fmt.Sscanf(p, "%d-%d:%d", &a, &b, &gbps); err != nil {
			panic(err)
		}
		nvlink[[2]int{a, b}] = gbps
	}
	for b := range gpus {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: b, Model: "V100"})
		for a := range b {
			l := gpu.Link{A: a, B: b, Kind: gpu.LinkPHB, GBps: 10}
			if gbps, ok := nvlink[[2]int{a, b}]; ok {
				l.Kind, l.GBps = gpu.LinkNVLink, gbps
			}
			m.Links = append(m.Links, l)
		}
	}
	return m
}

// names writes sets as "0-3@50".
func names(sets []topology.Set) []string {
	var out []string
	for _, s := range sets {
		out = append(out, strings.ReplaceAll(strings.Trim(fmt.Sprint(s.GPUs), "[]"), " ", "-")+
			fmt.Sprintf("@%d", s.NVLinkGBps))
	}
	return out
}

func TestSetsOfADGX1(t *testing.T) {
	got := names(topology.Sets(shipped(t, "dgx1")))
	// A scheduler that looks at one after the other finds the best of each size soon.
	expect.Equal(t, "0-1-2-3-4-5-6-7@0 0-3@50 0-1-2-3@25 0-4@50 4-5-6-7@25", strings.Join(got[:5], " "),
		"the first sets are")
	pairs, fours := ofSize(got, 2), ofSize(got, 4)
	expect.Equal(t, []string{
		"0-3@50", "0-4@50", "1-2@50", "1-5@50", "2-3@50", "4-7@50", "5-6@50", "6-7@50",
		"0-1@25", "0-2@25", "1-3@25", "2-6@25", "3-7@25", "4-5@25", "4-6@25", "5-7@25",
	}, pairs, "sets of two")
	linked := slices.IndexFunc(fours, func(s string) bool { return strings.HasSuffix(s, "@0") })
	unlinked := slices.ContainsFunc(fours[linked:], func(s string) bool { return !strings.HasSuffix(s, "@0") })
	if linked != 2 || unlinked || len(got) != 1+len(pairs)+len(fours) {
		t.Errorf("want first the two sets of four whose pairs are all linked; all sets: %q", got)
	}
}

// ofSize are the names of sets of so many GPUs.
func ofSize(names []string, size int) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return strings.Count(n, "-") != size-1 })
}

// firstFree are the k GPUs that a claim for single ones gets, ascending.
func firstFree(order []int, free []int, k int) []int {
	var out []int
	for _, g := range order {
		if len(out) < k && slices.Contains(free, g) {
			out = append(out, g)
		}
	}
	slices.Sort(out)
	return out
}

// nvlinkOnly is the machine without what is not NVLink.
func nvlinkOnly(m *gpu.Machine) *gpu.Machine {
	only := *m
	only.Links = slices.DeleteFunc(slices.Clone(m.Links), func(l gpu.Link) bool { return l.Kind != gpu.LinkNVLink })
	return &only
}

// Where there are no sets, the first free GPUs in the order of single ones are
// the best by NVLink, whichever are free.
func TestMachinesWithoutSets(t *testing.T) {
	weakGPUs := func(widths ...int) *gpu.Machine {
		m := linked(len(widths))
		for i, l := range m.Links {
			if lanes := min(widths[l.A], widths[l.B]); lanes > 0 {
				m.Links[i].Kind, m.Links[i].GBps, m.Links[i].Switched = gpu.LinkNVLink, lanes, true
			}
		}
		return m
	}
	weakLink := weakGPUs(450, 450, 450, 450, 450, 450, 450, 450)
	for i, l := range weakLink.Links {
		if l.A == 3 && l.B == 7 {
			weakLink.Links[i].GBps = 400
		}
	}
	for _, tc := range []struct {
		name    string
		machine *gpu.Machine
		order   []int
	}{
		{"a100x8", shipped(t, "a100x8"), []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{"h200x8", shipped(t, "h200x8"), []int{0, 1, 2, 3, 4, 5, 6, 7}},
		{"t4x1", shipped(t, "t4x1"), []int{0}},
		{"PCIe, two sockets", shipped(t, "a10x4"), []int{0, 1, 2, 3}},
		{"PCIe, two models", shipped(t, "mixed"), []int{0, 1, 2, 3}},
		{"no GPUs", &gpu.Machine{}, []int{}},
		{"PCIe, equal paths", linked(4), []int{0, 1, 2, 3}},
		{"one pair", linked(2, "0-1:50"), []int{0, 1}},
		{"links not known", &gpu.Machine{GPUs: linked(4).GPUs}, []int{0, 1, 2, 3}},
		{"all pairs linked", linked(3, "0-1:50", "0-2:50", "1-2:50"), []int{0, 1, 2}},
		{"a switch lane of one GPU is down", weakGPUs(450, 450, 450, 425, 450, 450, 450, 450),
			[]int{0, 1, 2, 4, 5, 6, 7, 3}},
		{"lanes of several are", weakGPUs(400, 450, 425, 450, 425, 450), []int{1, 3, 5, 2, 4, 0}},
		{"all lanes of one are", weakGPUs(450, 0, 450, 450, 450, 450, 450, 450), []int{0, 2, 3, 4, 5, 6, 7, 1}},
		{"a link is slower than the others", weakLink, []int{0, 1, 2, 4, 5, 6, 3, 7}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := tc.machine
			if got := topology.Sets(m); got != nil {
				t.Errorf("has %d sets: %v", len(got), names(got))
			}
			order := topology.Singles(m)
			expect.Equal(t, tc.order, order, "order of single GPUs")
			byNVLink := nvlinkOnly(m)
			for mask := range 1 << len(order) {
				var free []int
				for i := range order {
					if mask&(1<<i) != 0 {
						free = append(free, i)
					}
				}
				for _, k := range []int{2, 3, 4, 8} {
					if k > len(free) {
						continue
					}
					gotMin, gotSum := topologytest.Bandwidth(byNVLink, firstFree(order, free, k))
					wantMin, wantSum := topologytest.Bandwidth(byNVLink, topologytest.Best(byNVLink, free, k))
					if gotMin != wantMin || gotSum != wantSum {
						t.Fatalf("%d of %v: %d and %d GB/s, the best are %d and %d", k, free, gotMin, gotSum, wantMin, wantSum)
					}
				}
			}
		})
	}
}

// GPUs below one PCIe switch come one after the other, whatever their indices are.
func TestSinglesKeepSwitchesTogether(t *testing.T) {
	m := &gpu.Machine{}
	for b := range 8 {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: b})
		for a := range b {
			l := gpu.Link{A: a, B: b, Kind: gpu.LinkSystem, GBps: 6}
			switch {
			case a%4 == b%4:
				l.Kind, l.GBps = gpu.LinkPIX, 12
			case a%2 == b%2:
				l.Kind, l.GBps = gpu.LinkNode, 8
			}
			m.Links = append(m.Links, l)
		}
	}
	expect.Equal(t, []int{0, 4, 2, 6, 1, 5, 3, 7}, topology.Singles(m), "order")
}

// Where there are sets, single GPUs are taken in the order of their indices.
func TestSinglesBesideSets(t *testing.T) {
	expect.Equal(t, []int{0, 1, 2, 3}, topology.Singles(shipped(t, "v100x4")), "order")
}

func TestSets(t *testing.T) {
	twoModels := linked(4, "0-1:50", "2-3:25")
	twoModels.GPUs[3].Model = "A100"
	gap := linked(3, "0-2:50")
	gap.GPUs = gap.GPUs[:2:2] // GPU 2 is left out, its link is known
	gap.GPUs = append(gap.GPUs, gpu.GPU{Index: 5, Model: "V100"})
	gap.Links = append(gap.Links, gpu.Link{A: 1, B: 5, Kind: gpu.LinkNVLink, GBps: 25})
	unknown := linked(3, "1-2:25")
	unknown.Links = slices.DeleteFunc(unknown.Links, func(l gpu.Link) bool { return l.A == 0 && l.B == 1 })
	for name, tc := range map[string]struct {
		machine *gpu.Machine
		want    []string
	}{
		"bridged pairs":         {linked(4, "0-1:50", "2-3:50"), []string{"0-1-2-3@0", "0-1@50", "2-3@50"}},
		"two bandwidths":        {linked(4, "0-3:25", "1-2:50"), []string{"0-1-2-3@0", "1-2@50", "0-3@25"}},
		"a set is of one model": {twoModels, []string{"0-1@50"}},
		"indices with gaps":     {gap, []string{"1-5@25"}},
		"a better pair later":   {linked(3, "1-2:50"), []string{"1-2@50"}},
		"an unknown link":       {unknown, []string{"1-2@25"}},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, tc.want, names(topology.Sets(tc.machine)), "sets")
		})
	}
}

// islands is a machine of so many GPUs in islands of NVLink.
func islands(gpus, size int) *gpu.Machine {
	m := linked(gpus)
	for i, l := range m.Links {
		if l.A/size == l.B/size {
			m.Links[i].Kind, m.Links[i].GBps = gpu.LinkNVLink, 150
		}
	}
	return m
}

// However many GPUs there are, sets are few, and each GPU is in one of each size.
func TestSetsOfLargeMachines(t *testing.T) {
	weak := islands(10, 10)
	for i, l := range weak.Links {
		if l.A == 1 && l.B == 2 || l.A == 3 && l.B == 7 {
			weak.Links[i].GBps = 100
		}
	}
	for _, tc := range []struct {
		name    string
		machine *gpu.Machine
		most    map[int]int // sets of each size
		linked  []int       // sizes of which all have NVLink throughout
	}{
		{"10 GPUs, two slower links", weak, map[int]int{2: 45, 4: 80, 8: 45}, []int{2, 4, 8}},
		{"12 in islands of 6", islands(12, 6), map[int]int{2: 30, 4: 30, 8: 80}, []int{2, 4}},
		{"16 in islands of 8", islands(16, 8), map[int]int{2: 56, 4: 80, 8: 2, 16: 1}, []int{2, 4, 8}},
		{"16 in pairs", islands(16, 2), map[int]int{2: 8, 4: 28, 8: 70, 16: 1}, []int{2}},
		{"20 in islands of 10", islands(20, 10), map[int]int{2: 80, 4: 80, 8: 80}, []int{2, 4, 8}},
		{"64 in pairs", islands(64, 2), map[int]int{2: 32, 4: 80, 8: 80}, []int{2}},
		{"64 in islands of 32", islands(64, 32), map[int]int{2: 80, 4: 80, 8: 80}, []int{2, 4, 8}},
	} {
		count, covered := map[int]int{}, map[int]map[int]bool{}
		for _, s := range topology.Sets(tc.machine) {
			size := len(s.GPUs)
			if covered[size] == nil {
				covered[size] = map[int]bool{}
			}
			count[size]++
			for _, g := range s.GPUs {
				covered[size][g] = true
			}
			if slices.Contains(tc.linked, size) && s.NVLinkGBps == 0 {
				t.Errorf("%s: %v is not linked throughout", tc.name, s.GPUs)
			}
		}
		for size, most := range tc.most {
			if n := count[size]; n > most {
				t.Errorf("%s: %d sets of %d, want at most %d", tc.name, n, size, most)
			}
			expect.Equal(t, len(tc.machine.GPUs), len(covered[size]), "%s: GPUs are in a set of %d", tc.name, size)
		}
	}
}

// On two islands of eight a linked set of four is free in each island of which five
// GPUs are; any two that are free have one, and any island of which all are.
func TestFreeSetsOfIslands(t *testing.T) {
	var sets []uint64
	for _, s := range topology.Sets(islands(16, 8)) {
		mask := uint64(0)
		for _, g := range s.GPUs {
			mask |= 1 << g
		}
		sets = append(sets, mask)
	}
	enough := map[int]int{2: 2, 4: 5, 8: 8}
	for island := range 2 {
		for mask := range uint64(1) << 8 {
			free := mask << (8 * island)
			for size, gpus := range enough {
				found := slices.ContainsFunc(sets, func(set uint64) bool { return bits.OnesCount64(set) == size && set&^free == 0 })
				if bits.OnesCount64(free) >= gpus && !found {
					t.Errorf("no set of %d is within the free GPUs %016b", size, free)
				}
			}
		}
	}
}

func TestOrderKeepsNeighboursLinked(t *testing.T) {
	dgx1 := shipped(t, "dgx1")
	for _, tc := range []struct {
		name    string
		machine *gpu.Machine
		gpus    []int
		want    []int
	}{
		{"one", dgx1, []int{5}, []int{5}},
		{"a pair", dgx1, []int{7, 2}, []int{2, 7}},
		{"a board, its slowest link closes the ring", dgx1, []int{0, 1, 2, 3}, []int{0, 3, 2, 1}},
		{"half of each board", dgx1, []int{0, 3, 4, 7}, []int{3, 0, 4, 7}},
		{"all of them", dgx1, []int{0, 1, 2, 3, 4, 5, 6, 7}, []int{0, 3, 2, 1, 5, 6, 7, 4}},
		{"a chain, the ends are not linked", linked(4, "0-2:50", "1-2:50", "1-3:50"), []int{0, 1, 2, 3}, []int{0, 2, 1, 3}},
		{"all alike", shipped(t, "a100x8"), []int{6, 1, 4, 0}, []int{0, 1, 4, 6}},
		{"a GPU that is not there", linked(3, "0-2:50", "1-2:50"), []int{9, 2, 1, 0}, []int{0, 2, 1, 9}},
	} {
		expect.Equal(t, tc.want, topology.Order(tc.machine, tc.gpus), "%s", tc.name)
	}
}

// No ring of a DGX-1's GPUs has fewer neighbours without NVLink than the order
// gives: checked for every set of up to five against all permutations.
func TestOrderIsTheBestRing(t *testing.T) {
	m := shipped(t, "dgx1")
	slow := func(order []int) int {
		n := 0
		for i, a := range order {
			b := order[(i+1)%len(order)]
			for _, l := range m.Links {
				if l.A == min(a, b) && l.B == max(a, b) && l.Kind != gpu.LinkNVLink {
					n++
				}
			}
		}
		return n
	}
	for mask := range 1 << 8 {
		var gpus []int
		for i := range 8 {
			if mask&(1<<i) != 0 {
				gpus = append(gpus, i)
			}
		}
		if len(gpus) < 3 || len(gpus) > 5 {
			continue
		}
		got := topology.Order(m, gpus)
		best := len(gpus)
		permute(gpus, func(order []int) { best = min(best, slow(order)) })
		if slow(got) != best {
			t.Errorf("%v: order %v has %d slow links, the best ring %d", gpus, got, slow(got), best)
		}
	}
}

func permute(gpus []int, see func([]int)) {
	var extend func(done, left []int)
	extend = func(done, left []int) {
		if len(left) == 0 {
			see(done)
		}
		for i, g := range left {
			extend(append(slices.Clone(done), g), slices.Concat(left[:i], left[i+1:]))
		}
	}
	extend(nil, gpus)
}

// A large machine's GPUs are ordered one by one, so that it does not take long.
func TestOrderOfManyGPUs(t *testing.T) {
	m := linked(16, "0-15:50", "1-15:50", "2-3:50")
	var all []int
	for i := range 16 {
		all = append(all, i)
	}
	got := topology.Order(m, all)
	if diff := expect.Diff([]int{0, 15, 1, 2, 3}, got[:5]); diff != nil || len(got) != 16 {
		t.Errorf("%v", got)
	}
}
