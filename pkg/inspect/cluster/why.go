// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// PodAndCluster reads what there is to know of a pod, and of the cluster that it waits for or
// is in.
func (r Reader) PodAndCluster(ctx context.Context, name string) (why.Input, error) {
	pod, err := r.Client.CoreV1().Pods(r.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return why.Input{}, cannotRead(err, "pod", "pods", r.Namespace, name)
	}
	in, err := r.situation(ctx)
	if err != nil {
		return in, err
	}
	in.Pod = pod
	return in, r.fillPod(ctx, &in)
}

// fillPod reads the pod's claims and, where it runs, what is used of them.
func (r Reader) fillPod(ctx context.Context, in *why.Input) (err error) {
	in.PodClaims, in.Missing, err = r.claimsOf(ctx, in.Pod, claimsIn(in.Claims, in.Pod.Namespace))
	if err != nil {
		return err
	}
	if in.Pod.Status.Phase == corev1.PodRunning && in.HasGPUs() {
		r.fillUse(ctx, in)
	}
	switch {
	case in.Pod.Spec.NodeName == "":
		return r.fillGroup(ctx, in)
	case in.Pod.Status.Phase == corev1.PodPending:
		in.NotPrepared = r.lastSaid(ctx, in.Pod, "FailedPrepareDynamicResources")
	}
	return nil
}

// ClaimAndCluster reads the same of a claim, and of a pod that uses it.
func (r Reader) ClaimAndCluster(ctx context.Context, name string) (why.Input, error) {
	claim, err := r.Client.ResourceV1().ResourceClaims(r.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return why.Input{}, cannotRead(err, "ResourceClaim", "resourceclaims.resource.k8s.io", r.Namespace, name)
	}
	in, err := r.situation(ctx)
	if err != nil {
		return in, err
	}
	in.Claim = claim
	pods, err := list[*corev1.Pod](ctx, r.Client.CoreV1().Pods(r.Namespace), metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		in.PodsUnknown = true
		in.Notes = append(in.Notes, "You may not list pods of namespace "+r.Namespace+": who uses the claim is not known.")
		return in, nil
	case err != nil:
		return in, fmt.Errorf("list the pods of namespace %s: %w", r.Namespace, err)
	}
	for _, pod := range pods {
		if gpuclaim.Ended(pod) {
			continue // it uses nothing any more, and waits for nothing
		}
		for used := range resourceclaim.PodClaims(pod) {
			// Of those that use it, one that waits asks the question.
			if used == name && (in.Pod == nil || in.Pod.Spec.NodeName != "") {
				in.Pod = pod
			}
		}
	}
	if in.Pod == nil {
		return in, nil
	}
	return in, r.fillPod(ctx, &in)
}

// cannotRead says in one line why an object cannot be read.
func cannotRead(err error, kind, resource, namespace, name string) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no %s %s in namespace %s: -n names another one", kind, name, namespace)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("you may not read %s %s of namespace %s: ask for a Role with get on %s there: %w", kind, name,
			namespace, resource, err)
	default:
		return fmt.Errorf("read %s %s of namespace %s: %w", kind, name, namespace, err)
	}
}

// situation reads what the scheduler uses.
func (r Reader) situation(ctx context.Context) (why.Input, error) {
	in := why.Input{Now: time.Now()}
	var allowed scope
	var rules []*resourceapi.DeviceTaintRule
	var noRules bool
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		in.Slices, err = r.readSlicesOf(groupCtx, "")
		return err
	})
	group.Go(func() (err error) {
		in.Claims, allowed.claims, allowed.noClaims, err = r.readClaims(groupCtx)
		return err
	})
	group.Go(func() (err error) {
		in.Nodes, allowed.noNodes, err = r.readNodes(groupCtx)
		return err
	})
	group.Go(func() (err error) {
		in.Classes, err = list[*resourceapi.DeviceClass](groupCtx, r.Client.ResourceV1().DeviceClasses(),
			metav1.ListOptions{})
		if apierrors.IsForbidden(err) {
			return fmt.Errorf("claims ask by DeviceClasses, which you may not list; ask for a ClusterRole with list on "+
				"deviceclasses of resource.k8s.io: %w", err)
		}
		return err
	})
	group.Go(func() (err error) {
		rules, noRules, err = r.readTaintRules(groupCtx)
		return err
	})
	if err := group.Wait(); err != nil {
		return in, fmt.Errorf("read what the scheduler uses: %w", err)
	}
	in.Slices = scheduling.WithRules(in.Slices, rules)
	if in.NodesUnknown = allowed.noNodes; in.NodesUnknown {
		in.Nodes = nodesOf(in.Slices)
		in.Notes = append(in.Notes, "You may not read nodes: what their labels and taints keep the pod from is not known.")
	}
	if noRules {
		in.Notes = append(in.Notes, "You may not list devicetaintrules.resource.k8s.io: what they close is not known.")
	}
	if in.OthersUnknown = allowed.noClaims || allowed.claims != metav1.NamespaceAll; in.OthersUnknown {
		in.Notes = append(in.Notes, "You may not list resourceclaims.resource.k8s.io of all namespaces: GPUs may be fuller "+
			"than it seems.")
	}
	return in, nil
}

// readTaintRules reads the rules by which administrators taint devices; there are none where
// the API server does not know them.
func (r Reader) readTaintRules(ctx context.Context) (found []*resourceapi.DeviceTaintRule, forbidden bool, err error) {
	found, err = list[*resourceapi.DeviceTaintRule](ctx, r.Client.ResourceV1().DeviceTaintRules(),
		metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return nil, true, nil
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("list DeviceTaintRules: %w", err)
	}
	return found, false, nil
}

// nodesOf are the nodes that publish devices, by their names alone.
func nodesOf(published []*resourceapi.ResourceSlice) []*corev1.Node {
	var out []*corev1.Node
	for _, name := range nodesNamed(published) {
		out = append(out, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{corev1.LabelHostname: name}}})
	}
	return out
}

// claimsIn are the claims of a namespace by their names.
func claimsIn(claims []*resourceapi.ResourceClaim, namespace string) map[string]*resourceapi.ResourceClaim {
	known := map[string]*resourceapi.ResourceClaim{}
	for _, claim := range claims {
		if claim.Namespace == namespace {
			known[claim.Name] = claim
		}
	}
	return known
}

// claimsOf returns a pod's claims, known ones or as the API server has them. missing tells of each other claim why it
// does not exist or is of no use to a waiting pod: the scheduler places no pod whose claim is being deleted.
func (r Reader) claimsOf(ctx context.Context, pod *corev1.Pod, known map[string]*resourceapi.ResourceClaim) (
	found []*resourceapi.ResourceClaim, missing []string, err error) {
	add := func(name string) error {
		claim, err := known[name], error(nil)
		if claim == nil {
			claim, err = r.Client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		}
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, "claim "+name+" does not exist")
		case err != nil:
			return cannotRead(err, "ResourceClaim", "resourceclaims.resource.k8s.io", pod.Namespace, name)
		case claim.DeletionTimestamp != nil && pod.Spec.NodeName == "":
			missing = append(missing, "claim "+name+" is being deleted")
		default:
			found = append(found, claim)
		}
		return nil
	}
	for i := range pod.Spec.ResourceClaims {
		asked := &pod.Spec.ResourceClaims[i]
		name, _, err := resourceclaim.Name(pod, asked)
		switch {
		case errors.Is(err, resourceclaim.ErrClaimNotFound):
			missing = append(missing, r.notMade(ctx, pod, asked))
			continue
		case err != nil:
			missing = append(missing, err.Error())
			continue
		case name == nil:
			continue
		}
		if err := add(*name); err != nil {
			return nil, nil, err
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil && status.ResourceClaimName != "" {
		err = add(status.ResourceClaimName)
	}
	return found, missing, err
}

// notMade says why a claim is not there that is to be made of a template, as far as that can
// be read: the template is missing, or something such as a quota or a webhook refuses it or the claim.
func (r Reader) notMade(ctx context.Context, pod *corev1.Pod, asked *corev1.PodResourceClaim) string {
	template := *asked.ResourceClaimTemplateName
	text, reason := "the claim of template "+template+" is not made yet", "FailedResourceClaimCreation"
	_, err := r.Client.ResourceV1().ResourceClaimTemplates(pod.Namespace).Get(ctx, template, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		text, reason = "the ResourceClaimTemplate "+template+" does not exist", v1alpha1.ReasonClaimTemplateNotMade
	}
	if said := r.lastSaid(ctx, pod, reason); said != "" {
		text += ": " + said
	}
	return text
}

// lastSaid is the message of a pod's last Event of a reason, on one line; empty where there is none, or it cannot be
// read.
func (r Reader) lastSaid(ctx context.Context, pod *corev1.Pod, reason string) string {
	events, err := r.Client.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
		"involvedObject.name": pod.Name, "involvedObject.kind": "Pod", "reason": reason,
	}.String()})
	if err != nil || len(events.Items) == 0 {
		return ""
	}
	last := slices.MaxFunc(events.Items, func(a, b corev1.Event) int {
		return a.LastTimestamp.Compare(
			b.LastTimestamp.Time)
	})
	return strings.Join(strings.Fields(last.Message), " ")
}
