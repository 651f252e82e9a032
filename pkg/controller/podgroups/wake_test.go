// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// woken are the pods that were changed so that their claims are made.
func (s *site) woken() []string {
	s.Helper()
	pods, err := s.client.CoreV1().Pods("ns").List(s.Context(), metav1.ListOptions{})
	expect.NoError(s, err)
	var names []string
	for i := range pods.Items {
		if pods.Items[i].Annotations[v1alpha1.AnnotationSyncRequested] != "" {
			names = append(names, pods.Items[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

// writes counts what was done to pods.
func (s *site) writes() int { return s.writesTo("") }

// writesTo counts what was done to a pod, or to all.
func (s *site) writesTo(name string) (n int) {
	for _, action := range s.client.Actions() {
		patch, is := action.(k8stesting.PatchAction)
		if is && action.GetResource().Resource == "pods" && (name == "" || patch.GetName() == name) {
			n++
		}
	}
	return n
}

func ago(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Now().Add(-d)) }
}

func unmade(p *corev1.Pod) {
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("t")}}
}

func made(p *corev1.Pod) {
	unmade(p)
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: ptr.To("c")}}
}

// Pods that waited for their PodGroup while no controller was there would wait as long again for their claims.
func TestPodsThatWereThereFirstAreWoken(t *testing.T) {
	old := ago(time.Minute)
	run(t, true, nil, func(s *site) {
		fails := 1
		apitest.Answer(s.client, "patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if fails--; fails < 0 {
				return false, nil, nil
			}
			return true, nil, errors.New("not now")
		})
		s.create(member("a", "2", old, unmade), member("b", "2", old, unmade), member("has", "2", old, made),
			member("new", "2", unmade), member("other", "2", old), member("placed", "2", old, unmade,
				func(p *corev1.Pod) { p.Spec.NodeName = "n1" }))
		expect.Equal(s, nil, s.woken(), "woken at once")
		s.after(10 * time.Second)
		// Times are whole seconds: one of the same second may have been there first.
		expect.Equal(s, []string{"a", "b", "new"}, s.woken(), "woken")
		s.client.ClearActions()
		s.after(10 * lookAgain)
		s.create(member("later", "3", unmade))
		s.after(lookAgain)
		expect.Equal(s, 0, s.writes(), "writes to pods that were woken, or came later")
	})
}

// What a policy refuses for one pod has no other changed again and again, nor is the gang looked at any less often.
func TestARefusedPodKeepsNoOtherFromBeingWoken(t *testing.T) {
	pod := func(name string) *corev1.Pod {
		return member(name, "2", ago(time.Minute), unmade)
	}
	for name, test := range map[string]struct {
		refusal error
		most    int
	}{
		"a policy":  {apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("a policy")), 61},
		"no answer": {errors.New("no answer"), 400},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, true, nil, func(s *site) {
				apitest.Answer(s.client, "patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
					refused := a.(k8stesting.PatchAction).GetName() == "a"
					return refused, nil, test.refusal
				})
				s.create(pod("a"), pod("b"))
				s.after(time.Hour)
				expect.Equal(s, 1, s.writesTo("b"), "writes to the pod that is not refused")
				// What is refused for a while, as by a webhook that is down, is tried again.
				if n := s.writesTo("a"); n < 2 || n > test.most {
					s.Errorf("%d writes to the refused pod in an hour, want 2 to %d", n, test.most)
				}
			})
		})
	}
}

// Pods whose claims are made soon after their PodGroup are left alone.
func TestPodsOfANewGangAreNotWoken(t *testing.T) {
	run(t, true, nil, func(s *site) {
		for _, name := range []string{"a", "b"} {
			s.create(member(name, "2", ago(time.Second), unmade))
		}
		s.after(time.Second)
		for _, name := range []string{"a", "b"} {
			s.update(member(name, "2", ago(2*time.Second), made))
		}
		s.after(time.Hour)
		expect.Equal(s, 0, s.writes(), "writes to pods")
	})
}

// However short a pod waited for its PodGroup, its next try may be far: kube-controller-manager tries ten of all
// pods again in a second.
func TestPodsThatAreHardlyOlderThanTheirPodGroupAreWoken(t *testing.T) {
	run(t, true, nil, func(s *site) {
		s.create(member("a", "2", ago(time.Second), unmade), member("b", "2", ago(time.Second), unmade))
		s.after(settle - time.Millisecond)
		expect.Equal(s, 0, s.writes(), "writes to pods that may be tried again by themselves")
		s.after(10 * time.Second)
		expect.Equal(s, []string{"a", "b"}, s.woken(), "woken")
		s.after(time.Hour)
		expect.Equal(s, 2, s.writes(), "writes to pods, one for each")
	})
}

// However far the API server's clock is from the controller's.
func TestPodsAreWokenWhereClocksAreApart(t *testing.T) {
	for _, apart := range []time.Duration{-24 * time.Hour, -time.Minute, time.Minute, 24 * time.Hour} {
		run(t, true, nil, func(s *site) {
			s.apart = apart
			s.create(member("a", "2", ago(time.Second-apart), unmade), member("b", "2", ago(time.Second-apart), unmade))
			s.after(10 * time.Second)
			expect.Equal(s, []string{"a", "b"}, s.woken(), "woken by a clock apart by %v", apart)
		})
	}
}

// While some pods of a large gang are woken, the claims of the others are made.
func TestOfALargeGangOnlyThoseWithoutClaimsAreWoken(t *testing.T) {
	run(t, true, nil, func(s *site) {
		var others []*corev1.Pod
		writes := 0
		apitest.Answer(s.client, "patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			// The client's limit.
			time.Sleep(20 * time.Millisecond)
			s.mu.Lock()
			defer s.mu.Unlock()
			if writes++; writes > 1 {
				return false, nil, nil
			}
			for _, pod := range others {
				made(pod)
				apitest.Update(s, s.client, pod)
			}
			return false, nil, nil
		})
		var all []*corev1.Pod
		for i := range mostWoken + 10 {
			all = append(all, member(fmt.Sprintf("p%02d", i), "2", ago(time.Second), unmade))
		}
		s.create(all...)
		s.mu.Lock()
		others = all[mostWoken:]
		s.mu.Unlock()
		s.after(time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		expect.Equal(s, mostWoken, writes, "writes to pods")
	})
}

// A controller that starts finds pods that wait for something else: each was tried again since its PodGroup came.
func TestPodsOfAnOldPodGroupAreNotWoken(t *testing.T) {
	group := &schedulingapi.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}}
	// The time in the bubble is not that outside it.
	group.CreationTimestamp = metav1.NewTime(time.Date(1999, 12, 31, 23, 0, 0, 0, time.UTC))
	run(t, true, []runtime.Object{group}, func(s *site) {
		s.create(member("a", "2", ago(2*time.Hour), unmade))
		s.after(time.Hour)
		expect.Equal(s, 0, s.writes(), "writes to pods")
	})
}
