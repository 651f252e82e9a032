package plugin

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
)

const reasonIsolationLifted = "GPUIsolationDisabled"

// podsOf are references to the pods that use the claim.
func podsOf(c *resourceapi.ResourceClaim) []corev1.ObjectReference {
	var pods []corev1.ObjectReference
	for _, consumer := range c.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods = append(pods, corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: c.Namespace, Name: consumer.Name, UID: consumer.UID})
		}
	}
	return pods
}

// liftedByPods says for which requests the claim's pods lift their limits
// themselves. It reads the pods from the API server, so it is asked only where
// there are limits.
func (a *agent) liftedByPods(ctx context.Context, c *resourceapi.ResourceClaim) (map[string]bool, bool, error) {
	requests, all := map[string]bool{}, false
	for _, ref := range podsOf(c) {
		pod, err := a.Client.CoreV1().Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, false, fmt.Errorf("read pod %s/%s, which says whether its limits are lifted: %w", ref.Namespace, ref.Name, err)
		}
		byPod, allByPod := claim.LiftedByPod(pod, c.Name)
		for request := range byPod {
			requests[request] = true
		}
		all = all || allByPod
	}
	return requests, all, nil
}

// tellLifted says in the pods' Events that nothing holds them to what they
// were granted.
func (a *agent) tellLifted(c *resourceapi.ResourceClaim, requests []string) {
	for _, pod := range podsOf(c) {
		a.podEvents.Eventf(&pod, corev1.EventTypeNormal, reasonIsolationLifted,
			"Claim %s: the limits of requests %q are lifted, what was granted still counts", c.Name, requests)
	}
}
