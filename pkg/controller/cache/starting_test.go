// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

// starting is a pod on a node that waits for a claim.
func starting(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec: corev1.PodSpec{
			NodeName: "n1", ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("c")}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: make([]corev1.ContainerStatus, 1),
			ContainerStatuses: make([]corev1.ContainerStatus, 1)},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

func TestAwaitsClaims(t *testing.T) {
	type change = func(*corev1.Pod)
	ready := func(status corev1.ConditionStatus) change {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: status}}
		}
	}
	for name, test := range map[string]struct {
		change change
		want   bool
	}{
		"as it is":          {func(*corev1.Pod) {}, true},
		"without a sandbox": {ready(corev1.ConditionFalse), true},
		"with a sandbox":    {ready(corev1.ConditionTrue), false},
		"without a node":    {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"being deleted":     {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, false},
		"running":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, false},
		"without claims":    {func(p *corev1.Pod) { p.Spec.ResourceClaims = nil }, false},
		"an init container has run": {func(p *corev1.Pod) {
			p.Status.InitContainerStatuses[0].State.Terminated = &corev1.ContainerStateTerminated{}
		}, false},
		"a container ran before": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{}
		}, false},
		"with a claim of the scheduler's": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims = nil
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "c"}
		}, true},
	} {
		pod := starting(test.change)
		whole := pod.DeepCopy()
		kept, err := slimPod(new(Cache).keepPod)(pod)
		slim, ok := kept.(*corev1.Pod)
		if err != nil || !ok {
			t.Fatalf("%s: kept %T, %v", name, kept, err)
		}
		if got, ofKept := podstate.AwaitsClaims(whole), podstate.AwaitsClaims(slim); got != test.want || ofKept != test.want {
			t.Errorf("%s: it awaits its claims %v, by what is kept of it %v, want %v", name, got, ofKept, test.want)
		}
	}
}

func TestNextToNothingIsKeptOfPodsWithoutClaims(t *testing.T) {
	plain := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"a": "b"}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
	}
	kept, err := slimPod(new(Cache).keepPod)(plain)
	expect.NoError(t, err)
	expect.Equal(t, any(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{NodeName: "n1"}}), kept,
		"kept of a pod without claims")
	slice := &resourceapi.ResourceSlice{}
	if kept, err := slimPod(new(Cache).keepPod)(slice); err != nil || kept != any(slice) {
		t.Errorf("of something else: %v, %v", kept, err)
	}
}
