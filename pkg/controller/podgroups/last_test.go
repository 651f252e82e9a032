// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// of is a pod that a Job made.
func of(job string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: types.UID(job),
			Controller: ptr.To(true)}}
	}
}

func phase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// A Job of six pods, of which four run at a time, makes two when four have succeeded. The scheduler
// counts none that has ended.
func TestTheLastPodsOfAJob(t *testing.T) {
	placed := func(p *corev1.Pod) { p.Spec.NodeName = "n1" }
	for name, test := range map[string]struct {
		first       []func(*corev1.Pod)
		last        string
		want, later int32
	}{
		"succeeded":   {[]func(*corev1.Pod){of("job"), phase(corev1.PodSucceeded)}, "job", 4, 2},
		"failed":      {[]func(*corev1.Pod){of("job"), phase(corev1.PodFailed)}, "job", 4, 4},
		"run":         {[]func(*corev1.Pod){of("job"), placed}, "job", 4, 4},
		"another Job": {[]func(*corev1.Pod){of("job"), phase(corev1.PodSucceeded)}, "other", 4, 4},
		"no Job":      {[]func(*corev1.Pod){phase(corev1.PodSucceeded)}, "other", 4, 4},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, true, nil, func(s *site) {
				first := []*corev1.Pod{member("a", "4"), member("b", "4"), member("c", "4"), member("d", "4")}
				s.create(first...)
				s.has(4)
				for _, pod := range first {
					for _, change := range test.first {
						change(pod)
					}
					s.update(pod)
				}
				s.after(time.Second)
				last := []*corev1.Pod{member("e", "4", of(test.last)), member("f", "4", of(test.last))}
				s.create(last...)
				s.after(grace / 2)
				s.has(test.want)
				s.after(grace/2 + time.Second)
				s.has(test.later)
				// What comes next is held again.
				for _, pod := range last {
					placed(pod)
					s.update(pod)
				}
				s.has(4)
			})
		})
	}
}

// As long as others come, those that are there wait for them.
func TestPodsOfAJobThatComeSlowly(t *testing.T) {
	run(t, true, nil, func(s *site) {
		s.create(member("a", "3", of("job"), phase(corev1.PodSucceeded)))
		for _, name := range []string{"b", "c", "d"} {
			s.create(member(name, "3", of("job")))
			s.after(grace - time.Second)
			s.has(3)
		}
		s.after(10 * grace)
		s.has(3)
	})
}

// The clock of the API server, by which pods have their times, is another than the controller's.
func TestTheLastPodsOfAJobWhereClocksAreApart(t *testing.T) {
	for _, apart := range []time.Duration{-24 * time.Hour, -time.Minute, time.Minute, 24 * time.Hour} {
		run(t, true, nil, func(s *site) {
			s.apart = apart
			s.create(member("a", "3", of("job"), phase(corev1.PodSucceeded), ago(-apart)))
			s.create(member("b", "3", of("job"), ago(-apart)))
			s.after(grace - time.Second)
			s.has(3)
			s.after(2 * time.Second)
			s.has(1)
		})
	}
}
