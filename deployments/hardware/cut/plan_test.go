// SPDX-License-Identifier: Apache-2.0

package cut

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

func text(places []place) []string {
	var all []string
	for _, p := range places {
		all = append(all, fmt.Sprintf("%s@%d", p.profile.Name, p.start))
	}
	return all
}

func TestPlan(t *testing.T) {
	for table, want := range map[string]struct {
		small             string
		alone             []string
		beside, pair, odd []string
	}{
		"h200-141": {"1g.18gb", []string{"3g.71gb@4"}, []string{"2g.35gb@0", "1g.18gb@2", "1g.18gb@3"},
			[]string{"4g.71gb@0", "3g.71gb@4"}, []string{"1g.18gb@4"}},
		"a30": {"1g.6gb", []string{"2g.12gb@2"}, []string{"2g.12gb@0"}, []string{"2g.12gb+me@0", "2g.12gb@2"},
			[]string{"1g.6gb@2"}},
		"rtx-pro-6000": {"1g.24gb", []string{"2g.48gb@6"}, []string{"2g.48gb@0"}, nil,
			[]string{"1g.24gb@6"}},
	} {
		t.Run(table, func(t *testing.T) {
			profiles := sim.MIGTable(table)
			p, err := newPlan(profiles)
			if err != nil {
				t.Fatal(err)
			}
			got := []any{p.small.Name, text([]place{p.alone}), text(p.beside), text(p.pair), text([]place{p.overlapping})}
			if diff := cmp.Diff([]any{want.small, want.alone, want.beside, want.pair, want.odd}, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if len(p.each) != len(profiles) {
				t.Errorf("%d places for %d profiles", len(p.each), len(profiles))
			}
			checkRoom(t, append([]place{p.alone}, p.beside...))
			checkRoom(t, p.pair)
		})
	}
	if _, err := newPlan(nil); err == nil {
		t.Error("a GPU without profiles has a plan")
	}
}

func checkRoom(t *testing.T, places []place) {
	t.Helper()
	for i, p := range places {
		for _, q := range places[i+1:] {
			if p.overlaps(q) {
				t.Errorf("%v overlap", text([]place{p, q}))
			}
		}
	}
}
