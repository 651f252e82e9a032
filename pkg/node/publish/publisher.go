// SPDX-License-Identifier: Apache-2.0

// Package publish keeps the node's ResourceSlices in line with what the node is asked to
// offer: its mode and how that changes, the order of the devices, their taints, and the node
// Events about all of that.
package publish

import (
	"context"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish/mpsdemand"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
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

// askAgain is how long there is between two times that the API server is asked the same, as by a node that waits to
// change its mode and looks whether the claims that it found are still allocated.
var askAgain = backoff.Doubling{Least: retryInterval, Most: time.Minute}

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
	// NVIDIA has devices also named as by NVIDIA's DRA driver.
	NVIDIA bool
	// UnhealthyEffect is the effect of the taint of GPUs that are unhealthy; NoSchedule if
	// empty.
	UnhealthyEffect resourceapi.DeviceTaintEffect
	// Granted is sent when claims were prepared or unprepared, Held when what pods without a claim hold may have
	// changed. HealthChanged is sent when Health may answer otherwise than before.
	Granted, Held, HealthChanged *signal.Broadcast
	// Metrics count what becomes of changes.
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

// New returns a Publisher, which has to Run.
func New(o Options) *Publisher {
	p := &Publisher{Options: o, wake: make(chan struct{}, 1), regrant: make(chan struct{}, 1)}
	// What fails is reported as a publication that does.
	p.demand = mpsdemand.New(mpsdemand.Options{MPS: o.MPS, Claims: o.Claims, Isolation: o.Isolation, Clock: o.Clock,
		FailureChanged: func() { signal.Send(p.wake) }})
	return p
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
