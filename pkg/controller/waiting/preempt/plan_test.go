// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

func namespaced(namespace string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Namespace = namespace }
}

// ofNamespaces has the anti-affinity of a pod be for those of these namespaces.
func ofNamespaces(names ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].Namespaces = names
	}
}

// cpusLeaving is a node whose only pod leaves, with GPUs and 6 of 8 CPUs, and one whose pod
// has GPUs only.
func cpusLeaving(s *stage) {
	s.node("n1", mode.Exclusive)
	s.runs("n1", podOf("a", 5, cpus("6"), terminating(noon.Add(time.Minute))), "gpu", "gpu")
	s.node("n2", mode.Exclusive)
	s.runs("n2", podOf("b", 4), "gpu", "gpu")
}

func TestPlan(t *testing.T) {
	// shares is a node of two GPUs with 22 GiB each, of which a and b hold 12 of each, and c and
	// d 6.
	shares := func(s *stage, change ...func(*corev1.Pod)) {
		s.node("n1", mode.Share)
		s.runs("n1", podOf("a", 0, change...), "12Gi")
		s.runs("n1", podOf("b", 1, change...), "12Gi")
		s.runs("n1", podOf("c", 2, change...), "8Gi")
		s.runs("n1", podOf("d", 3, change...), "8Gi")
	}
	for name, test := range map[string]struct {
		stage func(*stage)
		wish  wish
		// want are the node and the victims, or a part of why there are none.
		want string
	}{
		"a share":               {func(s *stage) { shares(s) }, wishes(podOf("p", 9), "10Gi"), "n1 a"},
		"two shares of one GPU": {func(s *stage) { shares(s) }, wishes(podOf("p", 9), "20Gi"), "n1 a c"},
		"shares of both GPUs":   {func(s *stage) { shares(s) }, wishes(podOf("p", 9), "12Gi", "12Gi"), "n1 a b"},
		"there is room": {func(s *stage) { shares(s) }, wishes(podOf("p", 9), "2Gi"),
			"there is room on node n1"},
		"it never fits": {func(s *stage) { shares(s) }, wishes(podOf("p", 9), "40Gi"), "would not fit"},
		"in too many ways to try": {func(s *stage) { shares(s) },
			wishes(podOf("p", 9), slices.Repeat([]string{"2Gi"}, 24)...), "node n1: not searched to the end"},
		"of equal priority": {func(s *stage) { shares(s) }, wishes(podOf("p", 0), "10Gi"),
			"no pod of lower priority"},
		"lower ones are not enough": {func(s *stage) { shares(s) }, wishes(podOf("p", 2), "20Gi"), "would not fit"},
		"whole GPUs": {func(s *stage) {
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 5), "gpu")
			s.runs("n1", podOf("b", 4), "gpu")
		}, wishes(podOf("p", 9), "gpu"), "n1 b"},
		"linked GPUs": {func(s *stage) {
			s.node("n1", mode.Topology)
			s.runs("n1", podOf("a", 5), "linked")
			s.runs("n1", podOf("b", 4), "linked")
		}, wishes(podOf("p", 9), "linked"), "n1 b"},
		"the node with the lowest victim": {func(s *stage) {
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 5), "gpu", "gpu")
			s.node("n2", mode.Exclusive)
			s.runs("n2", podOf("b", 1), "gpu", "gpu")
		}, wishes(podOf("p", 9), "gpu"), "n2 b"},
		"the node with room": {func(s *stage) {
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 5), "gpu", "gpu")
			s.node("n2", mode.Exclusive)
		}, wishes(podOf("p", 9), "gpu"), "there is room on node n2"},
		"only where it may go": {func(s *stage) {
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 5), "gpu", "gpu")
			s.node("n2", mode.Exclusive)
		}, wishes(podOf("p", 9, on("n1")), "gpu"), "n1 a"},
		"not on a tainted node": {func(s *stage) {
			shares(s)
			s.nodes[0].Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		}, wishes(podOf("p", 9), "10Gi"), "would not fit"},
		"nor on one that is drained": {func(s *stage) {
			shares(s)
			s.nodes[0].Spec.Unschedulable = true
		}, wishes(podOf("p", 9), "10Gi"), "would not fit"},
		"CPUs that the victims have": {func(s *stage) { shares(s, cpus("2")) }, wishes(podOf("p", 9, cpus("2")), "10Gi"),
			"n1 a"},
		"CPUs that more victims have": {func(s *stage) { shares(s, cpus("2")) }, wishes(podOf("p", 9, cpus("4")), "10Gi"),
			"n1 a b"},
		"CPUs alone are the scheduler's affair": {func(s *stage) { shares(s, cpus("2")) },
			wishes(podOf("p", 9, cpus("2")), "2Gi"), "would not fit"},
		"CPUs that others have": {func(s *stage) {
			shares(s)
			s.runs("n1", podOf("other", 0, cpus("7")))
		}, wishes(podOf("p", 9, cpus("2")), "10Gi"), "would not fit"},
		"CPUs, and others keep it away": {func(s *stage) {
			shares(s, cpus("2"))
			s.runs("n1", podOf("other", 0, antiAffinity("p")))
		}, wishes(podOf("p", 9, cpus("2")), "10Gi"), "would not fit"},
		"CPUs, and it keeps away from the victim": {func(s *stage) { shares(s, cpus("2")) },
			wishes(podOf("p", 9, cpus("2"), antiAffinity("a")), "10Gi"), "n1 a"},
		"it keeps away from others than are there": {func(s *stage) { shares(s) },
			wishes(podOf("p", 9, antiAffinity("x")), "10Gi"), "n1 a"},
		"a budget": {func(s *stage) {
			shares(s)
			s.budget("a", 0)
		}, wishes(podOf("p", 9), "10Gi"), "n1 b"},
		"two budgets": {func(s *stage) {
			shares(s)
			s.budget("a", 1)
			s.budget("a", 1)
		}, wishes(podOf("p", 9), "10Gi"), "n1 b"},
		"a budget that was not looked at yet": {func(s *stage) {
			shares(s)
			s.budget("a", 1)
			s.disruptions[0].Generation = 2
			s.budgets = scheduling.NewBudgets(s.disruptions)
		}, wishes(podOf("p", 9), "10Gi"), "n1 b"},
		"nobody of the system's": {func(s *stage) { shares(s, namespaced(metav1.NamespaceSystem)) },
			wishes(podOf("p", 9), "10Gi"), "no pod of lower priority"},
		"a claim that others share": {func(s *stage) {
			n := s.node("n1", mode.Exclusive)
			a, b, c := podOf("a", 0), podOf("b", 9), podOf("c", 1)
			s.runs("n1", a)
			s.runs("n1", b)
			s.claimed(n, []string{"gpu"}, a, b)
			s.runs("n1", c, "gpu")
		}, wishes(podOf("p", 9), "gpu"), "n1 c"},
		"a claim that victims share": {func(s *stage) {
			n := s.node("n1", mode.Exclusive)
			a, b := podOf("a", 0), podOf("b", 1)
			s.runs("n1", a)
			s.runs("n1", b)
			s.claimed(n, []string{"gpu"}, a, b)
			s.runs("n1", podOf("c", 9), "gpu")
		}, wishes(podOf("p", 9), "gpu"), "n1 a b"},
		"a claim that something else holds": {func(s *stage) {
			shares(s)
			s.nodes[0].claims[0].Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
				{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "a", UID: "a"}}
		}, wishes(podOf("p", 9), "10Gi"), "n1 b"},
		"somebody is about to make room": {func(s *stage) {
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 5, terminating(noon.Add(time.Minute))), "gpu")
			s.runs("n1", podOf("b", 4), "gpu")
		}, wishes(podOf("p", 9), "gpu"), "about to be"},
		"of two that made room one is left, as after a restart": {func(s *stage) {
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 5, terminating(noon.Add(time.Minute))), "gpu")
			s.runs("n1", podOf("b", 4), "gpu")
		}, wishes(podOf("p", 9), "gpu", "gpu"), "pods are leaving the best node, n1"},
		"one that leaves makes no room, and a victim is enough": {func(s *stage) {
			shares(s)
			s.runs("n1", podOf("e", 9), "2Gi")
			s.runs("n1", podOf("f", 9, terminating(noon.Add(time.Minute))), "2Gi")
		}, wishes(podOf("p", 9), "10Gi"), "n1 a"},
		"one that leaves has what a victim's share lacks": {func(s *stage) {
			shares(s)
			s.pods[2].DeletionTimestamp = &metav1.Time{Time: noon.Add(time.Minute)}
		}, wishes(podOf("p", 9), "20Gi"), "pods are leaving the best node, n1"},
		"one that leaves has CPUs that a victim lacks": {func(s *stage) {
			shares(s, cpus("2"))
			s.pods[3].DeletionTimestamp = &metav1.Time{Time: noon.Add(time.Minute)}
		}, wishes(podOf("p", 9, cpus("4")), "12Gi"), "pods are leaving the best node, n1"},
		"somebody should have gone long ago": {func(s *stage) {
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 5, terminating(noon.Add(-2*time.Minute))), "gpu")
			s.runs("n1", podOf("b", 4), "gpu")
		}, wishes(podOf("p", 9), "gpu"), "n1 b"},
		"a pod that is gone and whose claim is not": {func(s *stage) {
			shares(s)
			s.nodes[0].pods = s.nodes[0].pods[1:]
		}, wishes(podOf("p", 9), "10Gi"), "about to be"},
		"others are evicted from the node for another": {func(s *stage) {
			shares(s)
			s.reserved = map[string]bool{"n1": true}
		}, wishes(podOf("p", 9), "10Gi"), "would not fit"},
		"what leaves a reserved node is for another": {func(s *stage) {
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 5, terminating(noon.Add(time.Minute))), "gpu", "gpu")
			s.node("n2", mode.Exclusive)
			s.runs("n2", podOf("b", 4), "gpu", "gpu")
			s.reserved = map[string]bool{"n1": true}
		}, wishes(podOf("p", 9), "gpu"), "n2 b"},
		"GPUs and CPUs of one that leaves": {cpusLeaving, wishes(podOf("p", 9, cpus("4")), "gpu"), "about to be"},
		"GPUs and CPUs of one that leaves, for a pod with other wishes": {cpusLeaving,
			wishes(podOf("p", 9, cpus("4"), antiAffinity("x")), "gpu"), "about to be"},
		"CPUs of one that leaves a reserved node are for another": {func(s *stage) {
			cpusLeaving(s)
			s.reserved = map[string]bool{"n1": true}
		}, wishes(podOf("p", 9, cpus("4")), "gpu"), "n2 b"},
		"CPUs of one that should have gone long ago": {func(s *stage) {
			cpusLeaving(s)
			terminating(noon.Add(-2 * time.Minute))(s.nodes[0].pods[0])
		}, wishes(podOf("p", 9, cpus("4")), "gpu"), "n2 b"},
		"CPUs of one that leaves are not enough": {cpusLeaving, wishes(podOf("p", 9, cpus("9")), "gpu"), "would not fit"},
		"CPUs of one that leaves and a GPU of another": {func(s *stage) {
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 5, cpus("7"), terminating(noon.Add(time.Minute))))
			s.runs("n1", podOf("b", 1), "gpu", "gpu")
		}, wishes(podOf("p", 9, cpus("4")), "gpu"), "pods are leaving the best node, n1"},
		"CPUs, and others keep those of their own namespace away": {func(s *stage) {
			shares(s, cpus("2"))
			s.runs("n1", podOf("other", 0, namespaced("else"), antiAffinity("p")))
		}, wishes(podOf("p", 9, cpus("2")), "10Gi"), "n1 a"},
		"CPUs, and others keep those of namespaces away that are named": {func(s *stage) {
			shares(s, cpus("2"))
			s.runs("n1", podOf("other", 0, antiAffinity("p"), ofNamespaces("else")))
		}, wishes(podOf("p", 9, cpus("2")), "10Gi"), "n1 a"},
		"CPUs, and others keep it away whose namespace is named": {func(s *stage) {
			shares(s, cpus("2"))
			s.runs("n1", podOf("other", 0, namespaced("else"), antiAffinity("p"), ofNamespaces("x", "ns")))
		}, wishes(podOf("p", 9, cpus("2")), "10Gi"), "would not fit"},
		"CPUs, and others keep it away in all namespaces": {func(s *stage) {
			shares(s, cpus("2"))
			s.runs("n1", podOf("other", 0, namespaced("else"), antiAffinity("p"), func(pod *corev1.Pod) {
				terms := pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
				terms[0].NamespaceSelector = &metav1.LabelSelector{}
			}))
		}, wishes(podOf("p", 9, cpus("2")), "10Gi"), "would not fit"},
		"a node whose pool is not whole": {func(s *stage) {
			shares(s)
			s.nodes[0].pool = nil
		}, wishes(podOf("p", 9), "10Gi"), "would not fit"},
		"beside others": {func(s *stage) { shares(s) }, wishes(podOf("p", 9, func(pod *corev1.Pod) {
			pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{}}}}
		}), "10Gi"), "more than is looked at"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			test.stage(s)
			s.plans(test.wish, test.want)
		})
	}
}

// randomly fills two nodes with pods.
func randomly(s *stage, r *rand.Rand) wish {
	wanted := []string{"4Gi", "9Gi", "14Gi", "20Gi"}
	modes := []mode.Mode{mode.Share, mode.Exclusive}
	for _, name := range []string{"n1", "n2"} {
		m := modes[r.IntN(2)]
		n := s.node(name, m)
		for i := range 5 {
			of := []string{wanted[r.IntN(len(wanted))]}
			if m == mode.Exclusive {
				of = []string{"gpu"}
			}
			results, err := s.offered[name].Allocate(s.Context(), asking(of...))
			expect.NoError(s, err)
			if results == nil {
				continue
			}
			s.offered[name].Release(results)
			pod := podOf(fmt.Sprint(name, "-", i), int32(r.IntN(4)), func(pod *corev1.Pod) {
				pod.Spec.NodeName = name
				pod.CreationTimestamp.Time = noon.Add(time.Duration(r.IntN(3)) * time.Minute)
			})
			n.pods, s.pods = append(n.pods, pod), append(s.pods, pod)
			s.claimed(n, of, pod)
		}
	}
	pod := podOf("p", int32(1+r.IntN(4)))
	if r.IntN(3) == 0 {
		return wishes(pod, []string{"gpu", "gpu"}[:1+r.IntN(2)]...)
	}
	return wishes(pod, wanted[r.IntN(len(wanted))])
}

// cheapest tries all sets of pods of lower priority of all nodes, with allocations from
// scratch. room says that nobody has to go.
func (s *stage) cheapest(ctx context.Context, w wish) (best *cost, room bool) {
	for _, n := range s.nodes {
		for set := range 1 << len(n.pods) {
			offered := allocatortest.NewNode(n.Name, v1alpha1.DriverName, resourcesOf(n.Name, modeOf(n)), s.classes)
			var victims []candidate
			var indices []int
			allowed := true
			for i, pod := range n.pods {
				if set&(1<<i) == 0 {
					offered.Hold(n.claims[i].Status.Allocation.Devices.Results)
					continue
				}
				allowed = allowed && corev1helpers.PodPriority(pod) < corev1helpers.PodPriority(w.pod)
				indices = append(indices, len(victims))
				victims = append(victims, candidate{priority: corev1helpers.PodPriority(pod), started: startedAt(pod)})
			}
			if !allowed {
				continue
			}
			results, err := offered.Allocate(ctx, w.claims[0].Spec.Devices)
			expect.NoError(s, err)
			if results == nil {
				continue
			}
			if set == 0 {
				return nil, true
			}
			if c := costOf(victims, indices); best == nil || c.compare(*best) < 0 {
				best = &c
			}
		}
	}
	return best, false
}

func modeOf(n *node) mode.Mode { return n.pool[0].GPUs[0].Mode }

func TestPlanIsTheCheapestOfAll(t *testing.T) {
	evicted, rooms, none := 0, 0, 0
	for seed := range uint64(200) {
		s := newStage(t)
		w := randomly(s, rand.New(rand.NewPCG(seed, 1)))
		best, room := s.cheapest(t.Context(), w)
		o, why, err := s.plan(t.Context(), w)
		expect.NoError(t, err)
		switch {
		case room:
			rooms++
		case best == nil:
			none++
		default:
			evicted++
		}
		if strings.HasPrefix(why, "no pod of lower priority") {
			// Then it is not looked for room, either.
			room = false
		}
		if room != strings.HasPrefix(why, "there is room") || (best == nil) != (o == nil) ||
			o != nil && o.cost.compare(*best) != 0 {
			t.Fatalf("seed %d: plan %+v (%s), by force %+v, room %t", seed, o, why, best, room)
		}
		if o != nil && slices.ContainsFunc(o.uids(),
			func(uid types.UID) bool { return !strings.HasPrefix(string(uid), o.node.Name) }) {
			t.Fatalf("seed %d: victims %v are not on node %s", seed, o.uids(), o.node.Name)
		}
	}
	if evicted < 50 || rooms < 15 || none < 15 {
		t.Errorf("%d with victims, %d with room, %d without either: the test shows little", evicted, rooms, none)
	}
}

// Of 1000 nodes with 20 shares on each of two GPUs: what one look at a pod costs.
func BenchmarkPlan(b *testing.B) {
	s := newStage(b)
	for i := range 1000 {
		name := fmt.Sprint("n", i)
		s.node(name, mode.Share)
		for j := range 40 {
			s.runs(name, podOf(fmt.Sprint(name, "-", j), int32(i%7)), "1Gi")
		}
	}
	w := wishes(podOf("p", 9), "5Gi")
	for b.Loop() {
		if _, victims, why := s.victims(w); len(victims) == 0 {
			b.Fatal(why)
		}
	}
}
