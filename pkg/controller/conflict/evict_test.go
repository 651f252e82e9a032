// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/reporttest"
)

func TestEvictionThatTheAPIServerRefuses(t *testing.T) {
	pods := corev1.Resource("pods")
	for name, test := range map[string]struct {
		conflict error
		event    []string
	}{
		"it has changed": {apierrors.NewConflict(pods, "new", nil), nil},
		"it is gone":     {apierrors.NewNotFound(pods, "new"), nil},
		"no permission": {apierrors.NewForbidden(pods, "new", nil),
			[]string{"It could not be evicted", "forbidden", "delete the pod: ReplicaSet web makes another"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, twice(ofReplicaSet)...)
			s.conflict = test.conflict
			s.look(0)
			s.look(Starting)
			s.look(Patience)
			reporttest.Told(t, s.recorder, test.event...)
			s.evicted("new")
			s.conflict = nil
			s.look(interval)
			s.evicted("new")
		})
	}
}

// asked is what the API server was asked for since the last call, as "verb resource".
func (s *site) asked() []string {
	var asked []string
	for _, action := range s.client.Actions() {
		asked = append(asked, action.GetVerb()+" "+action.GetResource().Resource)
	}
	s.client.ClearActions()
	return asked
}

// In a burst many pods take longer than moments to start.
func TestPodsThatOnlyTakeLongCostNoRequests(t *testing.T) {
	foreign := claimOf("foreign", "nic-0", "")
	foreign.Status.Allocation.Devices.Results[0].Driver = "nic.example.com"
	s := newSite(t, podOf("old", running), claimOf("old", "gpu-0-share", "8Gi"), podOf("new"),
		claimOf("new", "gpu-0-share", "7Gi"), podOf("foreign"), foreign)
	for range int(lookedLong / interval) {
		s.look(interval)
		if asked := s.asked(); len(asked) > 0 {
			t.Fatalf("it asked the API server: %v", asked)
		}
	}
	// The cache may be wrong, or others than pods hold the GPU.
	s.look(interval)
	if diff := cmp.Diff([]string{"list pods"}, s.asked()); diff != "" {
		t.Errorf("after a minute (-want +got):\n%s", diff)
	}
	if s.look(interval); len(s.client.Actions()) > 0 {
		t.Errorf("soon after that it asked the API server: %v", s.asked())
	}
	s.look(seldom)
	if diff := cmp.Diff([]string{"list pods"}, s.asked()); diff != "" {
		t.Errorf("after another minute (-want +got):\n%s", diff)
	}
}

func TestPodsOfOtherDriversAreNeverLookedAt(t *testing.T) {
	foreign := claimOf("foreign", "nic-0", "")
	foreign.Status.Allocation.Devices.Results[0].Driver = "nic.example.com"
	s := newSite(t, podOf("old", running), claimOf("old", "gpu-0-share", "8Gi"), podOf("foreign"), foreign)
	for range 10 {
		s.look(lookedLong)
	}
	if asked := s.asked(); len(asked) > 0 {
		t.Errorf("it asked the API server: %v", asked)
	}
}

// Claims count as they are, not as the cache had them.
func TestClaimsAreConfirmedBeforeAPodIsEvicted(t *testing.T) {
	s := newSite(t, twice(ofReplicaSet)...)
	s.look(0)
	s.look(Starting)
	moved := claimOf("old", "gpu-1-share", "12Gi")
	if _, err := s.client.ResourceV1().ResourceClaims("default").Update(s.ctx, moved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.look(Patience)
	s.notEvicted()
	reporttest.Told(t, s.recorder)
}

// What fails for a pod is its own affair.
func TestPodThatCannotBeEvictedKeepsNoOther(t *testing.T) {
	s := newSite(t, append(twice(ofReplicaSet), podOf("other", ownedBy("apps/v1", "StatefulSet", "db")),
		claimOf("other", "gpu-0-share", "7Gi"))...)
	s.client.PrependReactor("create", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(k8stesting.CreateAction)
		if !ok {
			return false, nil, nil
		}
		eviction, ok := create.GetObject().(*policyv1.Eviction)
		if !ok || eviction.Name != "new" {
			return false, nil, nil
		}
		s.evictions = append(s.evictions, eviction)
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "new", nil)
	})
	s.look(0)
	s.look(Starting)
	s.look(Patience)
	s.evicted("new", "other")
	s.look(interval)
	s.evicted("new", "other")
	// It fails again and again, and is tried less and less often.
	s.look(interval)
	s.evicted("other")
	s.look(interval)
	s.evicted("new", "other")
}
