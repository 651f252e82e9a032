// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0).UTC() }
	fine := func(second int) Look { return Look{At: at(second)} }
	twice := func(second int, holders ...string) Look {
		return Look{At: at(second), Conflicts: []Conflict{{GPU: "c", Holders: holders}}}
	}
	failed := func(second int) Look { return Look{At: at(second), Err: errors.New("no answer")} }
	outage := Outage{From: at(10), To: at(20), Over: at(40)}
	for name, test := range map[string]struct {
		looks     []Look
		want      []string // parts of what is said, in order
		explained string
	}{
		"nothing happens":        {looks: []Look{fine(1), fine(30)}},
		"away during the outage": {looks: []Look{fine(1), failed(10), failed(20), fine(30)}},
		"twice, and over": {looks: []Look{fine(1), twice(12, "a", "b"), twice(25, "a", "b"), fine(30)},
			explained: "a b"},
		"a third one, in time": {
			looks:     []Look{fine(1), twice(12, "a", "b"), twice(20, "b", "c"), twice(25, "a", "c"), fine(30)},
			explained: "a b c"},
		"twice before": {looks: []Look{twice(1, "a", "b"), fine(30)},
			want: []string{"at 00:00:01, before the outage"}},
		"once more after it": {looks: []Look{fine(1), twice(12, "a", "b"), twice(21, "a", "b", "c"), fine(30)},
			want: []string{"at 00:00:21, after the outage"}, explained: "a b"},
		"only after it": {looks: []Look{fine(1), fine(12), twice(21, "a", "b"), fine(30)},
			want: []string{"at 00:00:21, after the outage"}},
		"on another card after it": {looks: []Look{fine(1), twice(12, "a", "b"),
			{At: at(25), Conflicts: []Conflict{{GPU: "d", Holders: []string{"a", "b"}}}}, fine(30)},
			want: []string{"at 00:00:25, after the outage"}, explained: "a b"},
		"for too long": {looks: []Look{fine(1), twice(12, "a", "b"), twice(41, "a", "b"), fine(50)},
			want: []string{"at 00:00:41 a card is still"}, explained: "a b"},
		"twice in the end": {looks: []Look{fine(1), twice(15, "a", "b"), twice(30, "a", "b")},
			want: []string{"at 00:00:30 a card is still"}, explained: "a b"},
		"twice in the end, quickly": {looks: []Look{fine(1), twice(15, "a", "b")},
			want: []string{"at 00:00:15 a card is still"}},
		"no answer before": {looks: []Look{fine(1), failed(2), fine(30)}, want: []string{"at 00:00:02 the claims could not"}},
		"no answer after": {looks: []Look{fine(1), failed(21), fine(30)},
			want: []string{"at 00:00:21 the claims could not"}},
		"never looked": {want: []string{"0 times before the API server was killed and 0 times after"}},
		"quickly back": {looks: []Look{fine(1), failed(11), fine(12)}},
		"not looked again": {looks: []Look{fine(1), failed(12)},
			want: []string{"1 times before the API server was killed and 0 times after"}},
		"all that is seen is one": {looks: []Look{failed(1), fine(30)}, want: []string{"at 00:00:01", "0 times before"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, explained := Judge(test.looks, outage)
			if holders := strings.Join(slices.Sorted(maps.Keys(explained)), " "); holders != test.explained {
				t.Errorf("the outage explains %q, want %q", holders, test.explained)
			}
			if len(got) != len(test.want) {
				t.Fatalf("said %q, want %d things", got, len(test.want))
			}
			for i, part := range test.want {
				if !strings.Contains(got[i], part) {
					t.Errorf("said %q, want %q in it", got[i], part)
				}
			}
		})
	}
}
