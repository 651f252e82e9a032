// SPDX-License-Identifier: Apache-2.0

// Package controller is what gpu-compat-controller does as the leader: it wires up
// the controllers, each of which keeps one thing in the cluster as it should be, and runs
// them.
//
// A further controller is a package with a New that takes what it needs and returns a
// *manager.Controller; it is added in makeControllers.
package controller

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/claimtemplates"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/conflict"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cpusets"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/deviceclass"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/nodelabels"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/nodestatus"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/overquota"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/pending"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podannotations"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podgroups"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podsync"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/preempt"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/spread"
	"github.com/gpushare/dra-driver-gpushare/pkg/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/probes"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// LegacyPolicy is the name of the policy that Options.LegacyPolicy is about, as
// the driver comes with it.
const LegacyPolicy = "gpushare-legacy-refuse"

// resync calls each controller for everything, so that Events of what still holds are
// repeated before the API server forgets them.
const resync = 30 * time.Minute

// writers is how many nodes, pods or templates are written side by side, which is waiting for
// the API server.
const writers = 4

// lastEvents is how long the end waits for Events that are on their way. Whoever leads next tells
// again what still holds, but not why a pod was evicted.
const lastEvents = 5 * time.Second

// Options are what the controller is told.
type Options struct {
	Client   kubernetes.Interface
	Metadata metadata.Interface
	// Annotations and Events are for writing ACK's annotations of pods, and Events; Syncs
	// for having kubelets sync pods, Waiting for reading the claims of pods that wait, and Gangs for
	// the PodGroups of gangs:
	// clients with rates of their own, so that a crowd of any keeps nothing else waiting.
	// Nil is Client.
	Annotations, Events, Syncs, Waiting, Gangs kubernetes.Interface
	// NodeLabels is whether it labels nodes by their GPUs. Labels that are there stay.
	NodeLabels bool
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
	// EvictConflicting is whether pods that can never start, because others hold the card
	// that they were allocated, are evicted where something makes them anew.
	EvictConflicting bool
	// PodSyncs is whether kubelets are had to sync pods again whose claims they could not
	// prepare, before they do so by themselves.
	PodSyncs bool
	// Preemption is whether pods are evicted for pods of higher priority that wait for devices.
	Preemption bool
	// Namespace is the driver's, where its node agents are.
	Namespace string
	// Checks are told what keeps the controllers from their work; nil for nobody.
	Checks *probes.Checks
	// SyncDeadline is how long a controller may wait for what it has to know of the cluster
	// before Run returns an error, so that another replica tries; zero for ever.
	SyncDeadline time.Duration
	// Metrics count what the controllers do; nil for nobody.
	Metrics *metrics.Controller
}

// task is a controller, how many of its Reconciles may run at once, and what has to be known of
// the cluster before they do.
type task struct {
	*manager.Controller
	workers int
	needs   []*watched
}

// Run works until the context ends. There must be one such Run in the cluster. Each
// controller begins when it knows what it has to; one that does not get to know it keeps no
// other from its work, until the deadline. That is returned as an error.
func Run(ctx context.Context, o Options) error {
	for _, client := range []*kubernetes.Interface{&o.Annotations, &o.Events, &o.Syncs, &o.Waiting, &o.Gangs} {
		if *client == nil {
			*client = o.Client
		}
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	events := report.NewBroadcast(ctx, o.Events, corev1.EventSource{Component: v1alpha1.ControllerName},
		record.CorrelatorOptions{})
	defer events.Close(ctx, lastEvents)
	i, err := newInformers(o)
	if err != nil {
		return err
	}
	tasks, err := makeControllers(o, i, events.Recorder())
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Leading", "deviceClasses", o.DeviceClasses, "legacyPolicy", o.LegacyPolicy,
		"podAnnotations", o.PodAnnotations, "evictRefused", o.EvictConflicting, "podSyncs", o.PodSyncs, "preemption",
		o.Preemption)
	var wg sync.WaitGroup
	i.run(ctx, &wg)
	failed := make(chan error, len(tasks))
	for _, t := range tasks {
		if o.Checks != nil {
			o.Checks.Add(t.Name(), t.problem)
		}
		if o.Metrics != nil {
			t.SetObserve(o.Metrics.Reconciled)
		}
		wg.Go(func() {
			synced, err := t.synced(ctx, o.SyncDeadline)
			if err != nil {
				failed <- err
				fail(err)
			}
			if synced {
				t.Run(ctx, t.workers)
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// templateLag and annotationLag count how late templates and annotations were.
func (o Options) templateLag() func(time.Duration) {
	if o.Metrics == nil {
		return nil
	}
	return o.Metrics.TemplateLag
}

func (o Options) annotationLag() func(time.Duration) {
	if o.Metrics == nil {
		return nil
	}
	return o.Metrics.AnnotationLag
}

func makeControllers(o Options, i *informers, recorder record.EventRecorder) ([]task, error) {
	events := report.New(recorder, clock.RealClock{})
	pods, err := pending.New(pending.Config{
		Pods: i.pods, Slices: i.slices, Classes: i.classes, Nodes: i.nodes, Claims: i.claims, Client: o.Waiting.ResourceV1(),
		Offered: func(name corev1.ResourceName) bool { return nodestatus.Serves(i.statuses, name) },
		Closed:  func(node string) corev1.NodeSpec { return nodestatus.Closed(i.statuses, node) },
		Events:  report.New(recorder, clock.RealClock{}, report.RepeatAfter(pending.RepeatAfter)),
	})
	if err != nil {
		return nil, err
	}
	claimTemplates, err := claimtemplates.New(claimtemplates.Config{
		Pods: i.legacyPods, Unbound: i.pods, Templates: i.legacyTemplates, Client: o.Client.ResourceV1(),
		Live:   o.Client.CoreV1(),
		Events: events, Grace: o.TemplateGrace, Clock: clock.RealClock{}, Lag: o.templateLag(),
	})
	if err != nil {
		return nil, err
	}
	// Without a policy it takes back what nodes show since there was one.
	status, err := nodestatus.New(nodestatus.Config{
		Nodes: i.statuses, Slices: i.slices, Client: o.Client.CoreV1().Nodes(), Events: events, Policy: i.policy(o),
	})
	if err != nil {
		return nil, err
	}
	refusals, err := conflict.New(conflict.Config{
		Pods: i.starting, AllClaims: i.claims, Slices: i.slices, Claims: o.Client.ResourceV1(), Core: o.Client.CoreV1(),
		Jobs:   o.Client.BatchV1(),
		Events: events, Clock: clock.RealClock{}, Evict: o.EvictConflicting,
	})
	if err != nil {
		return nil, err
	}
	spreads, err := spread.New(spread.Config{
		Pods: i.pods, Slices: i.slices, Claims: i.claims, Classes: i.classes, NodeLabels: i.nodes,
		Client: o.Client.ResourceV1(), Nodes: o.Client.CoreV1().Nodes(), Clock: clock.RealClock{},
	})
	if err != nil {
		return nil, err
	}
	gangs, err := podgroups.New(podgroups.Config{Pods: i.gangPods, Client: o.Gangs.SchedulingV1beta1(),
		Discovery: o.Gangs.Discovery(), Events: events, Clock: clock.RealClock{}})
	if err != nil {
		return nil, err
	}
	overQuota, err := overquota.New(overquota.Config{
		Pods: i.pods, Quotas: o.Waiting.CoreV1(), Templates: o.Waiting.ResourceV1(),
		Claims: o.Waiting.ResourceV1(), Changes: o.Syncs.CoreV1(), Clock: clock.RealClock{},
		Events: report.New(recorder, clock.RealClock{}, report.RepeatAfter(overquota.RepeatAfter)),
	})
	if err != nil {
		return nil, err
	}
	cpus, err := cpusets.New(cpusets.Config{Pods: i.pods, Classes: i.classes,
		Events: report.New(recorder, clock.RealClock{})})
	if err != nil {
		return nil, err
	}
	cpuClass, err := cpusets.NewMarker(cpusets.MarkerConfig{Classes: i.classes,
		Client: o.Client.ResourceV1().DeviceClasses()})
	if err != nil {
		return nil, err
	}
	statusNeeds := []*watched{i.statuses, i.slices}
	if o.LegacyPolicy != "" {
		statusNeeds = append(statusNeeds, i.policies, i.bindings, i.pods)
	}
	tasks := []task{
		{pods, 1, []*watched{i.pods, i.slices, i.classes, i.nodes, i.statuses, i.claims}},
		{claimTemplates, writers, []*watched{i.legacyPods, i.pods, i.legacyTemplates}},
		{status, writers, statusNeeds},
		{refusals, writers, []*watched{i.starting, i.claims, i.slices}},
		{gangs, writers, []*watched{i.gangPods}},
		{overQuota, 1, []*watched{i.pods}},
		{cpus, 1, []*watched{i.pods, i.classes}},
		{cpuClass, 1, []*watched{i.classes}},
		{spreads, 1, []*watched{i.pods, i.claims, i.slices, i.classes, i.nodes}},
	}
	if o.NodeLabels {
		nodeLabels, err := nodelabels.New(nodelabels.Config{Nodes: i.nodes, Slices: i.slices,
			Client: o.Client.CoreV1().Nodes(), Events: events})
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, task{nodeLabels, writers, []*watched{i.nodes, i.slices}})
	}
	if o.PodSyncs {
		syncs, err := podsync.New(podsync.Config{Pods: i.starting, Claims: i.claims, Plugins: i.plugins,
			Client: o.Syncs.CoreV1(), Clock: clock.RealClock{}})
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, task{syncs, writers, []*watched{i.starting, i.claims}})
	}
	if o.Preemption {
		preemptions, err := preempt.New(preempt.Config{Pods: i.livePods, Nodes: i.wholeNodes, Budgets: i.budgets,
			Slices: i.slices, Claims: i.claims, Classes: i.classes, Namespaces: i.namespaces,
			Client: o.Waiting.CoreV1(), ClaimsOf: o.Waiting.ResourceV1(), Rules: o.Waiting.ResourceV1(),
			Groups: o.Waiting.SchedulingV1beta1(), Events: events, Clock: clock.RealClock{}})
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, task{preemptions, 1,
			[]*watched{i.livePods, i.wholeNodes, i.budgets, i.slices, i.claims, i.classes, i.namespaces}})
	}
	if o.PodAnnotations {
		annotations, err := podannotations.New(podannotations.Config{Claims: i.claims, Pods: i.legacyPods, Slices: i.slices,
			Client: o.Annotations.CoreV1(), V1: o.PodAnnotationsV1, Lag: o.annotationLag()})
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, task{annotations, writers, []*watched{i.claims, i.legacyPods, i.slices}})
	}
	if o.DeviceClasses {
		classes, err := deviceclass.New(deviceclass.Config{
			Slices: i.slices, Classes: i.classes, Client: o.Client.ResourceV1(), Events: events, Grace: o.ClassGrace,
			Clock: clock.RealClock{},
		})
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, task{classes, 1, []*watched{i.slices, i.classes}})
	}
	return tasks, nil
}
