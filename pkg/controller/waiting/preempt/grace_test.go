// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

const week = 7 * 24 * time.Hour

// terminatingFor has a pod terminate since then, with such a grace.
func terminatingFor(since time.Time, grace time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		terminating(since.Add(grace))(pod)
		pod.DeletionGracePeriodSeconds = ptr.To(int64(grace.Seconds()))
	}
}

func graced(grace time.Duration) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(grace.Seconds())) }
}

// A pod that ignores the signal to end, and gave itself a week, is waited for as long as any.
// Then it is a victim as any, and told to end within the usual time.
func TestPodThatTakesAWeekToEndHoldsUpNobody(t *testing.T) {
	run(t, func(s *site) {
		s.change("b", terminatingFor(time.Now(), week))
		s.waits(podOf("p", 9), 1)
		s.after(10 * time.Minute)
		s.after(2*time.Minute, "b")
		if grace := s.graces["b"]; grace == nil || *grace != 30 {
			t.Errorf("it is evicted with a grace of %v, want 30 s", ptr.Deref(grace, -1))
		}
		// It terminates since then, and nothing ends it.
		s.change("b", terminatingFor(time.Now().Add(-12*time.Minute), 30*time.Second))
		s.after(4*time.Minute, "b", "a")
	})
}

// What a victim asks for is not what others wait for: not with the pod, and not with its node.
func TestVictimsEndSoon(t *testing.T) {
	for name, test := range map[string]struct {
		own, want time.Duration
		// told is the grace that the eviction sets, nil for the pod's own.
		told *int64
	}{
		"a week":     {week, 10 * time.Minute, ptr.To[int64](600)},
		"as it says": {5 * time.Minute, 5 * time.Minute, nil},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				s.change("b", graced(test.own))
				s.waits(podOf("p", 9), 1)
				s.after(20*time.Second, "b")
				expect.Equal(t, ptr.Deref(test.told, -1), ptr.Deref(s.graces["b"], -1), "seconds of grace it is evicted with")
				s.change("b", terminatingFor(time.Now(), test.want))
				s.after(test.want, "b")
				// It does not go: the one of the node's other GPU has to.
				s.after(4*time.Minute, "b", "a")
			})
		})
	}
}

// No budget keeps a pod that somebody deleted, for the API server as well.
func TestBudgetOfAPodThatOverstays(t *testing.T) {
	s := newStage(t)
	s.node("n1", mode.Exclusive)
	s.runs("n1", podOf("a", 1, terminatingFor(noon.Add(-time.Hour), week)), "gpu")
	s.runs("n1", podOf("b", 2), "gpu")
	s.budget("a", 0)
	s.plans(wishes(podOf("p", 9), "gpu"), "n1 a")
}

// Pods have their time of deletion by the clock of the API server, and as much time as others wait by the controller's.
func TestPodsThatEndWhereClocksAreApart(t *testing.T) {
	for _, apart := range []time.Duration{-24 * time.Hour, -time.Minute, time.Minute, 24 * time.Hour} {
		run(t, func(s *site) {
			s.change("b", terminatingFor(time.Now().Add(apart), 30*time.Second))
			s.waits(podOf("p", 9), 1)
			s.after(80 * time.Second)
			s.after(time.Minute, "a")
		})
	}
}
