// SPDX-License-Identifier: Apache-2.0

package overquota_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// The API server's clock is another than the controller's.
func TestClocksThatAreApart(t *testing.T) {
	for _, apart := range []time.Duration{-24 * time.Hour, -time.Minute, time.Minute, 24 * time.Hour} {
		run(t, func(s *site) {
			s.quota(6, 6)
			p := pod("p", "gpushare.mem.main.5")
			p.CreationTimestamp = metav1.NewTime(time.Now().Add(apart))
			s.create(p)
			s.after(time.Second, nil, nil)
			s.after(5*time.Second, nil, []string{short(6, 6, 5)})
			s.quota(6, 0)
			s.after(5*time.Second, []string{"p"}, nil)
		})
	}
}
