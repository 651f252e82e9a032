// SPDX-License-Identifier: Apache-2.0

// Package publish keeps the node's ResourceSlices in line with what the node is asked to
// offer: its mode and how that changes, the order of the devices, their taints, and the node
// Events about all of that.
package publish

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish/mpsdemand"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

const (
	// retryInterval is how long the publisher waits before it looks again
	// whether what held it up is gone.
	retryInterval = 5 * time.Second
	// seenLimit is how long the API server may take to show what was published.
	seenLimit = 5 * time.Second
	// isolationInterval is how often the publisher looks whether the GPUs' users
	// are still kept apart. What is prepared is checked each time by itself.
	isolationInterval = 500 * time.Millisecond
	// devicePluginGrace is for how long a device plugin has to be gone before its GPUs are
	// offered: after a restart the kubelet shows none of its resources until it is
	// registered again and the status, which is written every 10 seconds, says so; and
	// a pod that it started last has to be seen.
	devicePluginGrace = 20 * time.Second
	// packDelay and spreadDelay collect what a burst of claims changes, so that it costs
	// one write: each makes the scheduler look at all waiting pods again. Where shares are
	// spread, the next of a burst wait for it, and the GPUs of a claim that ends have to be
	// held back before the scheduler knows that it has. Where they are packed, claims of a
	// burst are not prepared in the order in which they were allocated, and the fullest GPU
	// is known when they are.
	packDelay   = time.Second
	spreadDelay = 50 * time.Millisecond
)

// Options are what a Publisher works with.
type Options struct {
	Client   kubernetes.Interface
	NodeName string
	Events   report.NodeEvents
	State    NodeState
	Clock    clock.Clock
	// Isolation finds the back end of each mode.
	Isolation isolation.Backends
	Claims    mpsdemand.Claims
	Pods      Pods
	MPS       mpsdemand.MPS
	// RequiredLabel, if set, is a label without which the node offers nothing.
	RequiredLabel string
	// UnhealthyEffect is the effect of the taint of GPUs that are unhealthy; NoSchedule if
	// empty.
	UnhealthyEffect resourceapi.DeviceTaintEffect
	// Granted is sent when claims were prepared or unprepared, Held when what pods without a claim hold may have
	// changed. HealthChanged is sent when Health may answer otherwise than before.
	Granted, Held, HealthChanged *signal.Broadcast
	// Metrics count what becomes of changes; nil for nobody.
	Metrics Metrics
	// ClaimEvents tell claims what became of what they hold; nil tells nothing.
	ClaimEvents *report.Reporter
	// Rescan has the GPUs read again, soon: it is signalled, and has room for one signal.
	Rescan chan<- struct{}
}

// NodeState keeps what the node promised; *state.Store implements it.
type NodeState interface {
	Node() (state.Node, bool, error)
	PutNode(n state.Node) error
}

// Metrics count what becomes of changes; *metrics.Plugin implements it.
type Metrics interface {
	// Published is told how long the oldest change waited to be published.
	Published(lag time.Duration)
	PublishFailed()
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) Published(time.Duration) {}
func (noMetrics) PublishFailed()          {}

// Pods knows what pods hold whose GPUs came from a device plugin; those of package
// deviceplugin/watch implement it.
type Pods interface {
	// Observe returns what they hold of the machine's GPUs. Its error is
	// held.ErrPodsUnread until that is known; Wake tells that it changed.
	Observe(ctx context.Context, m *gpu.Machine) (held.Reserved, error)
	// SetLeft is told when the last device plugin left: pods that the kubelet took later have
	// nothing of one. It is the zero time while one may serve.
	SetLeft(left time.Time)
}

// PublishFunc publishes the node's pool (kubeletplugin.Helper.PublishResources).
type PublishFunc func(ctx context.Context, resources resourceslice.DriverResources) error

// Publisher keeps the node's ResourceSlice in line with its GPUs, its labels
// and, where shares are spread, with what is granted.
type Publisher struct {
	Options
	// publish is Run's.
	publish PublishFunc

	// wake is signalled when something changed, regrant when only the grants
	// did.
	wake, regrant chan struct{}
	demand        *mpsdemand.Demand

	mu sync.Mutex
	given
	// published are the devices as last published.
	published []resourceapi.Device
	progress  progress

	memory
}

// given is what the publisher was told.
type given struct {
	// machine is nil as long as the GPUs are unread; in a snapshot it has none then.
	machine *gpu.Machine
	unread  bool
	node    *nodeFacts
	// dropped is how often the API server turned out to drop fields of what was published.
	dropped int
	// refused is what the API server last said where it did not take what was published, refusals
	// how often it did not.
	refused  error
	refusals int
	// orphans says, of claims that are prepared though nothing is allocated to them any
	// more, why they are, by UID.
	orphans map[types.UID]string
	// unusable says why no container with any of the node's GPUs could start, nil if one
	// could.
	unusable error
	// unhealthy are the GPUs that are, by UUID.
	unhealthy map[string]health.Unhealthy
	// refusedClaims are those that the kubelet asked for last and that were not prepared, by UID.
	refusedClaims map[types.UID]refusedClaim
}

// memory is what one pass leaves to the next. Nobody but the passes knows it.
type memory struct {
	restored   bool // the checkpoint is the NodeState's
	checkpoint state.Node
	// lastDropped is the value of dropped when last was published, rewrite when the same may be published again
	// because of it.
	lastDropped int
	rewrite     tries
	// refusalsSeen are those after which the API server had what was published, reread when it may be asked again
	// what it has.
	refusalsSeen int
	reread       tries
	// last, layout and retained are as last published.
	last     *resourceslice.DriverResources
	layout   usage.Layout
	retained retainedSets
	// closedSince is when the API server first showed the devices as closed to new claims; zero
	// while they are open. reopened says that they have been closed before they were published last.
	closedSince time.Time
	reopened    bool
	drainCheck  drainCheck
	// watched are the modes last asked for, as their isolation was then.
	watched    []servedMode
	annotation annotation
	// devicePluginGoneSince is when the node was first seen without the resources of a device
	// plugin that the checkpoint names.
	devicePluginGoneSince time.Time
	// preflighted is what the last preflight that succeeded asked for, droppedSeen the value of
	// dropped that it knew.
	preflighted cluster.Features
	droppedSeen int
	version     cluster.Version
	// listed are the records as they could last be listed.
	listed []state.Record
	// goneClaims are those that were told that their MIG instances are gone.
	goneClaims map[types.UID]goneClaim
	// made are the MIG instances that were made for claims, by UUID.
	made map[string]firstSeen
}

// New returns a Publisher, which has to Run.
func New(o Options) *Publisher {
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	p := &Publisher{Options: o, wake: make(chan struct{}, 1), regrant: make(chan struct{}, 1)}
	// What fails is reported as a publication that does.
	p.demand = mpsdemand.New(mpsdemand.Options{MPS: o.MPS, Claims: o.Claims, Isolation: o.Isolation, Clock: o.Clock,
		FailureChanged: func() { signal.Send(p.wake) }})
	return p
}

// SetMachine tells the publisher what GPUs there are.
func (p *Publisher) SetMachine(m *gpu.Machine) {
	p.update(func() { p.machine = m })
	p.HealthChanged.Send()
}

// SetNode tells the publisher about the node.
func (p *Publisher) SetNode(node *corev1.Node) {
	facts := factsOf(node, p.RequiredLabel)
	p.mu.Lock()
	same := reflect.DeepEqual(p.node, facts)
	p.mu.Unlock()
	if !same {
		p.update(func() { p.node = facts })
	}
}

// ReportFailed says on the node that the API server did not take its slice. It is behind until a
// pass finds that it has.
func (p *Publisher) ReportFailed(err error) {
	p.Metrics.PublishFailed()
	p.Events.Warn(v1alpha1.ReasonPublishFailed, err.Error())
	p.update(func() {
		p.refused, p.progress.err = err, err
		p.refusals++
	})
}

// SetDropped tells the publisher that the API server dropped fields of the
// published slice: what is there now means something else than intended.
func (p *Publisher) SetDropped() {
	p.update(func() { p.dropped++ })
}

// SetUnusable tells the publisher why no container with any of the node's GPUs could start,
// nil if one could: then none are offered.
func (p *Publisher) SetUnusable(why error) {
	p.mu.Lock()
	same := fmt.Sprint(p.unusable) == fmt.Sprint(why)
	p.mu.Unlock()
	if !same {
		p.update(func() { p.unusable = why })
	}
}

// SetHealth tells the publisher which GPUs are unhealthy, by UUID.
func (p *Publisher) SetHealth(unhealthy map[string]health.Unhealthy) {
	p.update(func() { p.unhealthy = unhealthy })
	p.HealthChanged.Send()
}

// Wake tells the publisher that what pods without a claim hold may have changed.
func (p *Publisher) Wake() {
	p.noteChange()
	signal.Send(p.wake)
}

// granted notes that a claim was prepared or unprepared.
func (p *Publisher) granted() {
	p.noteChange()
	signal.Send(p.regrant)
}

func (p *Publisher) update(change func()) {
	p.mu.Lock()
	change()
	p.mu.Unlock()
	p.Wake()
}

// Run publishes by publish until the context ends.
func (p *Publisher) Run(ctx context.Context, publish PublishFunc) {
	p.publish = publish
	var beside sync.WaitGroup
	defer beside.Wait()
	// Also what is sent while a pass runs counts from then on as not published.
	for _, told := range []struct {
		by *signal.Broadcast
		do func()
	}{{p.Granted, p.granted}, {p.Held, p.Wake}} {
		sent := told.by.Next()
		beside.Go(func() { follow(ctx, told.by, sent, told.do) })
	}
	beside.Go(func() { p.demand.Run(ctx) })
	var retry, order, recheck <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.regrant:
			if order == nil {
				order = p.Clock.After(p.orderDelay())
			}
			continue
		case <-order:
			order = nil
		case <-p.wake:
		case <-retry:
		case <-recheck:
			recheck = p.Clock.After(isolationInterval)
			if !p.isolationChanged() {
				continue
			}
		}
		settled, err := p.reconcileNoted(ctx)
		if ctx.Err() != nil {
			return
		}
		retry, recheck = nil, nil
		if canFail(p.watched) {
			recheck = p.Clock.After(isolationInterval)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Publishing the node's GPUs failed, will try again", "after", retryInterval)
			p.Events.Warn(v1alpha1.ReasonPublishFailed, err.Error())
		} else {
			p.Events.Clear(v1alpha1.ReasonPublishFailed)
		}
		if err != nil || !settled {
			retry = p.Clock.After(retryInterval)
		}
	}
}

// follow calls do each time that the broadcast is sent, until the context ends; sent is closed by the first time.
func follow(ctx context.Context, by *signal.Broadcast, sent <-chan struct{}, do func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-sent:
			sent = by.Next()
			do()
		}
	}
}

func (p *Publisher) orderDelay() time.Duration {
	if p.layout.Limits != nil {
		return spreadDelay
	}
	return packDelay
}

// inputs are what was told until now.
func (p *Publisher) inputs() given {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := p.given
	if in.machine == nil {
		in.machine, in.unread = &gpu.Machine{}, true
	}
	return in
}
