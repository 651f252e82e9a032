// SPDX-License-Identifier: Apache-2.0

// Package controller is what gpu-compat-controller does as the leader: it wires up
// the controllers, each of which keeps one thing in the cluster as it should be, and runs
// them.
//
// A further controller is a package with a New that takes what it needs, asks the cache for the
// parts that it reads, and returns a *manager.Controller; it is added in makeControllers.
package controller

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/procs"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/claimtemplates"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cpusets"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/defragment"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/deviceclass"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/nodelabels"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/nodestatus"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/overquota"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podannotations"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podgroups"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podsync"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/spread"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/waiting"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/waiting/preempt"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/probes"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
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
	// Events is for writing Events, Waiting for reading pods and their claims, Gangs for the PodGroups of gangs,
	// and Nominations for reading what pods are nominated by: clients with rates of their own, so that a crowd of any
	// keeps nothing else waiting.
	Events, Waiting, Gangs, Nominations kubernetes.Interface
	// Annotations is for writing ACK's annotations of pods, Syncs for having pods looked at again, and Nominate for nodes
	// that are nominated, before the scheduler looks at their pods. They have rates of their own, too.
	Annotations, Syncs, Nominate metadata.Interface
	// NodeLabels is whether it labels nodes by their GPUs. Labels that are there stay.
	NodeLabels bool
	// NodeFeatures is whether it labels them as GPU Feature Discovery does, where that does not run; if not, they go.
	NodeFeatures bool
	// DeviceClasses is whether it keeps the DeviceClasses of GPU models.
	DeviceClasses bool
	// ClassGrace is how long such a class stays without GPUs.
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
	// PodSyncs is whether kubelets are had to sync pods again whose claims they could not
	// prepare, before they do so by themselves.
	PodSyncs bool
	// Preemption is whether pods are evicted for pods of higher priority that wait for devices.
	Preemption bool
	// BestNode is whether the best node is nominated for pods that wait for GPUs, NodePlacement which one is the best.
	BestNode      bool
	NodePlacement score.Setting
	// Defragment is whether pods are evicted so that they move to other nodes, or told so, DefragmentMoves how many in an
	// hour.
	Defragment      defragment.Setting
	DefragmentMoves int
	// Namespace is the driver's, where its node agents are.
	Namespace string
	// Checks are told what keeps the controllers from their work.
	Checks *probes.Checks
	// SyncDeadline is how long a controller may wait for what it has to know of the cluster
	// before Run returns an error, so that another replica tries; zero for ever.
	SyncDeadline time.Duration
	// Metrics count what the controllers do.
	Metrics *metrics.Controller
	// Busy is told when something takes the processor for long: nobody waits for it meanwhile if there are several.
	Busy procs.Busy
}

// task is a controller, how many of its Reconciles may run at once, and what it knows of the
// cluster. One without a controller is a part of another's that has to know more than that.
type task struct {
	name       string
	controller *manager.Controller
	workers    int
	known      *cache.Reader
}

// Run works until the context ends. There must be one such Run in the cluster. Each
// controller begins when it knows what it has to; one that does not get to know it keeps no
// other from its work, until the deadline. That is returned as an error.
func Run(ctx context.Context, o Options) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	events := report.NewBroadcast(ctx, o.Events, corev1.EventSource{Component: v1alpha1.ControllerName},
		record.CorrelatorOptions{})
	defer events.Close(ctx, lastEvents)
	known := cache.New(cache.Options{Client: o.Client, Metadata: o.Metadata, Namespace: o.Namespace, Resync: resync})
	tasks := makeControllers(o, known, events.Recorder())
	published := known.Reader().Slices()
	o.Metrics.SetSurplus(func() map[string]int64 {
		return devices.Surplus(published.List(), func(s *view.Slice) (string, resourceapi.ResourcePool) {
			return s.Node, s.Pool
		})
	})
	if err := known.Err(); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Leading", "deviceClasses", o.DeviceClasses, "legacyPolicy", o.LegacyPolicy,
		"podAnnotations", o.PodAnnotations, "podSyncs", o.PodSyncs, "preemption", o.Preemption, "bestNode", o.BestNode,
		"nodePlacement", o.NodePlacement, "defragment", o.Defragment)
	var wg sync.WaitGroup
	wg.Go(func() { known.Run(ctx) })
	failed := make(chan error, len(tasks))
	for _, t := range tasks {
		o.Checks.Add(t.name, t.known.Problem)
		if t.controller != nil {
			t.controller.SetObserve(o.Metrics.Reconciled)
		}
		wg.Go(func() {
			done := o.Busy.Begin()
			synced, err := t.known.WaitForSync(ctx, t.name, o.SyncDeadline)
			done()
			if err != nil {
				failed <- err
				fail(err)
			}
			if synced && t.controller != nil {
				t.controller.Run(ctx, t.workers)
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

func makeControllers(o Options, known *cache.Cache, recorder record.EventRecorder) []task {
	events, core := report.New(recorder, clock.RealClock{}), o.Client.CoreV1()
	repeating := func(after time.Duration) *report.Reporter {
		return report.New(recorder, clock.RealClock{}, report.RepeatAfter(after))
	}
	engine := scheduling.NewEngine(scheduling.ExpressionsMost)
	var tasks []task
	add := func(workers int, controller func(*cache.Reader) *manager.Controller) {
		reader := known.Reader()
		c := controller(reader)
		tasks = append(tasks, task{c.Name(), c, workers, reader})
	}
	var expected func(*corev1.Pod) string
	if o.Defragment != defragment.Off {
		add(1, func(c *cache.Reader) *manager.Controller {
			d := defragment.New(defragment.Config{Cache: c, Pods: o.Waiting.CoreV1(), Claims: o.Waiting.ResourceV1(),
				Rules: o.Waiting.ResourceV1(), Leases: o.Client.CoordinationV1().Leases(o.Namespace), Engine: engine,
				Events: events, Clock: clock.RealClock{}, Setting: o.Defragment, Most: o.DefragmentMoves, Busy: o.Busy,
				Moved: func(outcome defragment.Outcome) { o.Metrics.Moved(string(outcome)) }})
			expected = d.Planned
			return d.Controller()
		})
	}
	// Legacy pods wait for their templates, and are nominated before these are made.
	var beforehand func(context.Context, []*corev1.Pod)
	add(writers, func(c *cache.Reader) *manager.Controller {
		cfg := waiting.Config{Cache: c, Client: o.Waiting.ResourceV1(), Engine: engine,
			Events: repeating(waiting.RepeatAfter), Clock: clock.RealClock{}, Gates: o.Metadata, Busy: o.Busy}
		if o.BestNode {
			cfg.Nominations = &waiting.Nominations{Client: o.Nominations.ResourceV1(), Pods: o.Nominate,
				Placement: o.NodePlacement, Planned: expected,
				Outcome: func(outcome waiting.Outcome) { o.Metrics.Nominated(string(outcome)) }}
		}
		if o.Preemption {
			known := known.Reader()
			cfg.Preemptions = &preempt.Config{Cache: known, Client: o.Waiting.CoreV1(), ClaimsOf: o.Waiting.ResourceV1(),
				Rules: o.Waiting.ResourceV1(), Groups: o.Waiting.SchedulingV1beta1(), Engine: engine, Events: events,
				Clock: clock.RealClock{}}
			tasks = append(tasks, task{name: "preempt", known: known})
		}
		r := waiting.New(cfg)
		if n := r.Nominator(); n != nil {
			beforehand = n.Nominate
			o.Metrics.SetStranded(n.Stranded)
		}
		return r.Controller()
	})
	add(writers, func(c *cache.Reader) *manager.Controller {
		return claimtemplates.New(claimtemplates.Config{Cache: c, Client: o.Client.ResourceV1(), Live: core, Events: events,
			Grace: o.TemplateGrace, Clock: clock.RealClock{}, Lag: o.Metrics.TemplateLag, Beforehand: beforehand})
	})
	add(writers, func(c *cache.Reader) *manager.Controller {
		return nodestatus.New(nodestatus.Config{Cache: c, Client: core.Nodes(), Events: events, Policy: o.LegacyPolicy})
	})
	add(writers, func(c *cache.Reader) *manager.Controller {
		return podgroups.New(podgroups.Config{Cache: c, Client: o.Gangs.SchedulingV1beta1(), Discovery: o.Gangs.Discovery(),
			Changes: o.Syncs, Events: events, Clock: clock.RealClock{}})
	})
	add(1, func(c *cache.Reader) *manager.Controller {
		return overquota.New(overquota.Config{Cache: c, Quotas: o.Waiting.CoreV1(), Templates: o.Waiting.ResourceV1(),
			Claims: o.Waiting.ResourceV1(), Changes: o.Syncs, Clock: clock.RealClock{},
			Events: repeating(overquota.RepeatAfter)})
	})
	add(1, func(c *cache.Reader) *manager.Controller {
		return cpusets.New(cpusets.Config{Cache: c, Events: report.New(recorder, clock.RealClock{})})
	})
	add(1, func(c *cache.Reader) *manager.Controller {
		return spread.New(spread.Config{Cache: c, Client: o.Client.ResourceV1(), Nodes: core.Nodes(),
			Engine: engine, Clock: clock.RealClock{}})
	})
	add(writers, func(c *cache.Reader) *manager.Controller {
		return nodelabels.New(nodelabels.Config{Cache: c, Client: core.Nodes(), Events: events, Labels: o.NodeLabels,
			Features: o.NodeFeatures})
	})
	if o.PodSyncs {
		add(writers, func(c *cache.Reader) *manager.Controller {
			return podsync.New(podsync.Config{Cache: c, Client: o.Syncs, Clock: clock.RealClock{}})
		})
	}
	if o.PodAnnotations {
		add(writers, func(c *cache.Reader) *manager.Controller {
			return podannotations.New(podannotations.Config{Cache: c, Live: o.Waiting.CoreV1(), Changes: o.Annotations,
				V1: o.PodAnnotationsV1, Lag: o.Metrics.AnnotationLag})
		})
	}
	add(1, func(c *cache.Reader) *manager.Controller {
		return deviceclass.New(deviceclass.Config{Cache: c, Client: o.Client.ResourceV1(), Events: events,
			Models: o.DeviceClasses, Grace: o.ClassGrace, Clock: clock.RealClock{}})
	})
	return tasks
}
