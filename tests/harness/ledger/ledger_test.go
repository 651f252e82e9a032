// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestConflicts(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	use := func(holder, g string, part, whole int64, from, to int) Use {
		return Use{Holder: holder, GPU: g, Part: part, Whole: whole, From: at(from), To: at(to)}
	}
	for name, test := range map[string]struct {
		uses []Use
		want []Conflict
	}{
		"nothing":              {nil, nil},
		"a GPU full of shares": {[]Use{use("a", "c", 7, 15, 0, 9), use("b", "c", 8, 15, 0, 9)}, nil},
		"thirds": {[]Use{use("a", "c", 1, 3, 0, 9), use("b", "c", 1, 3, 0, 9), use("d", "c", 1, 3, 0, 9)},
			nil},
		"one after the other": {[]Use{use("a", "c", 1, 1, 0, 4), use("b", "c", 1, 1, 4, 9)}, nil},
		"two GPUs":            {[]Use{use("a", "c", 1, 1, 0, 9), use("b", "d", 1, 1, 0, 9)}, nil},
		"a share beside a whole": {[]Use{use("b", "c", 1, 1, 0, 9), use("a", "c", 3, 15, 5, 9)},
			[]Conflict{{GPU: "c", At: at(5), Holders: []string{"a", "b"}, Parts: 12000}}},
		"a moment too early": {[]Use{use("b", "c", 8, 15, 3, 9), use("a", "c", 8, 15, 0, 4)},
			[]Conflict{{GPU: "c", At: at(3), Holders: []string{"a", "b"}, Parts: 10666}}},
		"containers of one pod": {[]Use{use("a", "c", 8, 15, 0, 9), use("a", "c", 8, 15, 0, 9)},
			[]Conflict{{GPU: "c", At: at(0), Holders: []string{"a"}, Parts: 10666}}},
		"of two GPUs, in order": {[]Use{use("a", "d", 2, 1, 0, 1), use("a", "c", 2, 1, 5, 6)},
			[]Conflict{{GPU: "c", At: at(5), Holders: []string{"a"}, Parts: 20000},
				{GPU: "d", At: at(0), Holders: []string{"a"}, Parts: 20000}}},
		"who has gone is not blamed": {[]Use{use("a", "c", 1, 1, 0, 1), use("b", "c", 1, 1, 2, 9), use("d", "c", 1, 1, 3, 9)},
			[]Conflict{{GPU: "c", At: at(3), Holders: []string{"b", "d"}, Parts: 20000}}},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, test.want, Conflicts(test.uses), "conflicts")
		})
	}
}
