// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

// need is something that would be created for a claim of a pod.
type need struct {
	what     string
	template bool
	create   func(context.Context) error
}

// admitClaims finds out what the cluster's admission makes of the claims of the pods that it lets be created: a pod
// waits for a claim that a quota or a policy refuses.
func (r Reader) admitClaims(ctx context.Context, in *plan.Input) error {
	needed, templates := map[*plan.Workload][]need{}, map[string]bool{}
	var workloads []*plan.Workload
	for i := range in.Workloads {
		w := &in.Workloads[i]
		if w.Admitted == nil {
			continue
		}
		if needed[w] = r.neededBy(in, w); len(needed[w]) > 0 {
			workloads = append(workloads, w)
		}
		if slices.ContainsFunc(needed[w], func(n need) bool { return n.template }) {
			templates[w.Namespace] = true
		}
	}
	unknown, err := tryAll(ctx, workloads, func(namespace string) (string, error) {
		why, err := r.mayNotCreate(ctx, namespace, resourceapi.Resource("resourceclaims"))
		if why == "" && err == nil && templates[namespace] {
			return r.mayNotCreate(ctx, namespace, resourceapi.Resource("resourceclaimtemplates"))
		}
		return why, err
	}, func(ctx context.Context, w *plan.Workload) (string, error) { return tryClaims(ctx, w, needed[w]) })
	for _, why := range unknown {
		in.Notes = append(in.Notes, "Whether claims would be refused is not known: "+why+".")
	}
	return err
}

// neededBy are what would be created for the claims of the first pod of a workload, of what is not there.
func (r Reader) neededBy(in *plan.Input, w *plan.Workload) (out []need) {
	for _, used := range w.Created().Spec.ResourceClaims {
		if name := used.ResourceClaimTemplateName; name != nil {
			t := in.Template(w.Namespace, *name)
			// Quotas and policies may refuse again what is there.
			if slices.Contains(in.Manifests.Templates, t) && !slices.ContainsFunc(in.KnownTemplates,
				func(known *resourceapi.ResourceClaimTemplate) bool {
					return known.Namespace == t.Namespace && known.Name == t.Name
				}) {
				out = append(out, r.needTemplate(t, used.Name))
			}
			if t != nil {
				// As kube-controller-manager makes it.
				c := &resourceapi.ResourceClaim{Spec: t.Spec.Spec, ObjectMeta: metav1.ObjectMeta{
					GenerateName: w.Name + "-" + used.Name + "-", Namespace: w.Namespace, Labels: t.Spec.Labels,
					Annotations: maps.Clone(t.Spec.Annotations)}}
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, resourceapi.PodResourceClaimAnnotation, used.Name)
				out = append(out, r.needClaim(c, used.Name))
			}
			continue
		}
		is := func(c *resourceapi.ResourceClaim) bool {
			return c.Namespace == w.Namespace && c.Name == ptr.Deref(used.ResourceClaimName, "")
		}
		if i := slices.IndexFunc(in.Manifests.Claims, is); i >= 0 && !slices.ContainsFunc(in.Snapshot.Claims, is) {
			c := in.Manifests.Claims[i]
			out = append(out, r.needClaim(&resourceapi.ResourceClaim{Spec: c.Spec, ObjectMeta: written(c.ObjectMeta)},
				used.Name))
		}
	}
	return out
}

// written is what the author of a manifest says of an object, without what a cluster has added.
func written(o metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels, Annotations: o.Annotations}
}

func (r Reader) needClaim(c *resourceapi.ResourceClaim, called string) need {
	return need{"its claim " + called, false, func(ctx context.Context) error {
		_, err := r.Client.ResourceV1().ResourceClaims(c.Namespace).Create(ctx, c, dryRun())
		return err
	}}
}

func (r Reader) needTemplate(t *resourceapi.ResourceClaimTemplate, called string) need {
	t = &resourceapi.ResourceClaimTemplate{Spec: t.Spec, ObjectMeta: written(t.ObjectMeta)}
	return need{"the template of its claim " + called, true, func(ctx context.Context) error {
		_, err := r.Client.ResourceV1().ResourceClaimTemplates(t.Namespace).Create(ctx, t, dryRun())
		return err
	}}
}

// tryClaims has the API server create in dry runs what the claims of a workload need.
func tryClaims(ctx context.Context, w *plan.Workload, needed []need) (untried string, err error) {
	for _, n := range needed {
		err := n.create(ctx)
		if err == nil || apierrors.IsAlreadyExists(err) {
			continue
		}
		refused, untried, err := answer(w, err)
		if refused != "" {
			w.Refused = n.what + " would be refused: " + refused
		}
		return untried, err
	}
	return "", nil
}
