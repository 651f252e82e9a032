package plugin

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/slices"
)

// Reasons of the node Events about publishing.
const (
	reasonModeRefused     = "GPUModeNotServed"
	reasonInvalidLabel    = "GPUInvalidLabel"
	reasonSwitchWaiting   = "GPUModeSwitchWaiting"
	reasonPublished       = "GPUModeServed"
	reasonFeatureDisabled = "GPUFeatureDisabled"
	reasonPublishFailed   = "GPUPublishFailed"
)

// retryInterval is how long the publisher waits before it looks again whether
// what held it up is gone.
const retryInterval = 5 * time.Second

// publishFunc publishes the node's pool (kubeletplugin.Helper.PublishResources).
type publishFunc func(ctx context.Context, resources resourceslice.DriverResources) error

// publisher keeps the node's ResourceSlice in line with its cards and labels.
type publisher struct {
	client   kubernetes.Interface
	nodeName string
	events   nodeEvents
	publish  publishFunc

	// wake is signalled whenever something changed.
	wake chan struct{}

	mu      sync.Mutex
	machine *gpu.Machine
	node    *nodeFacts
	// dropped is set when the API server turned out to drop fields of what was
	// last published.
	dropped error

	// last is what was published; only run's goroutine uses it.
	last     *resourceslice.DriverResources
	lastMode mode.Mode
	passed   mode.Mode // the mode whose preflight succeeded
}

func newPublisher(client kubernetes.Interface, nodeName string, events nodeEvents, publish publishFunc) *publisher {
	return &publisher{client: client, nodeName: nodeName, events: events, publish: publish, wake: make(chan struct{}, 1)}
}

// SetMachine tells the publisher what cards there are; nil for none.
func (p *publisher) SetMachine(m *gpu.Machine) {
	p.update(func() { p.machine = m })
}

// SetNode tells the publisher about the node.
func (p *publisher) SetNode(node *corev1.Node) {
	facts := factsOf(node)
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

func (p *publisher) update(change func()) {
	p.mu.Lock()
	change()
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run publishes until the context ends.
func (p *publisher) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		settled, err := p.reconcile(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Publishing the node's cards failed, will try again", "after", retryInterval)
			p.events.warn(reasonPublishFailed, err.Error())
		}
		if err != nil || !settled {
			timer.Reset(retryInterval)
		} else {
			timer.Stop()
		}
	}
}

// reconcile publishes what the labels ask for as far as it can be. It returns
// false if it has to look again although nothing may change in the meantime.
func (p *publisher) reconcile(ctx context.Context) (settled bool, err error) {
	p.mu.Lock()
	machine, node, dropped := p.machine, p.node, p.dropped
	p.mu.Unlock()
	if node == nil {
		return true, nil
	}
	if machine == nil {
		machine = &gpu.Machine{}
	}
	w := p.wish(node)
	s, err := p.shape(ctx, w)
	if err != nil {
		return false, err
	}
	resources, err := p.build(machine, s, w.slots)
	if err != nil {
		return false, err
	}
	ready, err := p.usable(ctx, s, resources, dropped)
	if err != nil {
		return false, err
	}
	if !ready {
		resources, s.mode = slices.Empty(slices.PoolName(p.nodeName)), ""
	}
	return ready && !s.switching, p.publishIfChanged(ctx, machine, s, resources)
}

// wish is what the node asks for; what is wrong with it is said in Events.
func (p *publisher) wish(node *nodeFacts) wish {
	w, invalid := node.wish()
	if w.refused != nil {
		p.events.warn(reasonModeRefused, fmt.Sprintf("No GPUs are offered on this node: %v", w.refused))
	} else {
		p.events.clear(reasonModeRefused)
	}
	if invalid != nil {
		p.events.warn(reasonInvalidLabel, invalid.Error())
	} else {
		p.events.clear(reasonInvalidLabel)
	}
	return w
}

// shape decides what to publish. The claims are listed only if the mode is
// about to be another one than this process last published.
func (p *publisher) shape(ctx context.Context, w wish) (shape, error) {
	if p.last != nil && p.lastMode == w.mode && w.mode != "" {
		p.events.clear(reasonSwitchWaiting)
		return shape{mode: w.mode}, nil
	}
	claims, err := p.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return shape{}, fmt.Errorf("list the claims that are allocated from this node, which decide whether it can change its mode: %w", err)
	}
	s := decide(w, holdersOf(claims.Items, slices.PoolName(p.nodeName)))
	if s.switching {
		p.events.warn(reasonSwitchWaiting, fmt.Sprintf("The GPUs stay in mode %s, closed to new claims, until these claims are released: %s", s.mode, strings.Join(s.waitingFor, ", ")))
	} else {
		p.events.clear(reasonSwitchWaiting)
	}
	return s, nil
}

func (p *publisher) build(machine *gpu.Machine, s shape, slots int64) (resourceslice.DriverResources, error) {
	pool := slices.PoolName(p.nodeName)
	if s.mode == "" {
		return slices.Empty(pool), nil
	}
	backend, err := isolation.For(s.mode)
	if err != nil {
		return resourceslice.DriverResources{}, err
	}
	return slices.Build(machine, slices.Options{Pool: pool, Mode: s.mode, Slots: slots, Isolation: backend.Name(), Taints: s.taints()}), nil
}

// usable says whether the API server keeps all that the shape needs. It fails
// closed: as long as that is not known, nothing is published.
func (p *publisher) usable(ctx context.Context, s shape, resources resourceslice.DriverResources, dropped error) (bool, error) {
	if !s.mode.Shared() {
		return true, nil
	}
	if dropped == nil && p.passed == s.mode {
		return true, nil
	}
	err := preflight(ctx, p.client, p.nodeName, resources)
	var missing *missingFeatureError
	if errors.As(err, &missing) {
		p.passed = ""
		p.events.warn(reasonFeatureDisabled, fmt.Sprintf("No GPUs are offered in mode %s: %v", s.mode, err))
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p.passed = s.mode
	p.mu.Lock()
	p.dropped = nil
	p.mu.Unlock()
	p.events.clear(reasonFeatureDisabled)
	return true, nil
}

func (p *publisher) publishIfChanged(ctx context.Context, machine *gpu.Machine, s shape, resources resourceslice.DriverResources) error {
	if p.last != nil && reflect.DeepEqual(*p.last, resources) {
		return nil
	}
	if err := p.publish(ctx, resources); err != nil {
		return fmt.Errorf("publish the node's ResourceSlice: %w", err)
	}
	klog.FromContext(ctx).Info("Published the node's cards", "shape", s.String(), "cards", len(machine.GPUs))
	if s.mode != "" && !s.switching && s.mode != p.lastMode && len(machine.GPUs) > 0 {
		p.events.normal(reasonPublished, fmt.Sprintf("%d GPUs are offered in mode %s", len(machine.GPUs), s.mode))
	}
	p.last, p.lastMode = &resources, s.mode
	if s.switching {
		// Listing the claims has to go on until the switch is made.
		p.lastMode = ""
	}
	return nil
}

// missingFeatureError says that the API server drops what a mode needs.
type missingFeatureError struct{ features []string }

func (e *missingFeatureError) Error() string {
	return fmt.Sprintf("the API server drops fields of the ResourceSlice that it needs: enable feature gate %s (on by default since Kubernetes 1.36) on kube-apiserver and kube-scheduler", strings.Join(e.features, ", "))
}

// preflight asks the API server, without storing anything, what it would keep
// of the pool.
func preflight(ctx context.Context, client kubernetes.Interface, nodeName string, resources resourceslice.DriverResources) error {
	for name, pool := range resources.Pools {
		for _, slice := range pool.Slices {
			desired := &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "preflight-"},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: slices.DriverName, NodeName: &nodeName, Devices: slice.Devices,
					Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
				},
			}
			actual, err := client.ResourceV1().ResourceSlices().Create(ctx, desired, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				return fmt.Errorf("ask the API server, by a dry run, whether it takes the node's ResourceSlice: %w", err)
			}
			dropped := &resourceslice.DroppedFieldsError{PoolName: name, DesiredSlice: desired, ActualSlice: actual}
			if features := dropped.DisabledFeatures(); len(features) > 0 {
				return &missingFeatureError{features: features}
			}
		}
	}
	return nil
}
