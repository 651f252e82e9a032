// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// woken are the pods that were changed so that their claims are made.
func (s *site) woken() []string {
	s.Helper()
	pods, err := s.client.CoreV1().Pods("ns").List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
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

// Pods that waited for their PodGroup while no controller was there would wait as long again for their claims.
func TestPodsThatWereThereFirstAreWoken(t *testing.T) {
	unmade := func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("t")}}
	}
	made := func(p *corev1.Pod) {
		unmade(p)
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: ptr.To("c")}}
	}
	old := func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Minute)) }
	run(t, true, nil, func(s *site) {
		fails := 1
		s.client.PrependReactor("patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
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
		if got := s.woken(); len(got) > 0 {
			s.Errorf("at once: %q", got)
		}
		s.after(10 * time.Second)
		if diff := cmp.Diff([]string{"a", "b"}, s.woken()); diff != "" {
			s.Errorf("woken (-want +got):\n%s", diff)
		}
		s.client.ClearActions()
		s.after(10 * lookAgain)
		s.create(member("later", "3", unmade))
		s.after(lookAgain)
		if n := s.writes(); n != 0 {
			s.Errorf("%d writes to pods that were woken, or came later", n)
		}
	})
}

// What a policy refuses for one pod has no other changed again and again, nor is the gang looked at any less often.
func TestARefusedPodKeepsNoOtherFromBeingWoken(t *testing.T) {
	pod := func(name string) *corev1.Pod {
		return member(name, "2", func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Minute))
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("t")}}
		})
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
				// The API server's own time of creation, which the fake one does not write.
				s.client.PrependReactor("create", "podgroups", func(a k8stesting.Action) (bool, runtime.Object, error) {
					a.(k8stesting.CreateAction).GetObject().(*schedulingapi.PodGroup).CreationTimestamp = metav1.Now()
					return false, nil, nil
				})
				s.client.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
					refused := a.(k8stesting.PatchAction).GetName() == "a"
					return refused, nil, test.refusal
				})
				s.create(pod("a"), pod("b"))
				s.after(time.Hour)
				if n := s.writesTo("b"); n != 1 {
					s.Errorf("%d writes to the pod that is not refused, want 1", n)
				}
				// What is refused for a while, as by a webhook that is down, is tried again.
				if n := s.writesTo("a"); n < 2 || n > test.most {
					s.Errorf("%d writes to the refused pod in an hour, want 2 to %d", n, test.most)
				}
			})
		})
	}
}

// Pods that wait no longer than is usual are left alone.
func TestPodsOfANewGangAreNotWoken(t *testing.T) {
	run(t, true, nil, func(s *site) {
		for _, name := range []string{"a", "b"} {
			s.create(member(name, "2", func(p *corev1.Pod) {
				p.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Second))
				p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("t")}}
			}))
		}
		s.after(time.Hour)
		if n := s.writes(); n != 0 {
			s.Errorf("%d writes to pods", n)
		}
	})
}
