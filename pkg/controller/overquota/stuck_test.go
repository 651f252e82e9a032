// SPDX-License-Identifier: Apache-2.0

package overquota_test

import (
	"testing"
	"time"
)

// What waits for something else keeps its room from younger pods for a while, not for ever.
func TestPodThatWaitsForSomethingElseKeepsRoomFromNobody(t *testing.T) {
	run(t, func(s *site) {
		s.quota(10, 0)
		s.create(pod("a", "gpushare.mem.main.9"))
		time.Sleep(time.Second)
		b := pod("b", "gpushare.mem.main.8")
		s.create(b)
		s.after(30*time.Second, []string{"a", "a"}, []string{short(10, 9, 8)})
		s.after(90*time.Second, []string{"a", "b", "b", "b", "a", "b"}, nil)
		// What it lacks then is told with the quota's own numbers.
		s.made(b)
		s.quota(10, 8)
		s.after(10*time.Second, nil, []string{short(10, 8, 9)})
		// Once there is room again it comes first, as the oldest.
		s.create(pod("c", "gpushare.mem.main.8"))
		s.after(10*time.Second, nil, []string{short(10, 8, 8)})
		s.quota(10, 0)
		s.after(20*time.Second, []string{"a", "a"}, nil)
	})
}
