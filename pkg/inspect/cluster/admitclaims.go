// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"maps"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// need is something that would be created for a claim of a pod.
type need struct {
	what     string
	template bool
	create   func(context.Context) error
}

// admitted collects the specs that admission makes of claims, for plan.Input.AdmittedClaims.
type admitted struct {
	mu    sync.Mutex
	specs map[string]resourceapi.ResourceClaimSpec
}

// admitClaims finds out what the cluster's admission makes of the claims of the pods that it lets be created: policies
// may change them, and a pod waits for a claim that a quota or a policy refuses.
func (r Reader) admitClaims(ctx context.Context, in *plan.Input) error {
	made := admitted{specs: map[string]resourceapi.ResourceClaimSpec{}}
	needed, templates := map[*plan.Workload][]need{}, map[string]bool{}
	var workloads []*plan.Workload
	for i := range in.Workloads {
		w := &in.Workloads[i]
		if w.Admitted == nil {
			continue
		}
		if needed[w] = r.neededBy(in, w, &made); len(needed[w]) > 0 {
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
	in.AdmittedClaims = made.specs
	return err
}

// neededBy are what would be created for the claims of the first pod of a workload, of what is not there.
func (r Reader) neededBy(in *plan.Input, w *plan.Workload, made *admitted) (out []need) {
	for _, used := range w.Created().Spec.ResourceClaims {
		what := "its claim " + used.Name
		if name := used.ResourceClaimTemplateName; name != nil {
			t := in.Template(w.Namespace, *name)
			if t == nil {
				continue
			}
			// An existing template needs no dry run: quotas and policies could refuse another one.
			if slices.Contains(in.Manifests.Templates, t) && scheduling.Named(in.KnownTemplates, t.Namespace, t.Name) == nil {
				out = append(out, need{"the template of " + what, true, func(ctx context.Context) error {
					_, err := r.Client.ResourceV1().ResourceClaimTemplates(t.Namespace).Create(ctx,
						&resourceapi.ResourceClaimTemplate{Spec: t.Spec, ObjectMeta: written(t.ObjectMeta)}, dryRun())
					return err
				}})
			}
			// kube-controller-manager makes claims so.
			c := &resourceapi.ResourceClaim{Spec: t.Spec.Spec, ObjectMeta: metav1.ObjectMeta{
				GenerateName: w.Name + "-" + used.Name + "-", Namespace: w.Namespace, Labels: t.Spec.Labels,
				Annotations: maps.Clone(t.Spec.Annotations)}}
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, resourceapi.PodResourceClaimAnnotation, used.Name)
			out = append(out, r.needClaim(c, what, made, "ResourceClaimTemplate/"+w.Namespace+"/"+*name))
			continue
		}
		name := ptr.Deref(used.ResourceClaimName, "")
		if c := scheduling.Named(in.Manifests.Claims, w.Namespace, name); c != nil &&
			scheduling.Named(in.Snapshot.Claims, w.Namespace, name) == nil {
			out = append(out, r.needClaim(&resourceapi.ResourceClaim{Spec: c.Spec, ObjectMeta: written(c.ObjectMeta)}, what,
				made, "ResourceClaim/"+w.Namespace+"/"+name))
		}
	}
	return out
}

// written is what the author of a manifest says of an object, without what a cluster has added.
func written(o metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, Labels: o.Labels, Annotations: o.Annotations}
}

// needClaim returns the need for a claim. Its creation adds to made, by the key, the spec that admission returns.
func (r Reader) needClaim(c *resourceapi.ResourceClaim, what string, made *admitted, key string) need {
	return need{what, false, func(ctx context.Context) error {
		created, err := r.Client.ResourceV1().ResourceClaims(c.Namespace).Create(ctx, c, dryRun())
		if err == nil {
			made.mu.Lock()
			defer made.mu.Unlock()
			made.specs[key] = created.Spec
		}
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
