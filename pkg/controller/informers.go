// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	admissioninformers "k8s.io/client-go/informers/admissionregistration/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	policyinformers "k8s.io/client-go/informers/policy/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/admission"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/claimtemplates"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cpusets"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/nodestatus"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/pending"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podannotations"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podgroups"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podsync"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/preempt"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
)

func (i *informers) policy(o Options) nodestatus.Policy {
	if o.LegacyPolicy == "" {
		return admission.None{}
	}
	return admission.New(o.LegacyPolicy, i.policies, i.bindings, i.pods)
}

// informers are what the controllers know of the cluster, without what none of them reads.
type informers struct {
	nodes, slices, classes, pods *watched
	// legacyPods are those that were converted; pods that wait are in pods, too.
	legacyPods, legacyTemplates *watched
	// gangPods are the pods that name a gang.
	gangPods *watched
	// starting are the pods that are on a node and have not started.
	starting *watched
	// statuses are the nodes again, with what nodestatus reads of them.
	statuses *watched
	// claims are those of all pods.
	claims *watched
	// plugins are the pods of the node agents; nil where nobody needs them.
	plugins *watched
	// livePods are all pods that have not ended, wholeNodes the nodes with what the scheduler
	// asks of them; nil where nobody needs them, as are the PodDisruptionBudgets and the labels of
	// namespaces.
	livePods, wholeNodes, budgets, namespaces *watched
	// These are nil where nobody needs them. They have one name.
	policies, bindings *watched
	// all are those that there are.
	all []*watched
}

func newInformers(o Options) (*informers, error) {
	i := &informers{}
	var errs []error
	add := func(what string, informer cache.SharedIndexInformer, transform cache.TransformFunc) *watched {
		w, err := watch(what, informer)
		if err != nil {
			errs = append(errs, err)
			return nil
		}
		if transform != nil {
			if err := informer.SetTransform(transform); err != nil {
				errs = append(errs, fmt.Errorf("make the cache of %s smaller: %w", what, err))
			}
		}
		i.all = append(i.all, w)
		return w
	}
	pods := func(what string, selected func(*metav1.ListOptions), transform cache.TransformFunc) *watched {
		return add(what, coreinformers.NewFilteredPodInformer(o.Client, metav1.NamespaceAll, resync, cache.Indexers{},
			selected), transform)
	}
	labels := func(of string) *watched {
		return add("the labels of "+of, metadatainformer.NewFilteredMetadataInformer(o.Metadata,
			corev1.SchemeGroupVersion.WithResource(of), metav1.NamespaceAll, resync, cache.Indexers{}, nil).Informer(),
			withoutNotes)
	}
	i.nodes = labels("nodes")
	i.statuses = add("nodes", coreinformers.NewNodeInformer(o.Client, resync, cache.Indexers{}), nodestatus.Transform)
	i.slices = add("ResourceSlices", resourceinformers.NewFilteredResourceSliceInformer(o.Client, resync, cache.Indexers{},
		withFields(fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, v1alpha1.DriverName).String())),
		view.Transform)
	i.classes = add("DeviceClasses", resourceinformers.NewDeviceClassInformer(o.Client, resync, cache.Indexers{}),
		withoutManagedFields)
	i.pods = pods("pods without a node", withFields(pending.Selector()), waitingPod)
	i.starting = pods("pods that start", withFields(informer.StartingPods()), informer.SlimStartingPod)
	i.legacyPods = pods("converted pods", withLabels(claimtemplates.Selector), convertedPod)
	i.gangPods = pods("pods of gangs", withLabels(podgroups.Selector), podgroups.Slim)
	i.legacyTemplates = add("ResourceClaimTemplates", resourceinformers.NewFilteredResourceClaimTemplateInformer(
		o.Client, metav1.NamespaceAll, resync, cache.Indexers{}, withLabels(claimtemplates.Selector)), withoutManagedFields)
	i.claims = add("ResourceClaims", resourceinformers.NewResourceClaimInformer(o.Client, metav1.NamespaceAll, resync,
		cache.Indexers{}), informer.SlimClaim)
	if o.PodSyncs {
		i.plugins = add("the pods of gpu-kubelet-plugin", coreinformers.NewFilteredPodInformer(o.Client, o.Namespace, resync,
			cache.Indexers{}, withLabels(podsync.PluginSelector)), podsync.SlimPlugin)
	}
	if o.Preemption {
		i.livePods = pods("pods", withFields(preempt.Selector()), preempt.Slim)
		i.wholeNodes = add("nodes with their taints", coreinformers.NewNodeInformer(o.Client, resync, cache.Indexers{}),
			preempt.SlimNode)
		i.budgets = add("PodDisruptionBudgets", policyinformers.NewPodDisruptionBudgetInformer(o.Client, metav1.NamespaceAll,
			resync, cache.Indexers{}), withoutManagedFields)
		i.namespaces = labels("namespaces")
	}
	if o.LegacyPolicy != "" {
		named := withFields(fields.OneTermEqualSelector(metav1.ObjectNameField, o.LegacyPolicy).String())
		i.policies = add("ValidatingAdmissionPolicy "+o.LegacyPolicy,
			admissioninformers.NewFilteredValidatingAdmissionPolicyInformer(o.Client, resync, cache.Indexers{}, named), nil)
		i.bindings = add("ValidatingAdmissionPolicyBinding "+o.LegacyPolicy,
			admissioninformers.NewFilteredValidatingAdmissionPolicyBindingInformer(o.Client, resync, cache.Indexers{}, named),
			nil)
	}
	return i, errors.Join(errs...)
}

// run starts the informers.
func (i *informers) run(ctx context.Context, wg *sync.WaitGroup) {
	for _, informer := range i.all {
		wg.Go(func() { informer.RunWithContext(ctx) })
	}
}

// waitingPod is a transform for the pods without a node: it leaves what the controllers read
// of them.
func waitingPod(object any) (any, error) {
	slim, err := pending.Transform(object)
	whole, ok := object.(*corev1.Pod)
	if kept, is := slim.(*corev1.Pod); ok && is {
		cpusets.Keep(whole, kept)
	}
	return slim, err
}

// convertedPod is a transform for the pods that were converted: it leaves what the
// controllers read of them.
func convertedPod(object any) (any, error) {
	slim, err := claimtemplates.Slim(object)
	whole, ok := object.(*corev1.Pod)
	if kept, is := slim.(*corev1.Pod); ok && is {
		podannotations.Keep(whole, kept)
	}
	return slim, err
}

func withFields(selector string) func(*metav1.ListOptions) {
	return func(list *metav1.ListOptions) { list.FieldSelector = selector }
}

func withLabels(selector string) func(*metav1.ListOptions) {
	return func(list *metav1.ListOptions) { list.LabelSelector = selector }
}

// withoutManagedFields is a transform for objects of any kind.
func withoutManagedFields(object any) (any, error) {
	if o, err := meta.Accessor(object); err == nil {
		o.SetManagedFields(nil)
	}
	return object, nil
}

// withoutNotes is a transform for metadata: it also removes annotations, which
// with the managed fields are most of it.
func withoutNotes(object any) (any, error) {
	if o, err := meta.Accessor(object); err == nil {
		o.SetAnnotations(nil)
	}
	return withoutManagedFields(object)
}
