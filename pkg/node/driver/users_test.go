// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Pods that were deleted count until they have no processes.
func TestUsersOfClaims(t *testing.T) {
	u := newUsers()
	pod := func(name string, uid types.UID) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: uid},
			Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("c")}}},
		}
	}
	handler := u.handler()
	handler.OnAdd(pod("a", "a1"), true)
	handler.OnAdd(pod("b", "b1"), false)
	handler.OnAdd(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "none", UID: "n1"}}, false)
	check := func(want ...types.UID) {
		t.Helper()
		if diff := cmp.Diff(want, u.of("team", "c")); diff != "" {
			t.Errorf("users (-want +got):\n%s", diff)
		}
	}
	check("a1", "b1")
	running := map[types.UID]bool{"b1": true}
	runs := func(pod types.UID) (bool, error) { return running[pod], nil }
	r := state.Record{Namespace: "team", Name: "c"}
	if u.leftOf(r) {
		t.Error("a pod was deleted")
	}
	handler.OnDelete(pod("b", "b1"))
	select {
	case <-u.left:
	default:
		t.Error("nobody was told")
	}
	if !u.leftOf(r) || u.leftOf(state.Record{Namespace: "other", Name: "c"}) {
		t.Error("not known which claim the deleted pod used")
	}
	u.forget(runs)
	check("a1", "b1")
	delete(running, "b1")
	u.forget(runs)
	check("a1")
}
