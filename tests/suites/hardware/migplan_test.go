// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// place is where an instance of a profile is made.
type place struct {
	profile sim.MIGProfile
	start   int
}

func (p place) String() string { return fmt.Sprintf("%s at slice %d", p.profile.Name, p.start) }

func (p place) overlaps(other place) bool {
	return p.start < other.start+other.profile.Size && other.start < p.start+p.profile.Size
}

// migPlan is what is made of a GPU, by what its driver tells of its profiles: their ids and names are not the same on
// all GPUs.
type migPlan struct {
	// small is the smallest profile, of which there can be most.
	small sim.MIGProfile
	// alone is a place of the largest profile that does not take the whole GPU: on H100 3g, at the end.
	alone place
	// beside fill what alone leaves: on H100 2g, 1g and 1g.
	beside []place
	// overlapping is another profile's place in that of alone.
	overlapping place
	// pair are two profiles of one size next to each other, of which it is not documented which id each has: on
	// H100 4g and 3g. There may be no such two.
	pair []place
	// each has one place of every profile, its last.
	each []place
}

// newMIGPlan chooses from the profiles that the driver tells of.
func newMIGPlan(profiles []sim.MIGProfile) (p migPlan, err error) {
	profiles = slices.DeleteFunc(slices.Clone(profiles), func(p sim.MIGProfile) bool { return len(p.Starts) == 0 })
	if len(profiles) == 0 {
		return p, errors.New("the driver tells of no profile with a placement")
	}
	last := func(q sim.MIGProfile) place { return place{q, slices.Max(q.Starts)} }
	p.small = slices.MinFunc(profiles, func(a, b sim.MIGProfile) int {
		return cmp.Or(cmp.Compare(a.Slices, b.Slices), cmp.Compare(a.Size, b.Size), cmp.Compare(b.Most, a.Most),
			cmp.Compare(a.Enum, b.Enum))
	})
	large, wanted := p.small, []sim.MIGProfile{p.small, p.small}
	for _, q := range profiles {
		if q.Most > 1 && q.Slices > large.Slices {
			large = q
		}
		if q.Most > 1 && q.Slices == 2 && len(wanted) < 3 {
			wanted = slices.Insert(wanted, 0, q)
		}
		p.each = append(p.each, last(q))
	}
	p.alone = last(large)
	p.overlapping = place{p.small, p.alone.start}
	taken := []place{p.alone}
	for _, q := range wanted {
		for _, start := range slices.Sorted(slices.Values(q.Starts)) {
			if at := (place{q, start}); !slices.ContainsFunc(taken, at.overlaps) {
				taken = append(taken, at)
				break
			}
		}
	}
	p.beside = taken[1:]
	for _, q := range profiles {
		at := place{q, slices.Min(q.Starts)}
		if q.ID != large.ID && q.Size == large.Size && !at.overlaps(p.alone) &&
			(p.pair == nil || q.Slices > p.pair[0].profile.Slices) {
			p.pair = []place{at, p.alone}
		}
	}
	return p, nil
}

func TestMIGPlan(t *testing.T) {
	for table, want := range map[string]string{
		"h200-141": "1g.18gb; 3g.71gb at slice 4 [2g.35gb at slice 0 1g.18gb at slice 2 1g.18gb at slice 3]; " +
			"[4g.71gb at slice 0 3g.71gb at slice 4]; 1g.18gb at slice 4",
		"a30": "1g.6gb; 2g.12gb at slice 2 [2g.12gb at slice 0]; " +
			"[2g.12gb+me at slice 0 2g.12gb at slice 2]; 1g.6gb at slice 2",
		"rtx-pro-6000": "1g.24gb; 2g.48gb at slice 6 [2g.48gb at slice 0]; []; 1g.24gb at slice 6",
	} {
		profiles := sim.MIGTable(table)
		p, err := newMIGPlan(profiles)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%s; %s %s; %s; %s", p.small.Name, p.alone, p.beside, p.pair, p.overlapping)
		if got != want || len(p.each) != len(profiles) {
			t.Errorf("%s: %s, and %d places for %d profiles, want %s", table, got, len(p.each), len(profiles), want)
		}
	}
	if _, err := newMIGPlan(nil); err == nil {
		t.Error("a GPU without profiles has a plan")
	}
}
