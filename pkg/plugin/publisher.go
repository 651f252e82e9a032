package plugin

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/state"
)

// Reasons of the node Events about publishing.
const (
	reasonModeRefused     = "GPUModeNotServed"
	reasonInvalidLabel    = "GPUInvalidLabel"
	reasonSwitchWaiting   = "GPUModeSwitchWaiting"
	reasonPublished       = "GPUModeServed"
	reasonFeatureDisabled = "GPUFeatureDisabled"
	reasonPublishFailed   = "GPUPublishFailed"
	reasonNotIsolated     = "GPUIsolationUnavailable"
)

const (
	// retryInterval is how long the publisher waits before it looks again
	// whether what held it up is gone.
	retryInterval = 5 * time.Second
	// seenLimit is how long the API server may take to show what was published.
	seenLimit = 5 * time.Second
	// healthInterval is how often the publisher looks whether the cards' users
	// are still kept apart. What is prepared is checked each time by itself.
	healthInterval = 500 * time.Millisecond
	// pluginGone is for how long a device plugin has to be gone before its cards are
	// offered: after a restart the kubelet shows none of its resources until it is
	// registered again and the status, which is written every 10 seconds, says so; and
	// a pod that it started last has to be seen.
	pluginGone = 20 * time.Second
	// spreadDelay collects what a burst of claims changes, so that it costs one
	// write: each makes the scheduler look at all waiting pods again.
	spreadDelay = 200 * time.Millisecond
)

// publishFunc publishes the node's pool (kubeletplugin.Helper.PublishResources).
type publishFunc func(ctx context.Context, resources resourceslice.DriverResources) error

// publisherOptions are what a publisher works with.
type publisherOptions struct {
	client   kubernetes.Interface
	nodeName string
	events   nodeEvents
	publish  publishFunc
	memory   memoryFile
	clock    clock.Clock
	// isolation finds the back end of each mode.
	isolation prepare.Isolation
	// prepared lists what is prepared on the node.
	prepared func(ctx context.Context) ([]state.Record, error)
	// withNodeLocked calls do with the same list; no claim is prepared meanwhile.
	withNodeLocked func(ctx context.Context, do func(prepared []state.Record) error) error
	// unclaimed is what pods without a claim hold of the machine's cards. Its error is
	// errPodsUnread until that is known; Unclaimed tells that it changed.
	unclaimed func(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error)
	// left is told when the last device plugin left: pods that were created later have
	// nothing of one. It is the zero time while one may serve.
	left func(time.Time)
	// unneeded tells gpu-mps-supervisor, until takeBack is called, that nothing on the
	// node uses MPS.
	unneeded func() (takeBack func() error, err error)
	// requiredLabel, if set, is a label without which the node offers nothing.
	requiredLabel string
	// unusable says why no container with any of the node's cards could start now, nil
	// if one could.
	unusable func() error
}

// publisher keeps the node's ResourceSlice in line with its cards, its labels
// and, where shares are spread, with what is granted.
type publisher struct {
	publisherOptions

	// wake is signalled when something changed, regrant when only the grants
	// did.
	wake, regrant chan struct{}

	mu      sync.Mutex
	machine *gpu.Machine
	node    *nodeFacts
	// dropped is set when the API server turned out to drop fields of what was
	// last published.
	dropped error
	// letGo says, of claims that are prepared and hold nothing any more for the scheduler,
	// why they are, by UID.
	letGo map[types.UID]string

	// The rest belongs to run's goroutine.
	remembered  memory
	closedSince time.Time // zero while the devices are open
	last        *resourceslice.DriverResources
	placement   placement // of the cards as last published
	passed      features  // what the last preflight that succeeded asked for
	loaded      bool
	looked      looked
	servings    []serving // of the mode last wished for
	mpsNeed     mpsNeed
	cluster     clusterVersion
	withdrawn   withdrawn
	// pluginLeft is when the node was first seen without the resources of a device
	// plugin that is remembered.
	pluginLeft time.Time
}

func newPublisher(o publisherOptions) *publisher {
	return &publisher{publisherOptions: o, wake: make(chan struct{}, 1), regrant: make(chan struct{}, 1)}
}

// SetMachine tells the publisher what cards there are.
func (p *publisher) SetMachine(m *gpu.Machine) {
	p.update(func() { p.machine = m })
}

// SetNode tells the publisher about the node.
func (p *publisher) SetNode(node *corev1.Node) {
	facts := factsOf(node, p.requiredLabel)
	p.mu.Lock()
	same := reflect.DeepEqual(p.node, facts)
	p.mu.Unlock()
	if !same {
		p.update(func() { p.node = facts })
	}
}

// SetDropped tells the publisher that the API server dropped fields of the
// published slice: what is there now means something else than intended.
func (p *publisher) SetDropped(err error) {
	p.update(func() { p.dropped = err })
}

// Unclaimed tells the publisher that what pods without a claim hold may have changed.
func (p *publisher) Unclaimed() { signal(p.wake) }

// Granted tells the publisher that a claim was prepared or unprepared.
func (p *publisher) Granted() { signal(p.regrant) }

func (p *publisher) update(change func()) {
	p.mu.Lock()
	change()
	p.mu.Unlock()
	signal(p.wake)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run publishes until the context ends.
func (p *publisher) run(ctx context.Context) {
	var retry, spread, health <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.regrant:
			if spread == nil {
				spread = p.clock.After(spreadDelay)
			}
			continue
		case <-spread:
			spread = nil
		case <-p.wake:
		case <-retry:
		case <-health:
			health = p.clock.After(healthInterval)
			if !p.healthChanged() {
				continue
			}
		}
		settled, err := p.reconcile(ctx)
		if ctx.Err() != nil {
			return
		}
		retry, health = nil, nil
		if canFail(p.servings) {
			health = p.clock.After(healthInterval)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Publishing the node's cards failed, will try again", "after", retryInterval)
			p.events.warn(reasonPublishFailed, err.Error())
		} else {
			p.events.clear(reasonPublishFailed)
		}
		if err != nil || !settled {
			retry = p.clock.After(retryInterval)
		}
	}
}

// inputs are what one reconciliation goes by.
type inputs struct {
	machine *gpu.Machine
	node    *nodeFacts
	dropped error
	letGo   map[types.UID]string
}

func (p *publisher) inputs() inputs {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := inputs{machine: p.machine, node: p.node, dropped: p.dropped, letGo: p.letGo}
	if in.machine == nil {
		in.machine = &gpu.Machine{}
	}
	return in
}

// errNoNode cannot happen once the agent runs: it reads the node first.
var errNoNode = errors.New("the node has not been read yet")
