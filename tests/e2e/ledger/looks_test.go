// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0).UTC() }
	fine := func(second int) Look { return Look{At: at(second)} }
	twice := func(second int) Look { return Look{At: at(second), Conflicts: []Conflict{{Card: "c"}}} }
	failed := func(second int) Look { return Look{At: at(second), Err: errors.New("no answer")} }
	outage := Outage{From: at(10), To: at(20)}
	for name, test := range map[string]struct {
		looks []Look
		want  []string // parts of what is said, in order
	}{
		"nothing happens":        {[]Look{fine(1), fine(30)}, nil},
		"away during the outage": {[]Look{fine(1), failed(10), failed(20), fine(30)}, nil},
		"twice, and over":        {[]Look{fine(1), twice(12), twice(25), fine(30)}, nil},
		"twice before":           {[]Look{twice(1), fine(30)}, []string{"at 00:00:01 these claims"}},
		"twice in the end":       {[]Look{fine(1), fine(25), twice(30)}, []string{"at 00:00:30 these claims"}},
		"no answer before":       {[]Look{fine(1), failed(2), fine(30)}, []string{"at 00:00:02 the claims could not"}},
		"no answer after":        {[]Look{fine(1), failed(21), fine(30)}, []string{"at 00:00:21 the claims could not"}},
		"never looked":           {nil, []string{"0 times before the API server was killed and 0 times after"}},
		"quickly back":           {[]Look{fine(1), failed(11), fine(12)}, nil},
		"not looked again": {[]Look{fine(1), failed(12)},
			[]string{"1 times before the API server was killed and 0 times after"}},
		"all that is seen is one": {[]Look{failed(1), fine(30)}, []string{"at 00:00:01", "0 times before"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Judge(test.looks, outage)
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
