// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// A job that is made again under its name while its PodGroup is still there may have another
// priority, and the scheduler places no gang whose PodGroup has another one than its pods.
func TestPodGroupOfAnotherPriority(t *testing.T) {
	high := func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }
	class := func(s *site) string {
		s.Helper()
		return apitest.Get[*schedulingapi.PodGroup](s, s.client, "ns", "g").Spec.PriorityClassName
	}
	left := func() *schedulingapi.PodGroup {
		group := &schedulingapi.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g", UID: "old",
			Labels:     map[string]string{v1alpha1.LabelManagedBy: "gpu-compat-controller"},
			Finalizers: []string{protection}}}
		group.Spec.SchedulingPolicy.Gang = &schedulingapi.GangSchedulingPolicy{MinCount: 2}
		return group
	}
	run(t, true, []runtime.Object{left()}, func(s *site) {
		s.create(member("a", "2", high))
		expect.Equal(s, "high", class(s), "class of the PodGroup and of the pods")
		s.has(2)
		expect.Equal(s, nil, s.said(), "told")
	})
	// What runs keeps its PodGroup.
	run(t, true, []runtime.Object{left()}, func(s *site) {
		s.create(member("runs", "2", func(p *corev1.Pod) { p.Spec.NodeName = "n1" }))
		s.after(time.Second)
		s.create(member("a", "2", high))
		expect.Equal(s, "", class(s), "class of the PodGroup and of the pod that runs")
		if events := s.said(); len(events) != 1 || !strings.Contains(events[0], "the gang's PodGroup has no priority "+
			"class, the pod has priority class high") {
			s.Errorf("told %q, want why the pod waits", events)
		}
	})
	// One that is newer than its pods has the class that the API server gave it.
	newer := left()
	newer.CreationTimestamp = metav1.NewTime(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))
	run(t, true, []runtime.Object{newer}, func(s *site) {
		s.create(member("a", "2", high))
		expect.Equal(s, "", class(s), "class that the PodGroup keeps")
	})
}

// A gang of two priorities keeps its PodGroup as long as pods that have its class need it, and
// the others are told at once. Its size follows the pods meanwhile.
func TestGangOfTwoPriorities(t *testing.T) {
	const text = "the gang's PodGroup has no priority class, the pod has priority class high"
	high := func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }
	group := func(s *site) *schedulingapi.PodGroup {
		s.Helper()
		return apitest.Get[*schedulingapi.PodGroup](s, s.client, "ns", "g")
	}
	told := func(s *site, want int) {
		s.Helper()
		events := s.said()
		for _, event := range events {
			expect.Says(s, event, text)
		}
		expect.Equal(s, want, len(events), "Events: %q", events)
	}
	for name, node := range map[string]string{"nothing runs": "", "one runs": "n1"} {
		t.Run(name, func(t *testing.T) {
			run(t, true, nil, func(s *site) {
				low := member("low", "2", func(p *corev1.Pod) { p.Spec.NodeName = node })
				s.create(low)
				s.after(time.Second)
				s.create(member("a", "2", high))
				told(s, 1)
				s.after(time.Second)
				s.create(member("b", "2", high))
				told(s, 1)
				expect.Equal(s, "", group(s).Spec.PriorityClassName, "class of the PodGroup and of its first pod")
				s.after(time.Second)
				s.create(member("c", "3", high))
				s.has(3)
				told(s, 1)
				// What changes nothing asks the API server for nothing.
				s.client.ClearActions()
				low.Labels["changed"] = "by somebody"
				s.update(low)
				for _, action := range s.client.Actions() {
					if action.GetResource().Resource == "podgroups" {
						s.Errorf("it did %s %s", action.GetVerb(), action.GetResource().Resource)
					}
				}
				s.remove("low")
				expect.Equal(s, "high", group(s).Spec.PriorityClassName, "class of the PodGroup and of the pods that are left")
				s.has(3)
				told(s, 0)
			})
		})
	}
}

// The pods of somebody else's PodGroup are told nothing: its priority is not the controller's.
func TestTwoPrioritiesInTheGroupOfAnother(t *testing.T) {
	others := &schedulingapi.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}}
	others.Spec.SchedulingPolicy.Gang = &schedulingapi.GangSchedulingPolicy{MinCount: 7}
	run(t, true, []runtime.Object{others}, func(s *site) {
		s.create(member("low", "2"))
		s.create(member("a", "2", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }))
		s.after(2 * lookAgain)
		s.has(7)
		expect.Equal(s, nil, s.said(), "told")
	})
}
