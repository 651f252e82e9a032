// Package controller is what gpu-compat-controller does as the leader: it wires up
// the loops, each of which keeps one thing in the cluster as it should be, and runs
// them.
//
// A further loop is a package with a New that takes what it needs and returns a
// *loop.Loop; it is added in makeLoops.
package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	admissioninformers "k8s.io/client-go/informers/admissionregistration/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/compat"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/cards"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/guard"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/loop"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/modelclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/nodelabels"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/nodestatus"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/podannotations"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/refused"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/templates"
	"github.com/gpushare/dra-driver-gpushare/pkg/compat/waiting"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	devslices "github.com/gpushare/dra-driver-gpushare/pkg/slices"
)

// LegacyPolicy is the name of the policy that Options.LegacyPolicy is about, as
// the driver comes with it.
const LegacyPolicy = "gpushare-legacy-refuse"

// resync calls each loop for everything, so that Events of what still holds are
// repeated before the API server forgets them.
const resync = 30 * time.Minute

// writers is how many nodes, pods or templates are written side by side, which is waiting for
// the API server.
const writers = 4

// Options are what the controller is told.
type Options struct {
	Client   kubernetes.Interface
	Metadata metadata.Interface
	// DeviceClasses is whether it keeps the DeviceClasses of card models.
	DeviceClasses bool
	// ClassGrace is how long such a class stays without cards.
	ClassGrace time.Duration
	// TemplateGrace is how long a claim template that was made for legacy pods stays
	// without them.
	TemplateGrace time.Duration
	// LegacyPolicy names the ValidatingAdmissionPolicy that refuses pods which ask for
	// ACK's extended resources and hold no claim. While it is enforced, nodes show
	// these resources in their status. Empty: they never do, and stop if they did.
	LegacyPolicy string
	// PodAnnotations is whether pods that asked in ACK's manner get the annotations
	// of ACK's scheduler, PodAnnotationsV1 whether those of its first version, too.
	PodAnnotations, PodAnnotationsV1 bool
	// EvictRefused is whether pods that can never start, because others hold the card
	// that they were allocated, are evicted where something makes them anew.
	EvictRefused bool
}

// task is a loop and how many of its Syncs may run at once.
type task struct {
	*loop.Loop
	workers int
}

// Run works until the context ends. There must be one such Run in the cluster.
func Run(ctx context.Context, o Options) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: o.Client.CoreV1().Events(metav1.NamespaceAll)})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: compat.Name})

	i, err := newInformers(o)
	if err != nil {
		return err
	}
	tasks, err := makeLoops(o, i, recorder)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if !i.run(ctx, &wg) {
		return nil
	}
	klog.FromContext(ctx).Info("Leading", "deviceClasses", o.DeviceClasses, "legacyPolicy", o.LegacyPolicy, "podAnnotations", o.PodAnnotations, "evictRefused", o.EvictRefused)
	for _, t := range tasks {
		wg.Go(func() { t.Run(ctx, t.workers) })
	}
	return nil
}

func makeLoops(o Options, i *informers, recorder record.EventRecorder) ([]task, error) {
	events := report.New(recorder, clock.RealClock{})
	nodeLabels, err := nodelabels.New(nodelabels.Config{Nodes: i.nodes, Slices: i.slices, Client: o.Client.CoreV1().Nodes(), Events: events})
	if err != nil {
		return nil, err
	}
	pods, err := waiting.New(waiting.Config{
		Pods: i.pods, Slices: i.slices, Classes: i.classes, Nodes: i.nodes, Client: o.Client.ResourceV1(),
		Offered: func(name corev1.ResourceName) bool { return nodestatus.Serves(i.statuses, name) },
		Events:  report.New(recorder, clock.RealClock{}, report.RepeatAfter(waiting.RepeatAfter)),
	})
	if err != nil {
		return nil, err
	}
	claimTemplates, err := templates.New(templates.Config{
		Pods: i.legacyPods, Unbound: i.pods, Templates: i.legacyTemplates, Client: o.Client.ResourceV1(), Live: o.Client.CoreV1(),
		Events: events, Grace: o.TemplateGrace, Clock: clock.RealClock{},
	})
	if err != nil {
		return nil, err
	}
	// Without a policy it takes back what nodes show since there was one.
	status, err := nodestatus.New(nodestatus.Config{
		Nodes: i.statuses, Slices: i.slices, Client: o.Client.CoreV1().Nodes(), Events: events, Guard: i.guard(o),
	})
	if err != nil {
		return nil, err
	}
	refusals, err := refused.New(refused.Config{
		Pods: i.starting, Slices: i.slices, Claims: o.Client.ResourceV1(), Core: o.Client.CoreV1(), Jobs: o.Client.BatchV1(),
		Events: events, Clock: clock.RealClock{}, Evict: o.EvictRefused,
	})
	if err != nil {
		return nil, err
	}
	tasks := []task{{nodeLabels, writers}, {pods, 1}, {claimTemplates, writers}, {status, writers}, {refusals, 1}}
	if o.PodAnnotations {
		annotations, err := podannotations.New(podannotations.Config{Claims: i.claims, Slices: i.slices, Client: o.Client.CoreV1(), V1: o.PodAnnotationsV1})
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, task{annotations, writers})
	}
	if o.DeviceClasses {
		classes, err := modelclasses.New(modelclasses.Config{
			Slices: i.slices, Classes: i.classes, Client: o.Client.ResourceV1(), Events: events, Grace: o.ClassGrace, Clock: clock.RealClock{},
		})
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, task{classes, 1})
	}
	return tasks, nil
}

func (i *informers) guard(o Options) nodestatus.Guard {
	if o.LegacyPolicy == "" {
		return guard.None{}
	}
	return guard.New(o.LegacyPolicy, i.policies, i.bindings, i.pods)
}

// informers are what the loops know of the cluster, without what none of them reads.
type informers struct {
	nodes, slices, classes, pods cache.SharedIndexInformer
	// legacyPods are those that were converted; pods that wait are in pods, too.
	legacyPods, legacyTemplates cache.SharedIndexInformer
	// starting are the pods that are on a node and have not started.
	starting cache.SharedIndexInformer
	// statuses are the nodes again, with what nodestatus reads of them.
	statuses cache.SharedIndexInformer
	// These are nil where nobody needs them; policies and bindings have one name.
	claims, policies, bindings cache.SharedIndexInformer
}

func newInformers(o Options) (*informers, error) {
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	i := &informers{
		nodes: metadatainformer.NewFilteredMetadataInformer(o.Metadata, nodes, metav1.NamespaceAll, resync, cache.Indexers{}, nil).Informer(),
		slices: resourceinformers.NewFilteredResourceSliceInformer(o.Client, resync, cache.Indexers{}, func(list *metav1.ListOptions) {
			list.FieldSelector = fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, devslices.DriverName).String()
		}),
		classes: resourceinformers.NewDeviceClassInformer(o.Client, resync, cache.Indexers{}),
		pods: coreinformers.NewFilteredPodInformer(o.Client, metav1.NamespaceAll, resync, cache.Indexers{}, func(list *metav1.ListOptions) {
			list.FieldSelector = waiting.Selector()
		}),
		legacyPods: coreinformers.NewFilteredPodInformer(o.Client, metav1.NamespaceAll, resync, cache.Indexers{}, selectLegacy),
		starting: coreinformers.NewFilteredPodInformer(o.Client, metav1.NamespaceAll, resync, cache.Indexers{}, func(list *metav1.ListOptions) {
			list.FieldSelector = refused.Selector()
		}),
		legacyTemplates: resourceinformers.NewFilteredResourceClaimTemplateInformer(o.Client, metav1.NamespaceAll, resync, cache.Indexers{}, selectLegacy),
		statuses:        coreinformers.NewNodeInformer(o.Client, resync, cache.Indexers{}),
	}
	err := errors.Join(
		i.nodes.SetTransform(withoutNotes), i.slices.SetTransform(cards.Transform),
		i.classes.SetTransform(withoutManagedFields), i.pods.SetTransform(waiting.Transform),
		i.legacyPods.SetTransform(templates.Slim), i.legacyTemplates.SetTransform(withoutManagedFields),
		i.statuses.SetTransform(nodestatus.Transform), i.starting.SetTransform(refused.Transform),
	)
	if o.PodAnnotations {
		i.claims = resourceinformers.NewFilteredResourceClaimInformer(o.Client, metav1.NamespaceAll, resync, cache.Indexers{}, func(list *metav1.ListOptions) {
			list.LabelSelector = labels.Set{legacy.Label: "true"}.String()
		})
		err = errors.Join(err, i.claims.SetTransform(withoutManagedFields))
	}
	if o.LegacyPolicy != "" {
		named := func(list *metav1.ListOptions) {
			list.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, o.LegacyPolicy).String()
		}
		i.policies = admissioninformers.NewFilteredValidatingAdmissionPolicyInformer(o.Client, resync, cache.Indexers{}, named)
		i.bindings = admissioninformers.NewFilteredValidatingAdmissionPolicyBindingInformer(o.Client, resync, cache.Indexers{}, named)
	}
	if err != nil {
		return nil, fmt.Errorf("make the caches smaller: %w", err)
	}
	return i, nil
}

func selectLegacy(list *metav1.ListOptions) { list.LabelSelector = templates.Selector }

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

// run starts the informers and waits until they know what there is; it is false
// where the context ended before that.
func (i *informers) run(ctx context.Context, wg *sync.WaitGroup) bool {
	var synced []cache.InformerSynced
	all := []cache.SharedIndexInformer{
		i.nodes, i.slices, i.classes, i.pods, i.legacyPods, i.legacyTemplates, i.starting, i.claims, i.statuses, i.policies, i.bindings,
	}
	for _, informer := range all {
		if informer != nil {
			wg.Go(func() { informer.RunWithContext(ctx) })
			synced = append(synced, informer.HasSynced)
		}
	}
	return cache.WaitForNamedCacheSyncWithContext(ctx, synced...)
}
