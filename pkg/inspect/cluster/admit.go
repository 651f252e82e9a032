// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

// admitAtOnce is how many pods are tried at a time.
const admitAtOnce = 8

// admit finds out what the cluster's admission makes of the pods: by the dry run of creating one
// of each workload, which goes through all policies and creates nothing. Of those that cannot be
// tried a note says why.
func (r Reader) admit(ctx context.Context, in *plan.Input) error {
	in.Workloads = slices.Clone(in.Workloads)
	untried := map[string]string{}
	for i := range in.Workloads {
		namespace := in.Workloads[i].Namespace
		if _, is := untried[namespace]; !is {
			why, err := r.untriable(ctx, in, namespace)
			if err != nil {
				return err
			}
			untried[namespace] = why
		}
	}
	whys := make([]string, len(in.Workloads))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(admitAtOnce)
	for i := range in.Workloads {
		w := &in.Workloads[i]
		if whys[i] = untried[w.Namespace]; whys[i] != "" {
			continue
		}
		group.Go(func() (err error) {
			whys[i], err = r.try(ctx, w)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, why := range whys {
		if why != "" && !slices.Contains(whys[:i], why) {
			in.Notes = append(in.Notes, "What the cluster's policies make of pods is not known, and pods are planned as with "+
				"the driver's defaults: "+why+".")
		}
	}
	return nil
}

// untriable says why no pods of a namespace can be tried; empty if they can.
func (r Reader) untriable(ctx context.Context, in *plan.Input, namespace string) (string, error) {
	i := slices.IndexFunc(in.KnownNamespaces, func(n *corev1.Namespace) bool { return n.Name == namespace })
	_, unread := in.Unread["Namespace/"+namespace]
	if i < 0 && !unread {
		return "namespace " + namespace + " does not exist", nil
	}
	for _, wanted := range in.Manifests.Namespaces {
		for key, value := range wanted.Labels {
			// Policies go by labels of namespaces.
			if wanted.Name == namespace && (unread || in.KnownNamespaces[i].Labels[key] != value) {
				return "the manifests change labels of namespace " + namespace, nil
			}
		}
	}
	review, err := r.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
		&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Resource: "pods"}}},
		metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ask whether you may create pods in namespace %s: %w", namespace, err)
	}
	if !review.Status.Allowed {
		return "you may not create pods in namespace " + namespace, nil
	}
	return "", nil
}

// try has the API server create a pod of a workload in a dry run; an answer that says nothing of
// the pod is untried.
func (r Reader) try(ctx context.Context, w *plan.Workload) (untried string, err error) {
	pod := &corev1.Pod{Spec: *w.Template.Spec.DeepCopy(), ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace,
		GenerateName: w.Name + "-", Labels: w.Template.Labels, Annotations: w.Template.Annotations}}
	// Manifests often bring these along, and then they are not there yet.
	pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount, pod.Spec.PriorityClassName = "", "", ""
	made, err := r.Client.CoreV1().Pods(w.Namespace).Create(ctx, pod,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil {
		w.Admitted = &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: made.Labels,
			Annotations: made.Annotations}, Spec: made.Spec}
		return "", nil
	}
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return "", fmt.Errorf("try %s (%s) in a dry run: %w", w, w.Source, err)
	}
	// It stands in sentences here, of which some end with it.
	said := strings.TrimSuffix(strings.Join(strings.Fields(status.Status().Message), " "), ".")
	switch {
	case strings.HasSuffix(said, "does not support dry run"):
		return said, nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		if details := status.Status().Details; details != nil {
			// The name is one of many.
			said = strings.TrimPrefix(said, fmt.Sprintf("pods %q is forbidden: ", details.Name))
		}
		w.Refused = "it would be refused: " + said
		return "", nil
	default:
		return fmt.Sprintf("%s (%s): %s", w, w.Source, said), nil
	}
}
