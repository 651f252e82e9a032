// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// nominable reports whether the controller may nominate a node for a pod: it may ask for GPUs, the default scheduler
// places it, by itself, and the pod leaves the choice to the controller.
func (n *Nominator) nominable(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Spec.NodeName == "" && !heldByOthers(pod) &&
		scheduling.AsksForDevices(pod, pod.Spec.Resources.Requests) && scheduling.Alone(pod) &&
		!cache.PrefersNodes(pod) && n.settingFor(pod).Known()
}

// settingFor is how nodes are ranked for a pod.
func (n *Nominator) settingFor(pod *corev1.Pod) score.Setting {
	return cmp.Or(score.Setting(pod.Labels[v1alpha1.LabelNodePlacement]), n.Placement)
}

// wish is what a pod asks for. Its claims have the specs of those that it has or will have, and are none where there is
// nothing to nominate by.
type wish struct {
	claims   []*resourceapi.ResourceClaim
	requests corev1.ResourceList
	kind     kindID
}

const (
	// templatesMost is how many templates are remembered, and templateAge for how long: one that is made again under its
	// name may be another.
	templatesMost = 1000
	templateAge   = time.Minute
)

// wishes finds out what pods ask for.
type wishes struct {
	client    Client
	claims    cache.Claims
	templates *utilcache.LRUExpireCache
}

// Client reads what pods ask for, and what closes GPUs to them.
type Client interface {
	typedresourcev1.ResourceClaimsGetter
	typedresourcev1.ResourceClaimTemplatesGetter
	typedresourcev1.DeviceTaintRulesGetter
	typedresourcev1.ResourceSlicesGetter
}

// allocated reports whether the cache has an allocation of one of a pod's claims: the pod has to go where that is.
func (w *wishes) allocated(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.ResourceClaims, func(ref corev1.PodResourceClaim) bool {
		name, _, err := resourceclaim.Name(pod, &ref)
		if err != nil || name == nil {
			return false
		}
		claim, there := w.claims.Get(pod.Namespace + "/" + *name)
		return there && claim.Status.Allocation != nil
	})
}

// of is what a pod asks for. It is without claims where one of them is not there, or allocated. extended is the claim
// that the scheduler makes, or nil.
func (w *wishes) of(ctx context.Context, pod *corev1.Pod, extended *resourceapi.ResourceClaim) (*wish, error) {
	var claims []*resourceapi.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		ref := &pod.Spec.ResourceClaims[i]
		spec, err := w.spec(ctx, pod, ref)
		switch {
		case apierrors.IsNotFound(err), err == nil && spec == nil:
			return &wish{}, nil
		case err != nil:
			return nil, fmt.Errorf("read what claim %s of pod %s/%s asks for: %w", ref.Name, pod.Namespace, pod.Name, err)
		}
		claims = append(claims, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: ref.Name}, Spec: *spec})
	}
	return newWish(pod, claims, extended)
}

// newWish is what a pod asks for by claims, and by the one that the scheduler makes unless that is nil.
func newWish(pod *corev1.Pod, claims []*resourceapi.ResourceClaim, extended *resourceapi.ResourceClaim) (*wish, error) {
	out := &wish{claims: claims}
	if extended != nil {
		out.claims = append(out.claims, extended)
	}
	if pod.Spec.Resources != nil {
		out.requests = pod.Spec.Resources.Requests
	}
	question, err := scheduling.Question(pod, out.claims)
	out.kind = kindID{question, out.requests.Cpu().MilliValue(), out.requests.Memory().Value(),
		placement.AtCostlyGate(pod)}
	return out, err
}

// spec returns the spec of a claim, nil if the claim is allocated or its template does not exist.
func (w *wishes) spec(ctx context.Context, pod *corev1.Pod, ref *corev1.PodResourceClaim) (
	*resourceapi.ResourceClaimSpec, error) {
	if ref.ResourceClaimTemplateName != nil {
		return w.template(ctx, pod.Namespace, *ref.ResourceClaimTemplateName)
	}
	if ref.ResourceClaimName == nil {
		return nil, nil
	}
	claim, err := w.client.ResourceClaims(pod.Namespace).Get(ctx, *ref.ResourceClaimName, metav1.GetOptions{})
	if err != nil || claim.Status.Allocation != nil {
		return nil, err
	}
	return &claim.Spec, nil
}

// template is podstate.TemplateSpec, whose answers it remembers for a while.
func (w *wishes) template(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaimSpec, error) {
	key := namespace + "/" + name
	if known, ok := w.templates.Get(key); ok {
		spec, _ := known.(*resourceapi.ResourceClaimSpec)
		return spec, nil
	}
	spec, err := podstate.TemplateSpec(ctx, w.client, namespace, name)
	if spec != nil {
		w.templates.Add(key, spec, templateAge)
	}
	return spec, err
}
