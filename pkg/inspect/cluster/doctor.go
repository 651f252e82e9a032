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
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

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
	g := &gathering{snapshot: s}
	whole := ctx // the group's ends with it
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		events, err := Reader{Client: r.Client}.readEvents(ctx)
		switch {
		case apierrors.IsForbidden(err):
			g.unread("events")
			return nil
		case err != nil:
			return fmt.Errorf("list what the plugin says of nodes: %w", err)
		}
		s.NodeEvents = events
		return nil
	})
	group.Go(func() error {
		role, err := r.Client.RbacV1().ClusterRoles().Get(ctx, schedulerRole, metav1.GetOptions{})
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
	driver := metav1.ListOptions{LabelSelector: ofDriver}
	gather[*corev1.Node](ctx, g, group, "nodes", &s.Nodes, metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Nodes().List(ctx, o)
		})
	gather[*corev1.Namespace](ctx, g, group, "namespaces", &s.Namespaces, metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Namespaces().List(ctx, o)
		})
	gather[*corev1.Pod](ctx, g, group, "pods", &s.Pods, metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Pods(metav1.NamespaceAll).List(ctx, o)
		})
	gather[*appsv1.DaemonSet](ctx, g, group, "daemonsets.apps", &s.DaemonSets, driver,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return apps.DaemonSets(metav1.NamespaceAll).List(ctx, o)
		})
	gather[*appsv1.Deployment](ctx, g, group, "deployments.apps", &s.Deployments, driver,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return apps.Deployments(metav1.NamespaceAll).List(ctx, o)
		})
	gather[*resourceapi.ResourceSlice](ctx, g, group, "resourceslices.resource.k8s.io", &s.Slices,
		metav1.ListOptions{FieldSelector: Reader{}.sliceFields()},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return dra.ResourceSlices().List(ctx, o)
		})
	gather[*resourceapi.ResourceSlice](ctx, g, group, "resourceslices.resource.k8s.io", &s.CPUs,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver,
			legacy.ClassCPUs).String()},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return dra.ResourceSlices().List(ctx, o)
		})
	gather[*resourceapi.ResourceClaim](ctx, g, group, "resourceclaims.resource.k8s.io", &s.Claims, metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return dra.ResourceClaims(metav1.NamespaceAll).List(ctx, o)
		})
	gather[*resourceapi.DeviceClass](ctx, g, group, "deviceclasses.resource.k8s.io", &s.Classes, metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return dra.DeviceClasses().List(ctx, o)
		})
	gather[*corev1.ResourceQuota](ctx, g, group, "resourcequotas", &s.Quotas, metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.ResourceQuotas(metav1.NamespaceAll).List(ctx, o)
		})
	const admissionGroup = ".admissionregistration.k8s.io"
	gather[*admissionv1.MutatingAdmissionPolicy](ctx, g, group, "mutatingadmissionpolicies"+admissionGroup, &s.Mutating,
		metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return admission.MutatingAdmissionPolicies().List(ctx, o)
		})
	gather[*admissionv1.MutatingAdmissionPolicyBinding](ctx, g, group, "mutatingadmissionpolicybindings"+admissionGroup,
		&s.MutatingBindings, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return admission.MutatingAdmissionPolicyBindings().List(ctx, o)
		})
	gather[*admissionv1.ValidatingAdmissionPolicy](ctx, g, group, "validatingadmissionpolicies"+admissionGroup,
		&s.Validating,
		metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return admission.ValidatingAdmissionPolicies().List(ctx, o)
		})
	gather[*admissionv1.ValidatingAdmissionPolicyBinding](ctx, g, group, "validatingadmissionpolicybindings"+
		admissionGroup,
		&s.ValidatingBindings, metav1.ListOptions{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return admission.ValidatingAdmissionPolicyBindings().List(ctx, o)
		})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := r.settings(whole, g); err != nil {
		return nil, err
	}
	s.Unread = slices.Compact(slices.Sorted(slices.Values(s.Unread)))
	s.Unserved = slices.Compact(slices.Sorted(slices.Values(s.Unserved)))
	if err := r.tryWaiting(whole, s); err != nil {
		return nil, err
	}
	return s, r.released(whole, s)
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
	later, err := list[*resourceapi.ResourceClaim](ctx, metav1.ListOptions{},
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return r.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, o)
		})
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
			g.unread("configmaps")
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

// gathering puts together a snapshot.
type gathering struct {
	mu       sync.Mutex
	snapshot *doctor.Snapshot
}

// unread notes that a list may not be read.
func (g *gathering) unread(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.snapshot.Unread = append(g.snapshot.Unread, what)
}

// unserved notes that the API server does not know a list.
func (g *gathering) unserved(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.snapshot.Unserved = append(g.snapshot.Unserved, what)
}

// gather reads a list into the snapshot, beside others.
func gather[T runtime.Object](ctx context.Context, g *gathering, group *errgroup.Group, what string, into *[]T,
	options metav1.ListOptions, page func(context.Context, metav1.ListOptions) (runtime.Object, error)) {
	group.Go(func() error {
		found, err := list[T](ctx, options, page)
		switch {
		case apierrors.IsForbidden(err):
			g.unread(what)
			return nil
		case apierrors.IsNotFound(err):
			g.unserved(what)
			return nil
		case err != nil:
			return fmt.Errorf("list %s: %w", what, err)
		}
		*into = found
		return nil
	})
}
