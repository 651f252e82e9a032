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
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// admitAtOnce is how many workloads are tried at a time.
const admitAtOnce = 8

// admit finds out what the cluster's admission makes of the pods: by the dry run of creating one
// of each workload, which goes through all policies and creates nothing. Of those that cannot be
// tried a note says why.
func (r Reader) admit(ctx context.Context, in *plan.Input) error {
	in.Workloads = slices.Clone(in.Workloads)
	workloads := make([]*plan.Workload, 0, len(in.Workloads))
	for i := range in.Workloads {
		workloads = append(workloads, &in.Workloads[i])
	}
	unknown, err := tryAll(ctx, workloads,
		func(namespace string) (string, error) { return r.untriable(ctx, in, namespace) }, r.try)
	for _, why := range unknown {
		in.Notes = append(in.Notes, "What the cluster's policies make of pods is not known, and pods are planned as with "+
			"the driver's defaults: "+why+".")
	}
	return err
}

// tryAll tries workloads, several at a time, but for those of namespaces of which untriable says why they cannot be. It
// returns why of some nothing is known, each reason once.
func tryAll(ctx context.Context, workloads []*plan.Workload, untriable func(namespace string) (string, error),
	try func(context.Context, *plan.Workload) (untried string, err error)) (unknown []string, err error) {
	untried := map[string]string{}
	for _, w := range workloads {
		if _, is := untried[w.Namespace]; is {
			continue
		}
		if untried[w.Namespace], err = untriable(w.Namespace); err != nil {
			return nil, err
		}
	}
	whys := make([]string, len(workloads))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(admitAtOnce)
	for i, w := range workloads {
		if whys[i] = untried[w.Namespace]; whys[i] != "" {
			continue
		}
		group.Go(func() (err error) {
			whys[i], err = try(ctx, w)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i, why := range whys {
		if why != "" && !slices.Contains(whys[:i], why) {
			unknown = append(unknown, why)
		}
	}
	return unknown, nil
}

// untriable says why no pods of a namespace can be tried; empty if they can.
func (r Reader) untriable(ctx context.Context, in *plan.Input, namespace string) (string, error) {
	known := scheduling.Named(in.KnownNamespaces, "", namespace)
	_, unread := in.Unread["Namespace/"+namespace]
	if known == nil && !unread {
		return "namespace " + namespace + " does not exist", nil
	}
	for _, wanted := range in.Manifests.Namespaces {
		for key, value := range wanted.Labels {
			// Policies use labels of namespaces.
			if wanted.Name == namespace && (unread || known.Labels[key] != value) {
				return "the manifests change labels of namespace " + namespace, nil
			}
		}
	}
	return r.mayNotCreate(ctx, namespace, corev1.Resource("pods"))
}

// mayNotCreate says that objects of a kind may not be created in a namespace; it is empty if they may.
func (r Reader) mayNotCreate(ctx context.Context, namespace string, kind schema.GroupResource) (string, error) {
	review, err := r.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx,
		&authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Group: kind.Group,
				Resource: kind.Resource}}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ask whether you may create %s in namespace %s: %w", kind, namespace, err)
	}
	if !review.Status.Allowed {
		return fmt.Sprintf("you may not create %s in namespace %s", kind, namespace), nil
	}
	return "", nil
}

// dryRun has the API server create nothing.
func dryRun() metav1.CreateOptions { return metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}} }

// try has the API server create a pod of a workload in a dry run; an answer that says nothing of
// the pod is untried.
func (r Reader) try(ctx context.Context, w *plan.Workload) (untried string, err error) {
	pod := &corev1.Pod{Spec: *w.Template.Spec.DeepCopy(), ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace,
		GenerateName: w.Name + "-", Labels: w.Template.Labels, Annotations: w.Template.Annotations}}
	// Manifests often bring these along, and then they are not there yet.
	pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount, pod.Spec.PriorityClassName = "", "", ""
	made, err := r.Client.CoreV1().Pods(w.Namespace).Create(ctx, pod, dryRun())
	if err == nil {
		// The controller takes it off within seconds.
		made.Spec.SchedulingGates = slices.DeleteFunc(made.Spec.SchedulingGates, placement.IsGate)
		w.Admitted = &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: made.Labels,
			Annotations: made.Annotations}, Spec: made.Spec}
		return "", nil
	}
	refused, untried, err := answer(w, err)
	if refused != "" {
		w.Refused = "it would be refused: " + refused
	}
	return untried, err
}

// answer is what the error of a dry run says: that what a workload needs would be refused, or why that is not known.
// One that is no answer of the API server is returned.
func answer(w *plan.Workload, err error) (refused, untried string, failed error) {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return "", "", fmt.Errorf("try %s (%s) in a dry run: %w", w, w.Source, err)
	}
	// It stands in sentences here, of which some end with it.
	said := strings.TrimSuffix(strings.Join(strings.Fields(status.Status().Message), " "), ".")
	switch {
	case strings.HasSuffix(said, "does not support dry run"):
		return "", said, nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		if details := status.Status().Details; details != nil {
			// The name is one of many.
			if _, why, is := strings.Cut(said, fmt.Sprintf("%q is forbidden: ", details.Name)); is {
				said = why
			}
		}
		return said, "", nil
	default:
		return "", fmt.Sprintf("%s (%s): %s", w, w.Source, said), nil
	}
}
