// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
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
func (s *site) writes() (n int) {
	for _, action := range s.client.Actions() {
		if action.GetVerb() == "patch" && action.GetResource().Resource == "pods" {
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
