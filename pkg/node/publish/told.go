// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
)

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

// refusedClaim is a claim that is allocated and was not prepared, with its devices.
type refusedClaim struct {
	devices []string
	until   time.Time
}

// SetMachine tells the publisher what GPUs there are.
func (p *Publisher) SetMachine(m *gpu.Machine) {
	p.update(func() { p.machine = m })
	p.HealthChanged.Send()
}

// SetNode tells the publisher about the node.
func (p *Publisher) SetNode(node *corev1.Node) {
	facts := factsOf(node, p.RequiredLabel)
	if !reflect.DeepEqual(p.inputs().node, facts) {
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
	if fmt.Sprint(p.inputs().unusable) != fmt.Sprint(why) {
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

// progress is what Status tells. The Publisher's lock is for it, too.
type progress struct {
	// changed is when the oldest change was told that no reconciliation has begun for,
	// working that of the reconciliation that runs, or failed, or had to wait; zero for none.
	changed, working time.Time
	// switching is since when the node has been closed; zero while it is open.
	switching time.Time
	// err is that of the last reconciliation, or what the API server refused since; published says that
	// one has published.
	err       error
	published bool
}

// noteChange notes that there is something to be published.
func (p *Publisher) noteChange() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.progress.changed.IsZero() {
		p.progress.changed = p.Clock.Now()
	}
}

// noteApplied notes that what was planned is published. A reconciliation that waits for something has nothing
// planned.
func (p *Publisher) noteApplied() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress.published = true
	if !p.progress.working.IsZero() {
		p.Metrics.Published(p.Clock.Since(p.progress.working))
	}
	p.progress.working = time.Time{}
}

// noteSwitch notes whether the node is closed to change its mode.
func (p *Publisher) noteSwitch(closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !closed:
		p.progress.switching = time.Time{}
	case p.progress.switching.IsZero():
		p.progress.switching = p.Clock.Now()
	}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// noteHealth keeps what is published for Health.
func (p *Publisher) noteHealth(resources resourceslice.DriverResources) {
	var published []resourceapi.Device
	for _, s := range resources.Pools[p.pool()].Slices {
		published = append(published, s.Devices...)
	}
	p.mu.Lock()
	p.published = published
	p.mu.Unlock()
	p.HealthChanged.Send()
}

// nodeFacts is what the publisher uses of a Node object.
type nodeFacts struct {
	labels map[string]string
	// devicePlugin lists the resources of GPU device plugins that the node
	// offers, in order.
	devicePlugin []string
	// withDevices lists the resources of which one has devices, healthy or not, in order. It is
	// empty where a label is required: it tells whether the device plugin is gone.
	withDevices []string
	// hadDevicePlugin says that one has offered some, now or before.
	hadDevicePlugin bool
	// waiting says who waits for what is held back to spread shares, a placement.Waiting.
	waiting string
	// missingLabel is the label that the node lacks to be offered at all.
	missingLabel string
	// hasGPUs says that a label tells so: the mode, or the model that outlasts what was published.
	hasGPUs bool
}

func factsOf(node *corev1.Node, requiredLabel string) *nodeFacts {
	f := &nodeFacts{labels: map[string]string{}, waiting: node.Annotations[v1alpha1.AnnotationWaiting]}
	if _, ok := node.Labels[requiredLabel]; !ok {
		f.missingLabel = requiredLabel
	}
	f.hasGPUs = node.Labels[ack.NodeLabelSchedule] != "" || node.Labels[ack.NodeLabelModel] != ""
	for _, key := range append(mode.Labels(), v1alpha1.LabelMPSDaemon, v1alpha1.LabelGPUDriver, v1alpha1.LabelTimeSlice) {
		if value, ok := node.Labels[key]; ok {
			f.labels[key] = value
		}
	}
	// Nobody but a kubelet writes these: where a DeviceClass stands for nvidia.com/gpu
	// it does not come into the status. Capacity does not count by itself: the kubelet
	// keeps it for minutes after the device plugin is gone.
	for _, name := range slices.Sorted(maps.Keys(node.Status.Allocatable)) {
		if quantity := node.Status.Allocatable[name]; deviceplugin.Native(name) && !quantity.IsZero() {
			f.devicePlugin = append(f.devicePlugin, string(name))
		}
	}
	// gpu-compat-controller shows some of these for tools to read.
	owners := legacy.ReadOwners(node.ManagedFields)
	for _, name := range owners.Offered(node.Status.Allocatable) {
		f.devicePlugin = append(f.devicePlugin, string(name))
	}
	// The kubelet leaves an amount of 0 in the capacity of what device plugins offered.
	ours, _ := owners.OursAlone()
	for _, name := range slices.Sorted(maps.Keys(node.Status.Capacity)) {
		if !deviceplugin.OfPlugin(name) || slices.Contains(ours, name) {
			continue
		}
		f.hadDevicePlugin = true
		if quantity := node.Status.Capacity[name]; requiredLabel == "" && !quantity.IsZero() {
			f.withDevices = append(f.withDevices, string(name))
		}
	}
	return f
}
