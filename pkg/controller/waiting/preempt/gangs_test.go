// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func inGroup(pod *corev1.Pod) {
	pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("gang")}
}

// gang says how many pods the gang of the stage needs.
func (s *stage) gang(least int) {
	g := &gang{least: least}
	for _, pod := range s.pods {
		if _, is := podstate.Gang(pod); is {
			g.pods = append(g.pods, pod)
		}
	}
	s.gangs = map[toolscache.ObjectName]*gang{{Namespace: "ns", Name: "gang"}: g}
}

// A gang of three has a GPU of n1 and both of n2; pod single, whose priority is higher, has the
// other one of n1.
func TestGangsAreVictims(t *testing.T) {
	for name, test := range map[string]struct {
		least  int
		change func(*stage)
		want   string
	}{
		"it needs all of its pods": {3, nil, "n1 g0 g1 g2"},
		"it can do without one":    {2, nil, "n1 g0"},
		"one is enough for it":     {1, nil, "n1 g0"},
		"one of it may not go": {3, func(s *stage) { s.pods[3].Namespace = metav1.NamespaceSystem },
			"n1 single"},
		"one of it has a higher priority": {3, func(s *stage) { s.pods[3].Spec.Priority = ptr.To(int32(9)) }, "n1 single"},
		"one of it costs as much as the other pod": {3,
			func(s *stage) { s.pods[3].Spec.Priority = ptr.To(int32(5)) }, "n1 single"},
		"a budget lets one of it go":          {3, func(s *stage) { s.ofGang(1) }, "n1 single"},
		"a budget lets all of it go":          {3, func(s *stage) { s.ofGang(3) }, "n1 g0 g1 g2"},
		"a budget lets one that it needs not": {2, func(s *stage) { s.ofGang(1) }, "n1 g0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.node("n1", mode.Exclusive)
			s.node("n2", mode.Exclusive)
			s.runs("n1", podOf("single", 5), "gpu")
			s.runs("n1", podOf("g0", 1, inGroup), "gpu")
			s.runs("n2", podOf("g1", 1, inGroup), "gpu")
			s.runs("n2", podOf("g2", 1, inGroup), "gpu")
			if test.change != nil {
				test.change(s)
			}
			s.gang(test.least)
			node, victims, why := s.victims(wishes(podOf("p", 9, on("n1")), "gpu"))
			slices.Sort(victims)
			if got := strings.Join(append([]string{node}, victims...), " "); why != "" || got != test.want {
				t.Errorf("%s (%s), want %s", got, why, test.want)
			}
		})
	}
}

// ofGang makes a budget for the gang's pods.
func (s *stage) ofGang(allowed int32) {
	for _, pod := range s.pods {
		if _, is := podstate.Gang(pod); is {
			pod.Labels["app"] = "gang"
		}
	}
	s.budget("gang", allowed)
}

// A gang is the last choice where a pod would do, and more pods in it protect nobody but a gang
// that needs very many.
func TestSizeOfGangs(t *testing.T) {
	for name, test := range map[string]struct {
		pods  int
		share string
		// least is how many pods the gang needs, want how many victims there are.
		least, want int
	}{
		"of few":       {8, "5Gi", 8, 8},
		"of many":      {40, "1Gi", 40, 40},
		"of too many":  {podsMost + 1, "1Gi", podsMost + 1, 0},
		"of which few": {podsMost + 1, "1Gi", 2, 5},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.node("n1", mode.Share)
			s.node("n2", mode.Share)
			for i := range test.pods {
				// 20 on a GPU, that is 40 on a node.
				s.runs([]string{"n1", "n2"}[i/40], podOf(fmt.Sprint("g", i), 1, inGroup), test.share)
			}
			s.gang(test.least)
			_, victims, _ := s.victims(wishes(podOf("p", 9, on("n1")), "7Gi"))
			expect.Equal(t, test.want, len(victims), "victims %v", victims)
		})
	}
}

// group makes the gang's PodGroup.
func (s *site) group(spec schedulingapi.PodGroupSpec) {
	s.Helper()
	apitest.Create(s, s.client, &schedulingapi.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "gang"},
		Spec: spec})
}

// needs is the policy of a gang that needs so many pods.
func needs(least int32) schedulingapi.PodGroupSchedulingPolicy {
	return schedulingapi.PodGroupSchedulingPolicy{Gang: &schedulingapi.GangSchedulingPolicy{MinCount: least}}
}

// How many pods a gang needs is what its PodGroup says.
func TestPodGroupsOfTheAPIServer(t *testing.T) {
	basic := schedulingapi.PodGroupSchedulingPolicy{Basic: &schedulingapi.BasicSchedulingPolicy{}}
	single := &schedulingapi.DisruptionMode{Single: &schedulingapi.SingleDisruptionMode{}}
	all := &schedulingapi.DisruptionMode{All: &schedulingapi.AllDisruptionMode{}}
	for name, test := range map[string]struct {
		policy schedulingapi.PodGroupSchedulingPolicy
		mode   *schedulingapi.DisruptionMode
		want   []string
	}{
		"both":                     {needs(2), nil, []string{"a", "b"}},
		"one":                      {needs(1), nil, []string{"b"}},
		"one, disrupted singly":    {needs(1), single, []string{"b"}},
		"one, disrupted together":  {needs(1), all, []string{"a", "b"}},
		"no gang":                  {basic, nil, []string{"b"}},
		"none, disrupted together": {basic, all, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				s.group(schedulingapi.PodGroupSpec{SchedulingPolicy: test.policy, DisruptionMode: test.mode})
				s.change("a", inGroup)
				s.change("b", inGroup)
				s.waits(podOf("p", 9), 1)
				s.after(20*time.Second, test.want...)
			})
		})
	}
}

// The cache lists pods in any order: the same victims count as the same.
func TestGangOfManyIsEvicted(t *testing.T) {
	nodes := []string{"n2", "n3", "n4", "n5"}
	run(t, func(s *site) {
		s.group(schedulingapi.PodGroupSpec{SchedulingPolicy: needs(6)})
		gang := append([]string{"a", "b"}, nodes...)
		for _, name := range gang {
			s.change(name, inGroup)
		}
		s.waits(podOf("p", 9), 1)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		slices.Sort(s.evicted)
		expect.Equal(s, gang, s.evicted, "evicted")
	}, nodes...)
}

// What was evicted for one pod is gone for the next, before the cache says that it leaves.
func TestGangOfWhichOthersWereEvictedAtOnce(t *testing.T) {
	high := func(pod *corev1.Pod) { pod.Spec.Priority = ptr.To(int32(20)) }
	t.Run("it keeps as many as it needs", func(t *testing.T) {
		run(t, func(s *site) {
			s.group(schedulingapi.PodGroupSpec{SchedulingPolicy: needs(2)})
			// It cannot go as a whole.
			s.change("a", high)
			for _, name := range []string{"a", "n2", "n3"} {
				s.change(name, inGroup)
			}
			s.waits(podOf("p", 9), 2)
			s.waits(podOf("q", 8), 2)
			s.after(time.Minute, "n2")
		}, "n2", "n3")
	})
	t.Run("as a whole it makes room on all of its nodes", func(t *testing.T) {
		run(t, func(s *site) {
			// The gang has a GPU of n1, of which a has the other one, and n2.
			for _, name := range []string{"b", "n2"} {
				s.change(name, inGroup)
				s.change(name, func(pod *corev1.Pod) { pod.Spec.Priority = ptr.To(int32(6)) })
			}
			s.waits(podOf("p", 9), 2)
			s.waits(podOf("q", 8), 1)
			s.after(time.Minute, "b", "n2")
		}, "n2")
	})
}
