// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"slices"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// at is a time in seconds.
func at(seconds int) time.Time { return time.Unix(int64(seconds), 0) }

// A node that is told all the time, and on which nothing changes, lifts its limits: by more each time, then seldom.
func TestLifts(t *testing.T) {
	for name, test := range map[string]struct {
		// seconds are those of the test, changes those in which a claim comes or goes, told whether the node is told in
		// one.
		seconds int
		changes []int
		told    func(second int) bool
		// want are the seconds in which a lift begins, by how many shares.
		want map[int]int64
	}{
		"nobody waits":      {60, []int{0}, func(int) bool { return false }, map[int]int64{}},
		"the round goes on": {20, []int{0, 4, 8, 12, 16, 20}, nil, map[int]int64{}},
		"in vain": {180, []int{0}, nil, map[int]int64{5: 1, 10: 2, 15: 4, 20: 8, 25: 16, 30: 32, 35: 64, 45: 64, 65: 64,
			105: 64, 165: 64}},
		"it helps":         {20, []int{0, 7}, nil, map[int]int64{5: 1, 12: 1, 17: 2}},
		"it helps at last": {26, []int{0, 11}, nil, map[int]int64{5: 1, 10: 2, 16: 1, 21: 2, 26: 4}},
		"nothing lifted": {60, []int{0, 40}, func(s int) bool { return s < 8 || s > 50 },
			map[int]int64{5: 1, 56: 2}},
		"the first pod for long": {20, []int{0}, func(s int) bool { return s > 9 }, map[int]int64{15: 1, 20: 2}},
		"long after": {500, []int{0}, func(s int) bool { return s < 12 || s > 490 },
			map[int]int64{5: 1, 10: 2, 491: 1, 496: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			var l placement.Lifts
			changed, before, got := at(0), int64(0), map[int]int64{}
			began := 0
			for s := range test.seconds + 1 {
				if slices.Contains(test.changes, s) {
					changed = at(s)
				}
				l = l.Next(test.told == nil || test.told(s), changed, at(s))
				if shares := l.Shares(at(s)); shares != before || shares > 0 && s-began == 5 {
					before, began = shares, s
					if shares > 0 {
						got[s] = shares
					}
				}
			}
			expect.Equal(t, test.want, got, "shares by the second of a lift")
		})
	}
}
