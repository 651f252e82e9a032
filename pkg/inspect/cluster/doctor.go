// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/bundle"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// ofDriver selects what the driver's manifests install.
const ofDriver = "app.kubernetes.io/name=dra-driver-gpushare"

// schedulerRole is the ClusterRole that Kubernetes makes for its scheduler.
const schedulerRole = "system:kube-scheduler"

// Snapshot reads what a doctor looks at. What may not be read is said in it; only that the API
// server does not answer is an error.
func (r Reader) Snapshot(ctx context.Context) (*doctor.Snapshot, error) {
	s := &doctor.Snapshot{}
	if info, err := r.Client.Discovery().ServerVersion(); err == nil {
		s.ServerVersion = info.GitVersion
	}
	s.Now = cmp.Or(r.Clock, &Clock{}).Now() // its first answer has come
	group, groupCtx := errgroup.WithContext(ctx)
	g := &gathering{lists: group, snapshot: s}
	group.Go(func() error {
		events, err := Reader{Client: r.Client}.readEvents(groupCtx)
		switch {
		case apierrors.IsForbidden(err):
			g.note(&s.Unread, "events")
			return nil
		case err != nil:
			return fmt.Errorf("list what the plugin says of nodes: %w", err)
		}
		s.NodeEvents = events
		return nil
	})
	group.Go(func() error {
		role, err := r.Client.RbacV1().ClusterRoles().Get(groupCtx, schedulerRole, metav1.GetOptions{})
		switch {
		case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("list the rules of ClusterRole %s, which tell what the API server guards: %w", schedulerRole, err)
		}
		s.SchedulerRole = role
		return nil
	})
	core, apps, dra, admission := r.Client.CoreV1(), r.Client.AppsV1(), r.Client.ResourceV1(),
		r.Client.AdmissionregistrationV1()
	all, driver := metav1.ListOptions{}, metav1.ListOptions{LabelSelector: ofDriver}
	slicesOf := func(driver string) metav1.ListOptions {
		return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver,
			driver).String()}
	}
	const groupDRA, groupAdmission = ".resource.k8s.io", ".admissionregistration.k8s.io"
	gather(groupCtx, g, "nodes", &s.Nodes, core.Nodes(), all)
	gather(groupCtx, g, "namespaces", &s.Namespaces, core.Namespaces(), all)
	gather(groupCtx, g, "pods", &s.Pods, core.Pods(metav1.NamespaceAll), all)
	gather(groupCtx, g, "daemonsets.apps", &s.DaemonSets, apps.DaemonSets(metav1.NamespaceAll), driver)
	gather(groupCtx, g, "deployments.apps", &s.Deployments, apps.Deployments(metav1.NamespaceAll), driver)
	gather(groupCtx, g, "resourceslices"+groupDRA, &s.Slices, dra.ResourceSlices(), slicesOf(v1alpha1.DriverName))
	gather(groupCtx, g, "resourceslices"+groupDRA, &s.CPUs, dra.ResourceSlices(), slicesOf(legacy.ClassCPUs))
	gather(groupCtx, g, "resourceclaims"+groupDRA, &s.Claims, dra.ResourceClaims(metav1.NamespaceAll), all)
	gather(groupCtx, g, "deviceclasses"+groupDRA, &s.Classes, dra.DeviceClasses(), all)
	gather(groupCtx, g, "resourcequotas", &s.Quotas, core.ResourceQuotas(metav1.NamespaceAll), all)
	gather(groupCtx, g, "mutatingadmissionpolicies"+groupAdmission, &s.Mutating,
		admission.MutatingAdmissionPolicies(), all)
	gather(groupCtx, g, "mutatingadmissionpolicybindings"+groupAdmission, &s.MutatingBindings,
		admission.MutatingAdmissionPolicyBindings(), all)
	gather(groupCtx, g, "validatingadmissionpolicies"+groupAdmission, &s.Validating,
		admission.ValidatingAdmissionPolicies(), all)
	gather(groupCtx, g, "validatingadmissionpolicybindings"+groupAdmission, &s.ValidatingBindings,
		admission.ValidatingAdmissionPolicyBindings(), all)
	if err := g.lists.Wait(); err != nil {
		return nil, err
	}
	if err := r.settings(ctx, g); err != nil {
		return nil, err
	}
	s.Unread = slices.Compact(slices.Sorted(slices.Values(s.Unread)))
	s.Unserved = slices.Compact(slices.Sorted(slices.Values(s.Unserved)))
	if err := r.tryWaiting(ctx, s); err != nil {
		return nil, err
	}
	return s, r.released(ctx, s)
}

// releasedWithin is how long kube-controller-manager may take to take a pod that has gone out of its claims.
const releasedWithin = 5 * time.Second

// released takes those pods out of claims that have just gone: where some are gone, it reads the claims again, later.
func (r Reader) released(ctx context.Context, s *doctor.Snapshot) error {
	unused := s.ForGonePods()
	if len(unused) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for the claims of pods that are gone: %w", context.Cause(ctx))
	case <-time.After(releasedWithin):
	}
	later, err := list[*resourceapi.ResourceClaim](ctx, r.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll),
		metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list again the claims of pods that are gone: %w", err)
	}
	still := map[types.UID]*resourceapi.ResourceClaim{}
	for _, c := range later {
		still[c.UID] = c
	}
	for i, c := range s.Claims {
		gone, now := unused[c], still[c.UID]
		if len(gone) == 0 {
			continue
		}
		// Pods that have come since are not in the snapshot.
		s.Claims[i] = c.DeepCopy()
		s.Claims[i].Status.ReservedFor = slices.DeleteFunc(s.Claims[i].Status.ReservedFor,
			func(u resourceapi.ResourceClaimConsumerReference) bool {
				return slices.Contains(gone, u) && (now == nil || !slices.Contains(now.Status.ReservedFor, u))
			})
	}
	return nil
}

// settings reads the ConfigMaps from which the driver's programs take settings.
func (r Reader) settings(ctx context.Context, g *gathering) error {
	driver := bundle.DriverOf(g.snapshot)
	var wanted []types.NamespacedName
	add := func(o metav1.Object, spec *corev1.PodSpec) {
		if !driver.Owns(o, spec) {
			return
		}
		for _, c := range spec.Containers {
			for _, from := range c.EnvFrom {
				if from.ConfigMapRef != nil {
					wanted = append(wanted, types.NamespacedName{Namespace: o.GetNamespace(), Name: from.ConfigMapRef.Name})
				}
			}
		}
	}
	for _, d := range g.snapshot.DaemonSets {
		add(d, &d.Spec.Template.Spec)
	}
	for _, d := range g.snapshot.Deployments {
		add(d, &d.Spec.Template.Spec)
	}
	for i, name := range wanted {
		if slices.Contains(wanted[:i], name) {
			continue
		}
		// A list, because the ConfigMap is optional.
		found, err := r.Client.CoreV1().ConfigMaps(name.Namespace).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", name.Name).String()})
		switch {
		case apierrors.IsForbidden(err):
			g.note(&g.snapshot.Unread, "configmaps")
			return nil
		case err != nil:
			return fmt.Errorf("list configmap %s: %w", name, err)
		}
		for i := range found.Items {
			g.snapshot.ConfigMaps = append(g.snapshot.ConfigMaps, &found.Items[i])
		}
	}
	return nil
}

// gathering reads the lists of a snapshot concurrently.
type gathering struct {
	lists    *errgroup.Group
	mu       sync.Mutex
	snapshot *doctor.Snapshot
}

// note adds a list's name to one of the snapshot's: the lists that you may not read, or that the API server does not
// know.
func (g *gathering) note(in *[]string, what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*in = append(*in, what)
}

// gather reads a list into the snapshot, beside others.
func gather[T, L runtime.Object](ctx context.Context, g *gathering, what string, into *[]T, of lister[L],
	options metav1.ListOptions) {
	g.lists.Go(func() error {
		found, err := list[T](ctx, of, options)
		switch {
		case apierrors.IsForbidden(err):
			g.note(&g.snapshot.Unread, what)
			return nil
		case apierrors.IsNotFound(err):
			g.note(&g.snapshot.Unserved, what)
			return nil
		case err != nil:
			return fmt.Errorf("list %s: %w", what, err)
		}
		*into = found
		return nil
	})
}
