// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// processes are the pods that have some.
type processes map[types.UID]bool

func (p processes) Running(pod types.UID) (bool, error) { return p[pod], nil }

// Pods that were deleted count until they have no processes.
func TestUsersOfClaims(t *testing.T) {
	running := processes{"b1": true}
	u := NewUsers(running)
	pod := func(name string, uid types.UID) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: uid},
			Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("c")}}},
		}
	}
	handler := u.Handler()
	handler.OnAdd(pod("a", "a1"), true)
	handler.OnAdd(pod("b", "b1"), false)
	handler.OnAdd(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "none", UID: "n1"}}, false)
	check := func(want ...types.UID) {
		t.Helper()
		if diff := cmp.Diff(want, u.UsersOf("team", "c")); diff != "" {
			t.Errorf("users (-want +got):\n%s", diff)
		}
	}
	check("a1", "b1")
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
	u.forget()
	check("a1", "b1")
	delete(running, "b1")
	u.forget()
	check("a1")
	handler.OnUpdate(pod("a", "a1"), pod("a", "a2"))
	select {
	case <-u.left:
	default:
		t.Error("nobody was told of a pod that was created again")
	}
	u.forget()
	check("a2")
}
