// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// within has the anti-affinity of a pod be for a topology key, and for namespaces with a label.
func within(key string, namespaces *metav1.LabelSelector) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		term := &pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
		term.TopologyKey, term.NamespaceSelector = key, namespaces
	}
}

// A tenant's pod that keeps others away does so where it is, and nowhere else: n1 has GPUs that a
// pod of lower priority holds, n2 has none, and a pod that pauses there.
func TestPodsKeepOthersOffTheirOwnNodesOnly(t *testing.T) {
	everywhere := &metav1.LabelSelector{}
	tenants := &metav1.LabelSelector{MatchLabels: map[string]string{"of": "a-tenant"}}
	for name, test := range map[string]struct {
		pause *corev1.Pod
		// lacking is on how many nodes the scheduler finds everything but devices.
		lacking int
		want    string
	}{
		"nobody":                      {podOf("pause", 0), 2, "n1 a"},
		"of its node":                 {podOf("pause", 0, antiAffinity("p")), 1, "n1 a"},
		"of its zone":                 {podOf("pause", 0, antiAffinity("p"), within("zone", nil)), 0, "would not fit"},
		"of nodes that there are not": {podOf("pause", 0, antiAffinity("p"), within("rack", nil)), 2, "n1 a"},
		"others":                      {podOf("pause", 0, antiAffinity("q")), 2, "n1 a"},
		"of another namespace": {podOf("pause", 0, namespaced("else"), antiAffinity("p")),
			2, "n1 a"},
		"of all namespaces": {podOf("pause", 0, namespaced("else"), antiAffinity("p"),
			within(corev1.LabelHostname, everywhere)), 1, "n1 a"},
		"of namespaces that this is not": {podOf("pause", 0, antiAffinity("p"),
			within(corev1.LabelHostname, tenants)), 2, "n1 a"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 1), "gpu", "gpu")
			s.node("n2", mode.Exclusive).pool = nil
			s.runs("n2", test.pause)
			for _, n := range s.nodes {
				n.Labels["zone"] = "z"
			}
			node, victims, why := s.victims(test.lacking, wishes(podOf("p", 9), "gpu"))
			if got := strings.Join(append([]string{node}, victims...), " "); why == "" && got != test.want ||
				why != "" && !strings.Contains(why, test.want) {
				t.Errorf("%s (%s), want %s", got, why, test.want)
			}
		})
	}
}

// Nor does a pod keep its GPUs by keeping others away.
func TestVictimThatKeepsOthersAway(t *testing.T) {
	for name, test := range map[string]struct {
		other *corev1.Pod
		want  string
	}{
		"a victim":             {podOf("a", 1, antiAffinity("p")), "n1 a"},
		"one that leaves":      {podOf("a", 1, antiAffinity("p"), terminating(noon.Add(time.Minute))), "about to be"},
		"of a higher priority": {podOf("a", 9, antiAffinity("p")), "would not fit"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.node("n1", mode.Exclusive)
			s.runs("n1", test.other, "gpu")
			s.runs("n1", podOf("b", 0), "gpu")
			node, victims, why := s.victims(0, wishes(podOf("p", 9), "gpu"))
			if got := strings.Join(append([]string{node}, victims...), " "); why == "" && got != test.want ||
				why != "" && !strings.Contains(why, test.want) {
				t.Errorf("%s (%s), want %s", got, why, test.want)
			}
		})
	}
}

// Of pods that hold the same, the one that keeps the other away is not like the rest.
func TestVictimThatKeepsOthersAwayIsNotLikeOthers(t *testing.T) {
	s := newStage(t)
	s.node("n1", mode.Share)
	s.runs("n1", podOf("high", 9), "20Gi")
	for i := range 3 {
		s.runs("n1", podOf(fmt.Sprint("plain-", i), 1), "5Gi")
	}
	s.runs("n1", podOf("keeper", 1, antiAffinity("p")), "5Gi")
	if _, victims, why := s.victims(0, wishes(podOf("p", 9), "5Gi")); !slices.Equal(victims, []string{"keeper"}) {
		t.Errorf("victims %q (%s), want the one that keeps the pod away", victims, why)
	}
}

// Nobody is evicted while one that leaves still keeps the pod away: it would not be placed, and they had gone in vain.
func TestNoEvictionBesideOneThatKeepsOthersAwayAndLeaves(t *testing.T) {
	for name, test := range map[string]struct {
		change []func(*corev1.Pod)
		nodes  int
		want   string
	}{
		"it keeps nobody away":  {nil, 1, "n1 plain"},
		"it keeps the pod away": {[]func(*corev1.Pod){antiAffinity("p")}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.node("n1", mode.Share)
			s.runs("n1", podOf("high", 9), "20Gi")
			s.runs("n1", podOf("leaves", 1, append(test.change, terminating(noon.Add(time.Minute)))...), "1Gi")
			s.runs("n1", podOf("plain", 1), "20Gi")
			node, victims, why := s.victims(test.nodes, wishes(podOf("p", 9), "20Gi"))
			if got := strings.TrimSpace(strings.Join(append([]string{node}, victims...), " ")); got != test.want {
				t.Errorf("victims %s (%s), want %q", got, why, test.want)
			}
		})
	}
}
