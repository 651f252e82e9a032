// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// packings are ways to fill a GPU after which each profile was made: instances of a profile and of smaller ones next to
// each other, or alone where its name has a sign: it takes engines that others need.
func packings(profiles []gpu.Profile) (all [][]gpu.Instance) {
	falling := slices.SortedFunc(slices.Values(profiles), func(a, b gpu.Profile) int { return smaller(b, a) })
	made := map[int]bool{}
	for n, first := range falling {
		if made[first.Kind.ProfileID] {
			continue
		}
		packing := []gpu.Instance{first.At(first.Starts[0])}
		for _, p := range falling[n+1:] {
			if at, ok := beside(packing, p); ok && plain(first) && plain(p) {
				packing = append(packing, at)
				made[p.Kind.ProfileID] = true
			}
		}
		all = append(all, packing)
	}
	return all
}

func plain(p gpu.Profile) bool { return !strings.ContainsAny(p.Kind.Profile, "+-") }

// beside is the first place of a profile that instances leave.
func beside(all []gpu.Instance, p gpu.Profile) (gpu.Instance, bool) {
	for _, start := range p.Starts {
		at := p.At(start)
		if !slices.ContainsFunc(all, func(other gpu.Instance) bool { return at.PlaceOf().Overlaps(other.PlaceOf()) }) {
			return at, true
		}
	}
	return gpu.Instance{}, false
}

// smaller compares profiles by what of a GPU an instance takes; of two that take as much, there can be more of the
// smaller one.
func smaller(a, b gpu.Profile) int {
	return cmp.Or(cmp.Compare(a.Kind.SMCount, b.Kind.SMCount), cmp.Compare(a.Kind.Size, b.Kind.Size),
		cmp.Compare(b.Count, a.Count), strings.Compare(a.Kind.Profile, b.Kind.Profile))
}

// instances names instances, or where they are to be.
func instances(all []gpu.Instance) string {
	var names []string
	for _, i := range all {
		names = append(names, strings.TrimSpace(i.Place()+" "+i.UUID))
	}
	return strings.Join(names, ", ")
}

func TestPackings(t *testing.T) {
	for table, want := range map[string]string{
		"h200-141": "7g.141gb at slices 0-7; 4g.71gb at slices 0-3, 3g.71gb at slices 4-7; " +
			"2g.35gb at slices 0-1, 1g.35gb at slices 2-3, 1g.18gb at slice 4; 1g.18gb+me at slice 0",
		"a30": "4g.24gb at slices 0-3; 2g.12gb+me at slices 0-1; 2g.12gb at slices 0-1, 1g.6gb at slice 2; " +
			"1g.6gb+me at slice 0",
	} {
		var profiles []gpu.Profile
		for _, p := range sim.MIGTable(table) {
			profiles = append(profiles, p.Profile)
		}
		var got []string
		for _, packing := range packings(profiles) {
			got = append(got, instances(packing))
		}
		if joined := strings.Join(got, "; "); joined != want {
			t.Errorf("%s: %s, want %s", table, joined, want)
		}
	}
}
