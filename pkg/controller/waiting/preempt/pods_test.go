// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Several are named in order of the scheduler's queue, and only some at a time.
func TestOrderOfTheQueue(t *testing.T) {
	pods := []*corev1.Pod{podOf("low", 1), podOf("late", 5), podOf("early", 5), podOf("high", 9)}
	pods[2].CreationTimestamp.Time = noon.Add(-time.Minute)
	slices.SortFunc(pods, scheduling.QueueOrder)
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	expect.Equal(t, "[high early late low]", fmt.Sprint(names), "order")
}

// Others wait as well: it is not thought about one pod for ever.
func TestPlanningIsBounded(t *testing.T) {
	s := newStage(t)
	s.node("n1", mode.Exclusive)
	s.runs("n1", podOf("a", 0), "gpu", "gpu")
	w := wishes(podOf("p", 9), "gpu")
	if o, why, err := s.planWithin(t.Context(), time.Minute, w); err != nil || o == nil {
		t.Errorf("within a minute: %v, %s, %v, want a victim", o, why, err)
	}
	if o, why, err := s.planWithin(t.Context(), 0, w); !errors.Is(err, errPlanning) || o != nil {
		t.Errorf("within no time: %v, %s, %v, want nobody as it takes too long", o, why, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := s.planWithin(ctx, time.Minute, w)
	expect.ErrorIs(t, err, context.Canceled)
}

// Whoever waits is looked at within as many rounds as it takes to look at all, however many
// are before it in the queue and due again each time.
func TestEveryPodHasItsTurn(t *testing.T) {
	const most, pods = 4, 40
	var queue []*corev1.Pod
	since := map[types.UID]time.Time{}
	for i := range pods {
		pod := podOf(fmt.Sprintf("p%02d", i), int32(pods-i))
		queue = append(queue, pod)
		since[pod.UID] = noon
	}
	looked := map[types.UID]int{}
	now := noon
	for range pods / (most / 2) {
		now = now.Add(interval)
		halves := turns(queue, func(pod *corev1.Pod) time.Time { return since[pod.UID] }, most)
		expect.Equal(t, "p00", halves[0][0].Name, "the first of the queue is")
		expect.Equal(t, most, len(halves[0])+len(halves[1]), "pods looked at")
		for _, pod := range slices.Concat(halves[0], halves[1]) {
			looked[pod.UID]++
			since[pod.UID] = now
		}
	}
	expect.Equal(t, pods, len(looked), "pods that have been looked at")
	few := turns(queue[:1], func(*corev1.Pod) time.Time { return noon }, most)
	if len(few[0]) != 1 || len(few[1]) != 0 {
		t.Errorf("of one pod: %d and %d", len(few[0]), len(few[1]))
	}
}
