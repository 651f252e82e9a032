// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// Claims asks the API server for a pod's claims, in the pod's order: a cache would
// have to follow all claims of the cluster for the few that wait. there is false
// while some claim is not there, for then the pod waits for that.
func Claims(
	ctx context.Context, client typedresourcev1.ResourceClaimsGetter, pod *corev1.Pod,
) (claims []*resourceapi.ResourceClaim, there bool, err error) {
	for i := range pod.Spec.ResourceClaims {
		name, mustOwn, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			// It is not made yet, or named in a way of a newer API.
			return nil, false, nil
		}
		if name == nil {
			continue
		}
		claim, err := client.ResourceClaims(pod.Namespace).Get(ctx, *name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, fmt.Errorf("look at claim %s/%s, which pod %s waits for: %w", pod.Namespace, *name, pod.Name, err)
		}
		if mustOwn && resourceclaim.IsForPod(pod, claim, false) != nil {
			return nil, false, nil
		}
		claims = append(claims, claim)
	}
	return claims, true, nil
}

// TemplateSpec returns the spec of a template's claims, nil if there is no such template. The name of a legacy pod's
// template contains it, so it is known before the template exists.
func TemplateSpec(ctx context.Context, client typedresourcev1.ResourceClaimTemplatesGetter, namespace, name string) (
	*resourceapi.ResourceClaimSpec, error) {
	if request, err := legacy.ParseName(name); err == nil {
		return &request.Template(namespace).Spec.Spec, nil
	}
	template, err := client.ResourceClaimTemplates(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at ResourceClaimTemplate %s/%s, of which a claim is waited for: %w", namespace, name,
			err)
	}
	return &template.Spec.Spec, nil
}

// UnmadeClaims are the claims of templates that the status of a pod without a node says nothing
// of yet.
func UnmadeClaims(pod *corev1.Pod) []corev1.PodResourceClaim {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" {
		return nil
	}
	var claims []corev1.PodResourceClaim
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimTemplateName != nil &&
			!slices.ContainsFunc(pod.Status.ResourceClaimStatuses, func(s corev1.PodResourceClaimStatus) bool {
				return s.Name == c.Name
			}) {
			claims = append(claims, c)
		}
	}
	return claims
}

// Templates lists the keys of the templates for requests in ACK's manner that a pod needs, which
// has not ended.
func Templates(pod *corev1.Pod) []string {
	if gpuclaim.Ended(pod) {
		return nil
	}
	return NamedTemplates(pod)
}

// NamedTemplates is Templates of a pod that may have ended.
func NamedTemplates(pod *corev1.Pod) []string {
	var keys []string
	for _, claim := range pod.Spec.ResourceClaims {
		if claim.ResourceClaimTemplateName != nil && legacy.IsName(*claim.ResourceClaimTemplateName) {
			keys = append(keys, cache.NewObjectName(pod.Namespace, *claim.ResourceClaimTemplateName).String())
		}
	}
	return keys
}
