// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
)

// Status is how far what is published is what the node asks for.
type Status struct {
	// Behind is for how long the oldest change has not been published; 0 where all is.
	Behind time.Duration
	// SwitchWaiting is for how long the node has been closed to new claims to change its
	// mode; 0 where it is not.
	SwitchWaiting time.Duration
	// Err is why what is published is not what it should be, nil if it is.
	Err error
	// Devices are the devices that are published.
	Devices []DeviceStatus
	// GPUsUnread says that the node has GPUs, as its labels tell, and that they have not been read.
	GPUsUnread bool
}

// DeviceStatus is a device that is published.
type DeviceStatus struct {
	Name string
	Mode mode.Mode
	// Model, Isolation and IsolationLevel are the attributes of these names.
	Model, Isolation, IsolationLevel string
	// Unhealthy says what is wrong with it; empty if nothing is.
	Unhealthy string
}

// errUnpublished is for the time before the first publication.
var errUnpublished = errors.New("the node's GPUs have not been published yet")

// reconcileNoted is reconcile, with Status told. It is for all changes until it begins.
func (p *Publisher) reconcileNoted(ctx context.Context) (settled bool, err error) {
	p.mu.Lock()
	p.progress.working = earlier(p.progress.working, p.progress.changed)
	p.progress.changed = time.Time{}
	p.mu.Unlock()
	settled, err = p.reconcile(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.progress.err = err
	// What the API server refused was counted when it did, and is told in each pass until it has it.
	if err != nil && (p.refused == nil || !errors.Is(err, p.refused)) {
		p.Metrics.PublishFailed()
	}
	return settled, err
}

// Status says how far what is published is what the node asks for.
func (p *Publisher) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{Err: p.progress.err, GPUsUnread: p.machine == nil && p.node != nil && p.node.hasGPUs}
	if !p.progress.published && s.Err == nil {
		s.Err = errUnpublished
	}
	if oldest := earlier(p.progress.working, p.progress.changed); !oldest.IsZero() {
		s.Behind = p.Clock.Since(oldest)
	}
	if !p.progress.switching.IsZero() {
		s.SwitchWaiting = p.Clock.Since(p.progress.switching)
	}
	in := p.given
	in.machine = cmp.Or(in.machine, &gpu.Machine{})
	for _, d := range p.published {
		_, m, err := devices.ParseDeviceName(d.Name)
		if m == mode.Monitor {
			continue // a view of a GPU that is there by itself, too
		}
		status := DeviceStatus{Name: d.Name, Unhealthy: in.deviceHealth(d.Name, d.Taints),
			Model: attribute(d, v1alpha1.AttrModel), Isolation: attribute(d, v1alpha1.AttrIsolation),
			IsolationLevel: attribute(d, v1alpha1.AttrIsolationLevel)}
		if err == nil {
			status.Mode = m
		}
		s.Devices = append(s.Devices, status)
	}
	return s
}

// attribute is one of a device; empty if it has none of the name.
func attribute(d resourceapi.Device, name resourceapi.QualifiedName) string {
	return ptr.Deref(d.Attributes[name].StringValue, "")
}

// Unhealthy are the GPUs that are, by UUID.
func (p *Publisher) Unhealthy() map[string]health.Unhealthy {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.unhealthy)
}
