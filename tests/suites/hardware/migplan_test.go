// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// migPlan is what is made of a GPU, by what its driver tells of its profiles: their ids and names are not the same on
// all GPUs.
type migPlan struct {
	// small is the smallest profile, of which there can be most.
	small gpu.Profile
	// alone is a place of the largest profile that does not take the whole GPU: on H100 3g, at the end.
	alone gpu.Instance
	// beside fill what alone leaves: on H100 2g, 1g and 1g.
	beside []gpu.Instance
	// overlapping is another profile's place in that of alone.
	overlapping gpu.Instance
	// pair are two profiles of one size next to each other, of which it is not documented which id each has: on
	// H100 4g and 3g. There may be no such two.
	pair []gpu.Instance
	// each has one place of every profile, its last.
	each []gpu.Instance
}

// newMIGPlan chooses from the profiles that the driver tells of.
func newMIGPlan(profiles []gpu.Profile) (p migPlan, err error) {
	if len(profiles) == 0 {
		return p, errors.New("the driver tells of no profile with a placement")
	}
	sorted := slices.SortedFunc(slices.Values(profiles), func(a, b gpu.Profile) int {
		return cmp.Or(cmp.Compare(a.Kind.SMCount, b.Kind.SMCount), cmp.Compare(a.Kind.Size, b.Kind.Size),
			cmp.Compare(b.Count, a.Count), strings.Compare(a.Kind.Profile, b.Kind.Profile))
	})
	last := func(q gpu.Profile) gpu.Instance { return q.At(slices.Max(q.Starts)) }
	p.small = sorted[0]
	large, middle := p.small, p.small
	for _, q := range sorted {
		p.each = append(p.each, last(q))
		if q.Count < 2 {
			continue
		}
		if q.Kind.SMCount > large.Kind.SMCount {
			large = q
		}
		if q.Kind.SMCount >= 2*p.small.Kind.SMCount && middle.Kind.ProfileID == p.small.Kind.ProfileID {
			middle = q
		}
	}
	p.alone = last(large)
	p.overlapping = p.small.At(p.alone.Start)
	taken := []gpu.Instance{p.alone}
	free := func(at gpu.Instance) bool {
		return !slices.ContainsFunc(taken, func(other gpu.Instance) bool { return at.PlaceOf().Overlaps(other.PlaceOf()) })
	}
	for _, q := range []gpu.Profile{middle, p.small, p.small} {
		for _, start := range q.Starts {
			if at := q.At(start); free(at) {
				taken = append(taken, at)
				break
			}
		}
	}
	p.beside = taken[1:]
	for _, q := range sorted {
		at := q.At(slices.Min(q.Starts))
		if q.Kind.ProfileID != large.Kind.ProfileID && q.Kind.Size == large.Kind.Size &&
			!at.PlaceOf().Overlaps(p.alone.PlaceOf()) {
			p.pair = []gpu.Instance{at, p.alone}
		}
	}
	return p, nil
}

func TestMIGPlan(t *testing.T) {
	for table, want := range map[string]string{
		"h200-141": "1g.18gb; 3g.71gb at slices 4-7 [2g.35gb at slices 0-1, 1g.18gb at slice 2, 1g.18gb at slice 3]; " +
			"[4g.71gb at slices 0-3, 3g.71gb at slices 4-7]; 1g.18gb at slice 4",
		"a30": "1g.6gb; 2g.12gb at slices 2-3 [2g.12gb at slices 0-1]; " +
			"[2g.12gb+me at slices 0-1, 2g.12gb at slices 2-3]; 1g.6gb at slice 2",
		"rtx-pro-6000": "1g.24gb; 2g.48gb at slices 6-11 [2g.48gb at slices 0-5]; []; 1g.24gb at slices 6-8",
	} {
		profiles := profilesOf(table)
		p, err := newMIGPlan(profiles)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%s; %s [%s]; [%s]; %s", p.small.Kind.Profile, instances([]gpu.Instance{p.alone}),
			instances(p.beside), instances(p.pair), instances([]gpu.Instance{p.overlapping}))
		if got != want || len(p.each) != len(profiles) {
			t.Errorf("%s: %s, and %d places for %d profiles, want %s", table, got, len(p.each), len(profiles), want)
		}
	}
	if _, err := newMIGPlan(nil); err == nil {
		t.Error("a GPU without profiles has a plan")
	}
}

// instances names instances, or where they are to be.
func instances(all []gpu.Instance) string {
	var names []string
	for _, i := range all {
		names = append(names, strings.TrimSpace(i.Place()+" "+i.UUID))
	}
	return strings.Join(names, ", ")
}
