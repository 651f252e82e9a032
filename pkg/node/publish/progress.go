// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

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
