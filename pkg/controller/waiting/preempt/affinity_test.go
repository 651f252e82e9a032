// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"fmt"
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
		want  string
	}{
		"nobody":                      {podOf("pause", 0), "n1 a"},
		"of its node":                 {podOf("pause", 0, antiAffinity("p")), "n1 a"},
		"of its zone":                 {podOf("pause", 0, antiAffinity("p"), within("zone", nil)), "would not fit"},
		"of nodes that there are not": {podOf("pause", 0, antiAffinity("p"), within("rack", nil)), "n1 a"},
		"others":                      {podOf("pause", 0, antiAffinity("q")), "n1 a"},
		"of another namespace":        {podOf("pause", 0, namespaced("else"), antiAffinity("p")), "n1 a"},
		"of all namespaces": {podOf("pause", 0, namespaced("else"), antiAffinity("p"),
			within(corev1.LabelHostname, everywhere)), "n1 a"},
		"of namespaces that this is not": {podOf("pause", 0, antiAffinity("p"),
			within(corev1.LabelHostname, tenants)), "n1 a"},
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
			s.plans(wishes(podOf("p", 9), "gpu"), test.want)
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
			s.plans(wishes(podOf("p", 9), "gpu"), test.want)
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
	s.plans(wishes(podOf("p", 9), "5Gi"), "n1 keeper")
}

// Nobody is evicted while one that leaves still keeps the pod away: it would not be placed, and they had gone in vain.
func TestNoEvictionBesideOneThatKeepsOthersAwayAndLeaves(t *testing.T) {
	for name, test := range map[string]struct {
		change []func(*corev1.Pod)
		want   string
	}{
		"it keeps nobody away":  {nil, "n1 plain"},
		"it keeps the pod away": {[]func(*corev1.Pod){antiAffinity("p")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.node("n1", mode.Share)
			s.runs("n1", podOf("high", 9), "20Gi")
			s.runs("n1", podOf("leaves", 1, append(test.change, terminating(noon.Add(time.Minute)))...), "1Gi")
			s.runs("n1", podOf("plain", 1), "20Gi")
			s.plans(wishes(podOf("p", 9), "20Gi"), test.want)
		})
	}
}

// Nor does a pod cost others their place where it keeps away itself, unless they are what it keeps away from.
func TestPodThatKeepsAwayItself(t *testing.T) {
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"from nobody that is there":   {podOf("p", 9, antiAffinity("x")), "n1 a"},
		"from the victim":             {podOf("p", 9, antiAffinity("a")), "n1 a"},
		"from one that is no victim":  {podOf("p", 9, antiAffinity("high")), "would not fit"},
		"from one of its zone":        {podOf("p", 9, antiAffinity("far"), within("zone", nil)), "would not fit"},
		"from one of other nodes":     {podOf("p", 9, antiAffinity("far")), "n1 a"},
		"from one that has no device": {podOf("p", 9, antiAffinity("plain")), "would not fit"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.node("n1", mode.Exclusive)
			s.runs("n1", podOf("a", 1), "gpu")
			s.runs("n1", podOf("high", 9), "gpu")
			s.runs("n1", podOf("plain", 1))
			s.node("n2", mode.Exclusive).pool = nil
			s.runs("n2", podOf("far", 1))
			for _, n := range s.nodes {
				n.Labels["zone"] = "z"
			}
			s.plans(wishes(test.pod, "gpu"), test.want)
		})
	}
}
