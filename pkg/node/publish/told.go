// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
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
