// SPDX-License-Identifier: Apache-2.0

// Package driver is the node agent: it answers the kubelet, and wires up what reads the
// node's GPUs, publishes them, and prepares claims on them.
package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/procs"
	"github.com/gpushare/dra-driver-gpushare/internal/seen"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	auditwatch "github.com/gpushare/dra-driver-gpushare/pkg/node/audit/watch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/claimstatus"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/watch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/inventory"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/limitwatch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metafile"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/orphans"
	otherwatch "github.com/gpushare/dra-driver-gpushare/pkg/node/otherdrivers/watch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/timeslice"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const (
	// component names the source of the Events.
	component = "gpu-kubelet-plugin"
	// firstRead is how long the kubelet is kept waiting for the GPUs to be read. It
	// tries a claim again only after a minute, and they are read in less than a
	// second, unless one hangs.
	firstRead = 3 * time.Second
	// lastEvents is how long the end waits for the Events that say why, of which the
	// process that follows may know nothing. With drainLimit it is less than a pod's grace.
	lastEvents = 5 * time.Second
)

// Config is what the agent needs to know.
type Config struct {
	NodeName string
	// PodUID enables rolling updates: two instances may run at once. Empty
	// outside of a pod.
	PodUID types.UID
	Client kubernetes.Interface
	// PluginDir holds the sockets and the state; RegistrarDir is where the
	// kubelet looks for plugins; CDIDir is where the container runtime looks
	// for CDI specs.
	PluginDir, RegistrarDir, CDIDir string
	// ReadyFile, if set, is made as soon as the kubelet has registered this
	// instance: from then on it can do without the one before.
	ReadyFile string
	// Programs are those of the image that the host's container runtime starts, see
	// InstalledProgram; empty ones are passed over.
	Programs []string
	GPUs     inventory.Options
	// RequiredLabel, if set, is the key of a label without which the node offers no
	// GPUs. Claims that were allocated before it was taken off go on.
	RequiredLabel string
	// WatchPods says that pods which a device plugin started may run on the node. They
	// are watched; without it no pods are listed.
	WatchPods bool
	// PodResources is the kubelet's PodResources API.
	PodResources podresources.Client
	// Cgroups is where the node's control groups are mounted.
	Cgroups string
	// Isolation chooses what keeps the users of a GPU apart.
	Isolation isolation.Config
	// LimitsOffBy is what can switch off the limits of shares.
	LimitsOffBy claim.LimitsOffBy
	NVIDIA      bool // serve claims written for NVIDIA's DRA driver
	// IgnoredXIDs are the errors that say nothing of a GPU's health, UnhealthyEffect is
	// the effect of the taint of those that are not well.
	IgnoredXIDs     []health.XID
	UnhealthyEffect resourceapi.DeviceTaintEffect
	Audit           AuditConfig
	// Registry has what the program shows to Prometheus. MetricsAddress is where that is served, with what reports
	// whether the plugin works; "0" for nowhere.
	Registry       *prometheus.Registry
	MetricsAddress string
	// StatusClient is for writing what claims have into their status, at a rate of its own;
	// nil for not to.
	StatusClient kubernetes.Interface
	// Refused gets why the program goes on with its old settings, nil once it does not; nil for never.
	Refused <-chan error
	// Busy is told when the kubelet asks for claims, and done when it was answered; nil for nobody.
	Busy procs.Busy
}

// Run serves until the context ends. An error is one that trying again within
// the process would not repair.
func Run(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := os.MkdirAll(cfg.PluginDir, 0o750); err != nil {
		return fmt.Errorf("make the plugin directory: %w", err)
	}
	// What takes long and needs nothing of each other is done side by side: until all of
	// it is done, the kubelet waits for its claims.
	gpus := inventory.NewReader(cfg.GPUs)
	gpus.Begin(ctx)
	installed := make(chan error, 1)
	go func() { installed <- installPrograms(cfg.Programs, cfg.PluginDir) }()
	node, err := waitForNode(ctx, cfg.Client, cfg.NodeName)
	if err := errors.Join(err, <-installed); err != nil {
		return err
	}
	events := report.NewBroadcast(ctx, cfg.Client, corev1.EventSource{Component: component, Host: cfg.NodeName},
		eventLimits())
	defer events.Close(ctx, lastEvents)
	recorder := events.Recorder()
	a := &agent{Config: cfg, pods: pods.New(podcgroup.New(cfg.Cgroups, cfg.PodUID)),
		events: report.NewNodeEvents(recorder, node, cfg.GPUs.HostRoot), podEvents: recorder,
		inUse:        seen.NewSince[types.UID](clock.RealClock{}),
		registration: newRegistration(clock.RealClock{}), fail: cancel, rescan: make(chan struct{}, 1),
		recoverAgain: make(chan struct{}, 1)}
	if a.state, err = state.Open(cfg.PluginDir, cfg.NodeName); err != nil {
		return err
	}
	last, _, _ := a.state.Node() // the publisher says what is wrong with it
	a.Isolation.Offered = last.Isolation
	a.registry = isolation.NewRegistry(a.Isolation)
	return a.run(ctx, node, gpus)
}

// eventLimits let more through than the 25 Events about one object, and then one
// in five minutes, that the recorder takes by default: a label that is changed
// back and forth uses them up, and the last Event is the one that counts.
func eventLimits() record.CorrelatorOptions {
	return record.CorrelatorOptions{BurstSize: 100, QPS: 2}
}

// agent is the wired-up plugin.
type agent struct {
	Config
	nodeUID   types.UID
	events    report.NodeEvents
	podEvents record.EventRecorder
	fail      context.CancelCauseFunc
	state     *state.Store
	registry  *isolation.Registry
	limited   *limitwatch.Watch
	preparer  *prepare.Preparer
	// inUse is since when the kubelet has been refused claims' release because their pods have processes.
	inUse     *seen.Since[types.UID]
	publisher *publish.Publisher
	helper    *kubeletplugin.Helper
	// first is for the node's first ResourceSlices.
	first sync.Once
	calls *calls
	// pods has the node's pods, and is empty unless they are watched. taken knows what others hold without a claim of
	// this driver.
	pods    *pods.Picture
	taken   watch.Pods
	others  *otherwatch.Watch
	orphans *orphans.Sweeper
	// runtimeName is the node's container runtime, as the kubelet names it.
	runtimeName atomic.Pointer[string]
	// registration is that of this instance with the kubelet.
	registration *registration
	// rescan is signalled to have the GPUs read at once, recoverAgain to have what is prepared recovered.
	rescan, recoverAgain chan struct{}
	// found is sent when other GPUs are in force than before, changed when claims were prepared or unprepared, held when
	// what others hold may have changed, healthChanged when the health of devices may be another one.
	found, changed, held, healthChanged signal.Broadcast
	// counts count what the plugin does; used knows what is used of the GPUs, nil if nobody
	// does.
	counts *metrics.Plugin
	used   *auditwatch.Watch
	// statuses shows in the status of claims what they have, and takes the releases; nil if nobody does.
	statuses *claimstatus.Keeper
	releases *claimstatus.Releases
}

func (a *agent) run(ctx context.Context, node *corev1.Node, gpus *inventory.Reader) error {
	a.nodeUID = node.UID
	a.counts = metrics.NewPlugin(a.Registry)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("read the boot ID: %w", err)
	}
	bootID := strings.TrimSpace(string(boot))
	// Each part is made after those that it uses. The later ones listen to the earlier ones.
	if err := a.follow(ctx); err != nil {
		return err
	}
	a.makePreparer(bootID)
	a.limited = a.makeMemoryLimits()
	a.publisher = publish.New(publish.Options{
		Client: a.Client, NodeName: a.NodeName, Events: a.events, State: a.state, Clock: clock.RealClock{},
		Isolation: a.registry, Claims: a.preparer, Pods: a.taken, MPS: mps.Dir(a.Isolation.MPSDir),
		RequiredLabel: a.RequiredLabel, NVIDIA: a.NVIDIA, UnhealthyEffect: a.UnhealthyEffect, Metrics: a.counts,
		ClaimEvents: report.New(a.podEvents, clock.RealClock{}), Rescan: a.rescan,
		Granted: &a.changed, Held: &a.held, HealthChanged: &a.healthChanged,
	})
	a.statuses = a.makeStatuses()
	a.orphans = orphans.New(orphans.Options{Claims: a.preparer, Cluster: a.reader(), Pods: a.pods, BootID: bootID,
		OnOrphans: a.publisher.SetOrphans, Clock: clock.RealClock{}})
	monitor := a.makeMonitor(ctx, bootID)
	a.setNode(node)
	usable := &usability{startable: a.preparer.Startable, tell: a.publisher.SetUnusable, publisher: a.publisher}
	found, first := make(chan *prepare.Inventory, 1), make(chan struct{})
	inv := inventory.New(inventory.KeeperOptions{Reader: gpus, Events: a.events, Found: found, Fail: a.fail,
		Clock: clock.RealClock{}, ReadInterval: a.GPUs.ReadInterval, Health: monitor, Rescan: a.rescan})
	var wg sync.WaitGroup
	if a.Audit.Interval > 0 {
		a.used = a.makeAudit()
	}
	wg.Go(func() { a.serveStatus(ctx) })
	// The kubelet's first calls need what it sees.
	wg.Go(func() { a.taken.Run(ctx) })
	wg.Go(func() { inv.Run(ctx) })
	wg.Go(func() { a.adopt(ctx, found, usable, first) })
	select {
	case <-first:
	case <-ctx.Done():
	case <-time.After(firstRead):
		a.events.Warn(v1alpha1.ReasonDriverUnavailable,
			fmt.Sprintf("No GPUs are offered on this node yet: they could not be read within %s, for the driver, or the file "+
				"system that it is on, does not answer: see whether nvidia-smi works on the node", firstRead))
		a.recover(ctx)
	}
	// Where the state was lost, claims wait for it.
	wg.Go(func() { a.repair(ctx) })
	if err := a.startHelper(ctx, node.UID, first); err != nil {
		a.fail(err)
		wg.Wait()
		return err
	}
	defer a.stopHelper(ctx)
	defer wg.Wait()
	// The publisher has to know before it publishes anything.
	dirs := newDirWatch(a.sharedDirs(), a.sockets(), a.registration.overdue)
	usable.looked(dirs.look().gone)
	wg.Go(func() { a.recoverOn(ctx) })
	wg.Go(func() { a.watchDirs(ctx, dirs, usable) })
	wg.Go(func() { a.watchRuntime(ctx, usable) })
	wg.Go(func() { a.publisher.Run(ctx, a.publish) })
	wg.Go(func() { a.orphans.Run(ctx) })
	wg.Go(func() { a.limited.Run(ctx) })
	wg.Go(func() { a.watchNode(ctx) })
	wg.Go(func() { a.watchSettings(ctx) })
	wg.Go(func() { a.makeMPSWatch().Run(ctx) })
	wg.Go(func() { watchEvents(ctx, gpus.Watch, monitor, inv.Cut, &a.found) })
	if a.statuses != nil {
		wg.Go(func() { a.statuses.Run(ctx) })
	}
	if a.used != nil {
		wg.Go(func() { a.used.Run(ctx) })
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// follow watches who has GPUs without a claim of this driver.
func (a *agent) follow(ctx context.Context) error {
	ofPlugins, err := a.followPods(ctx)
	if err != nil {
		return err
	}
	a.others, err = otherwatch.New(ctx, otherwatch.Options{
		Client: a.Client, NodeName: a.NodeName, Kubelet: a.PodResources, Pods: ofPlugins,
		File:     filepath.Join(a.PluginDir, "otherdrivers.json"),
		OnChange: a.noteHeld,
		OnUnread: func(err error) {
			a.events.Warn(v1alpha1.ReasonPodsUnread, "The node publishes no new GPUs until it is known which "+
				"of them other DRA drivers publish: "+err.Error())
		},
		OnDamaged: func(err error) { a.tellDamaged(ctx, err) },
	})
	a.taken = a.others
	return err
}

// noteHeld says that what others hold may have changed, and so could be read.
func (a *agent) noteHeld() {
	a.events.Clear(v1alpha1.ReasonPodsUnread)
	a.held.Send()
}

// followPods watches the node's pods, unless none is of a device plugin.
func (a *agent) followPods(ctx context.Context) (watch.Pods, error) {
	if !a.WatchPods {
		return watch.KubeletOnly(a.PodResources), nil
	}
	kept, _, _ := a.state.Node()
	return watch.New(watch.Options{
		Client: a.Client, NodeName: a.NodeName, Kubelet: a.PodResources, Picture: a.pods,
		File: filepath.Join(a.PluginDir, "unclaimed.json"), Left: kept.DevicePluginLeft,
		Lock:     a.state.LockNode,
		OnChange: a.noteHeld, OnUnread: a.tellPodsUnread,
		OnDamaged: func(err error) { a.tellDamaged(ctx, err) },
	})
}

func (a *agent) makePreparer(bootID string) {
	if a.StatusClient != nil {
		a.releases = &claimstatus.Releases{}
	}
	a.preparer = prepare.New(prepare.Options{
		Pool: v1alpha1.PoolName(a.NodeName), Store: a.state, Specs: cdi.Dir(a.CDIDir),
		Metadata:  metafile.Dir(filepath.Join(a.PluginDir, "metadata")),
		BootID:    bootID,
		Isolation: a.registry, MPS: mps.Dir(a.Isolation.MPSDir), LimitsOffBy: a.LimitsOffBy, NVIDIA: a.NVIDIA,
		TimeSlices:         &timeslice.SMI{Root: a.GPUs.Local(a.GPUs.DriverRoot), Path: timeslice.DefaultPath},
		Partitions:         a.GPUs.Partitions(),
		Rescan:             func() { signal.Send(a.rescan) },
		ContainersPerShare: a.Isolation.ContainersPerShare,
		Cluster:            a.reader(),
		Node:               preparerNode{a.pods, a.taken},
		Listener:           preparerListener{a.events, a.releases, a.inUse},
		Changed:            &a.changed,
	})
}

// reader asks the API server about claims.
func (a *agent) reader() cluster.Reader {
	return cluster.Reader{Client: a.Client, NodeName: a.NodeName}
}

// tellDamaged says that a state file was damaged.
func (a *agent) tellDamaged(ctx context.Context, err error) {
	klog.FromContext(ctx).Error(err, "A state file was damaged")
	a.events.Warn(v1alpha1.ReasonStateDamaged, err.Error())
}

// tellPodsUnread says on the node that its pods cannot be read.
func (a *agent) tellPodsUnread(err error) {
	a.events.Warn(v1alpha1.ReasonPodsUnread, "The node publishes no new GPUs until it is known which of its pods "+
		"hold some without a claim: "+err.Error())
}
