package plugin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// A pod that was made anew under the name of one that the claim is reserved for does
// not use the claim: what it says about limits counts for nothing.
func TestPodsWithAClaimAreThoseItIsReservedFor(t *testing.T) {
	pod := func(name string, uid types.UID) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: uid}}
	}
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	for name, uid := range map[string]types.UID{"user": "u1", "gone": "u2", "namesake": "u3"} {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: uid})
	}
	a := &agent{Config: Config{Client: fake.NewClientset(pod("user", "u1"), pod("namesake", "u4"), pod("other", "u5"))}}
	pods, err := a.podsWith(t.Context(), c)
	if err != nil || len(pods) != 1 || pods[0].Name != "user" {
		t.Errorf("pods %v, error %v; want the pod that the claim is reserved for, by its UID", pods, err)
	}
}
