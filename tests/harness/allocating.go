// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// OfNobody is a scheduler that there is not: the test allocates and binds.
func OfNobody(pod *corev1.Pod) { pod.Spec.SchedulerName = "e2e-nobody" }

// ClaimOf waits for the claim of a pod.
func (n *Namespace) ClaimOf(t *testing.T, pod string) *resourceapi.ResourceClaim {
	t.Helper()
	var found *resourceapi.ResourceClaim
	Eventually(t, "the claim of pod "+pod, func(ctx context.Context) error {
		p, err := n.Client.CoreV1().Pods(n.Name).Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		name := ""
		switch extended := p.Status.ExtendedResourceClaimStatus; {
		case len(p.Status.ResourceClaimStatuses) > 0:
			name = ptr.Deref(p.Status.ResourceClaimStatuses[0].ResourceClaimName, "")
		case extended != nil:
			name = extended.ResourceClaimName
		default:
			return errors.New("it is not made")
		}
		found, err = n.Client.ResourceV1().ResourceClaims(n.Name).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return found
}

// Promise allocates 7 GiB of what is allocated already to a pod, as a scheduler
// writes it, and binds the pod.
func (n *Namespace) Promise(t *testing.T, name, node string, taken *resourceapi.AllocationResult) {
	t.Helper()
	share := *taken.Devices.Results[0].DeepCopy()
	share.ShareID = ptr.To(uuid.NewUUID())
	share.ConsumedCapacity[v1alpha1.CapMemory] = resource.MustParse("7Gi")
	n.Schedule(t, name, node, n.ClaimOf(t, name).Name, share)
}

// Schedule allocates a claim for a pod and binds the pod, as a scheduler does.
func (n *Namespace) Schedule(t *testing.T, podName, node, claimName string,
	results ...resourceapi.DeviceRequestAllocationResult) {
	t.Helper()
	pod, claims := n.Get(t, podName), n.Client.ResourceV1().ResourceClaims(n.Name)
	claim, err := claims.Get(t.Context(), claimName, metav1.GetOptions{})
	if err == nil {
		claim.Finalizers = append(claim.Finalizers, resourceapi.Finalizer)
		claim, err = claims.Update(t.Context(), claim, metav1.UpdateOptions{})
	}
	if err == nil {
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
			{Resource: "pods", Name: pod.Name, UID: pod.UID}}
		_, err = claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	}
	expect.NoErrorf(t, err, "allocate claim %s", claimName)
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID},
		Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	expect.NoErrorf(t, n.Client.CoreV1().Pods(n.Name).Bind(t.Context(), binding, metav1.CreateOptions{}),
		"bind pod %s", podName)
}
