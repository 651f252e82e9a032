// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Whoever has a crowd of pods before another's in the queue, that have waited for longer, keeps
// that one from no turn.
func TestNamespacesHaveTurns(t *testing.T) {
	const most = 6
	var due []*corev1.Pod
	for i := range 100 {
		due = append(due, podOf(fmt.Sprint("crowd-", i), 9, namespaced("crowd")))
	}
	due = append(due, podOf("single", 1), podOf("other", 0, namespaced("other")))
	halves := turns(due, func(pod *corev1.Pod) time.Time {
		if pod.Namespace == "crowd" {
			return noon
		}
		return noon.Add(time.Hour)
	}, most)
	var names []string
	for _, pod := range slices.Concat(halves[0], halves[1]) {
		names = append(names, pod.Name)
	}
	expect.Equal(t, "[crowd-0 single other crowd-1 crowd-2 crowd-3]", fmt.Sprint(names), "turns")
}

// A pod that is hard to find victims for takes no more of the first rounds than others.
func TestTimeToFindVictims(t *testing.T) {
	var w Wait
	var got []time.Duration
	for range 7 {
		got = append(got, w.timeToPlan())
		w.tookTooLong()
	}
	expect.Equal(t, "[500ms 1s 2s 4s 8s 10s 10s]", fmt.Sprint(got), "it is looked for victims for")
}

// Who was not placed does not have others evicted at once under another UID.
func TestPodThatIsMadeAnewWaitsForTheNextTry(t *testing.T) {
	job := metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "train", Controller: ptr.To(true)}
	for name, test := range map[string]struct {
		first, again *corev1.Pod
		waits        bool
	}{
		"of its name": {podOf("p", 9), podOf("p", 9), true},
		"of its Job":  {podOf("p-x", 9, ownedBy(job)), podOf("p-y", 9, ownedBy(job)), true},
		"another":     {podOf("p", 9), podOf("q", 9), false},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				s.waits(test.first, 1)
				s.after(12*time.Second, "b")
				s.gone("b")
				// The scheduler places it nowhere.
				s.after(32*time.Second, "b")
				s.gone(test.first.Name)
				test.again.UID = "again"
				s.waits(test.again, 2)
				if test.waits {
					s.after(40*time.Second, "b")
					s.after(40*time.Second, "b", "a")
				} else {
					s.after(20*time.Second, "b", "a")
				}
			})
		})
	}
}

func ownedBy(owner metav1.OwnerReference) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		owner.UID = types.UID("of-" + pod.Name)
		pod.OwnerReferences = []metav1.OwnerReference{owner}
	}
}

// A namespace has others evicted on half of the nodes on which that may happen at once.
func TestNamespaceLeavesRoomForOthers(t *testing.T) {
	var nodes []string
	for i := range 12 {
		nodes = append(nodes, fmt.Sprintf("m%02d", i))
	}
	run(t, func(s *site) {
		for i := range 12 {
			s.waits(podOf(fmt.Sprint("p", i), 9), 2)
		}
		s.after(2*time.Minute, "m00", "m01", "m02", "m03", "m04")
	}, nodes...)
}

// Others are evicted for the pods of namespaces that administrators chose, and of these.
func TestWhoTakesPart(t *testing.T) {
	run(t, func(s *site) {
		s.waits(podOf("p", 9, namespaced("stranger")), 1)
		s.after(time.Minute)
		s.labelled("stranger")
		s.after(15*time.Second, "b")
	})
	run(t, func(s *site) {
		s.stop()
		s.metadata = namespaces(s.T, "team-a")
		s.start()
		s.waits(podOf("p", 9, namespaced("team-a")), 1)
		s.after(time.Minute)
		s.labelled("ns")
		s.after(40*time.Second, "b")
	})
}

// labelled has a namespace take part.
func (s *site) labelled(name string) {
	s.Helper()
	namespace := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: taking}}
	expect.NoError(s, s.metadata.Tracker().Add(namespace))
}
