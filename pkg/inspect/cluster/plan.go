// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/fromack"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// PlanInput reads what a plan of the manifests uses: what the scheduler uses, the pods
// that are on nodes, and the templates, claims and namespaces that the manifests name.
func (r Reader) PlanInput(ctx context.Context, m plan.Manifests) (plan.Input, error) {
	found, err := r.situation(ctx)
	if err != nil {
		return plan.Input{}, err
	}
	in, err := r.planInput(ctx, m, found)
	if err != nil {
		return in, err
	}
	if err := r.fillNamespaces(ctx, &in); err != nil {
		return in, err
	}
	if err := r.admit(ctx, &in); err != nil {
		return in, err
	}
	if asksAsOnACK(in.Workloads) {
		if err := r.fillConverts(ctx, &in); err != nil {
			return in, err
		}
	}
	if err := r.fillManifests(ctx, &in); err != nil {
		return in, err
	}
	return in, r.admitClaims(ctx, &in)
}

// planInput adds to what the scheduler uses the pods on nodes.
func (r Reader) planInput(ctx context.Context, m plan.Manifests, found why.Input) (in plan.Input, err error) {
	in = plan.Input{Snapshot: found.Snapshot, Manifests: m, Now: found.Now, OthersUnknown: found.OthersUnknown,
		NodesUnknown: found.NodesUnknown, Notes: found.Notes, Unread: map[string]string{}}
	in.Bound, err = r.pods(ctx, r.podFields())
	if in.PodsUnknown = apierrors.IsForbidden(err); in.PodsUnknown {
		in.Notes = append(in.Notes, "You may not list pods of all namespaces: CPU and memory of nodes are not looked at.")
	} else if err != nil {
		return in, err
	}
	return in, nil
}

// asksAsOnACK reports whether pods of the workloads ask for GPUs in the manner of ACK, also as the
// policies have left them.
func asksAsOnACK(workloads []plan.Workload) bool {
	return slices.ContainsFunc(workloads, func(w plan.Workload) bool {
		return w.Refused == "" && legacy.Asks(&corev1.Pod{Spec: w.Created().Spec})
	})
}

// PlanFromACK reads what a plan of the cluster's own pods uses, on its nodes as they would be
// after a migration. A cluster that serves no ResourceSlices yet has none.
func (r Reader) PlanFromACK(ctx context.Context, m plan.Manifests) (plan.Input, error) {
	found, err := r.situation(ctx)
	if apierrors.IsNotFound(err) {
		found = why.Input{Now: time.Now(), Notes: []string{
			"This Kubernetes does not serve ResourceSlices: update it before the migration (docs/install.md)."}}
		found.Nodes, found.NodesUnknown, err = r.readNodes(ctx)
	}
	if err != nil {
		return plan.Input{}, err
	}
	in, err := r.planInput(ctx, m, found)
	if err != nil {
		return in, err
	}
	if in.NodesUnknown || in.PodsUnknown {
		return in, errors.New("what a cluster's nodes and pods say is not known: ask for a ClusterRole with list on nodes " +
			"and pods")
	}
	// Those that wait ask for GPUs, too.
	pods, err := r.pods(ctx, "status.phase!=Succeeded,status.phase!=Failed")
	if err != nil {
		return in, err
	}
	if err := fromack.Move(&in, pods); err != nil {
		return in, err
	}
	if err := r.fillNamespaces(ctx, &in); err != nil {
		return in, err
	}
	return in, r.fillManifests(ctx, &in)
}

// pods are those of all namespaces that fields select.
func (r Reader) pods(ctx context.Context, selected string) ([]*corev1.Pod, error) {
	var found []*corev1.Pod
	err := each(ctx, r.Client.CoreV1().Pods(metav1.NamespaceAll), metav1.ListOptions{FieldSelector: selected},
		func(pod *corev1.Pod) {
			slim(pod)
			found = append(found, pod)
		})
	if err != nil {
		return nil, fmt.Errorf("list the pods of all namespaces: %w", err)
	}
	return found, nil
}

// slim takes off a pod what a plan does not use: a cluster has many of them.
func slim(pod *corev1.Pod) {
	pod.ManagedFields = nil
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i, c := range containers {
			containers[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy,
				Ports: c.Ports}
		}
	}
}

// fillManifests reads what the manifests name and do not have.
func (r Reader) fillManifests(ctx context.Context, in *plan.Input) error {
	asked := map[string]bool{}
	first := func(key string) bool {
		is := asked[key]
		asked[key] = true
		return !is
	}
	for i := range in.Workloads {
		namespace := in.Workloads[i].Namespace
		for _, used := range in.Workloads[i].Created().Spec.ResourceClaims {
			if name := used.ResourceClaimTemplateName; name != nil && first("template "+namespace+"/"+*name) {
				found, err := r.Client.ResourceV1().ResourceClaimTemplates(namespace).Get(ctx, *name, metav1.GetOptions{})
				if err := add(in, &in.KnownTemplates, found, err, "ResourceClaimTemplate", namespace, *name); err != nil {
					return err
				}
			}
			if name := used.ResourceClaimName; name != nil && first("claim "+namespace+"/"+*name) &&
				scheduling.Named(in.Snapshot.Claims, namespace, *name) == nil &&
				scheduling.Named(in.Manifests.Claims, namespace, *name) == nil {
				found, err := r.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, *name, metav1.GetOptions{})
				if err := add(in, &in.Snapshot.Claims, found, err, "ResourceClaim", namespace, *name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// add adds an object that was read, or notes that you may not read it. It ignores a missing object, which the plan
// reports.
func add[T any](in *plan.Input, to *[]T, found T, err error, kind, namespace, name string) error {
	switch {
	case err == nil:
		*to = append(slices.Clip(*to), found)
	case apierrors.IsForbidden(err):
		in.Unread[kind+"/"+namespace+"/"+name] = fmt.Sprintf("you may not read %s %s of namespace %s: ask for get on "+
			"%ss.resource.k8s.io there", kind, name, namespace, strings.ToLower(kind))
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read %s %s of namespace %s: %w", kind, name, namespace, err)
	}
	return nil
}

// fillNamespaces reads the namespaces of the workloads.
func (r Reader) fillNamespaces(ctx context.Context, in *plan.Input) error {
	asked := map[string]bool{}
	for i := range in.Workloads {
		name := in.Workloads[i].Namespace
		if asked[name] {
			continue
		}
		asked[name] = true
		namespace, err := r.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			in.KnownNamespaces = append(in.KnownNamespaces, namespace)
		case apierrors.IsForbidden(err):
			in.Unread["Namespace/"+name] = "you may not get it"
			in.Notes = append(in.Notes, "You may not get namespace "+name+": what its labels say of legacy pods is not "+
				"looked at.")
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("read namespace %s: %w", name, err)
		}
	}
	return nil
}

// fillConverts reads which namespaces' pods are converted.
func (r Reader) fillConverts(ctx context.Context, in *plan.Input) error {
	const planned = "legacy pods are planned as converted, unless they or their namespaces opted out."
	note := func(text string) {
		// What becomes of the others is known.
		if slices.ContainsFunc(in.Workloads, func(w plan.Workload) bool { return w.Admitted == nil }) {
			in.Notes = append(in.Notes, text+planned)
		}
	}
	binding, err := r.Client.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Get(ctx, legacy.BindingConvert,
		metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		note("You may not get mutatingadmissionpolicybindings.admissionregistration.k8s.io " + legacy.BindingConvert + ": ")
		return nil
	case apierrors.IsNotFound(err):
		note("There is no MutatingAdmissionPolicyBinding " + legacy.BindingConvert + ", which the driver is installed with: ")
		return nil
	case err != nil:
		return fmt.Errorf("read the MutatingAdmissionPolicyBinding %s: %w", legacy.BindingConvert, err)
	}
	if match := binding.Spec.MatchResources; match != nil {
		in.Converts = match.NamespaceSelector
	}
	return nil
}
