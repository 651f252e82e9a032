// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish/mpsdemand"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// apply does what is planned. What has to be known later of what is published is written before:
// a mode that might be published must not be forgotten.
func (p *Publisher) apply(ctx context.Context, s snapshot, todo plan) (settled bool, err error) {
	p.noteSwitch(todo.step.Closed)
	p.memory = todo.memory
	ready, err := p.usable(ctx, todo, s.dropped)
	if err != nil {
		return false, err
	}
	if !ready {
		todo = todo.withheld(s)
	}
	if err := p.save(ctx, todo.checkpoint); err != nil {
		return false, err
	}
	resources := todo.resources
	if s.unread {
		// A pool without devices would say that the node is complete, and the cluster autoscaler make
		// another one for the pods that wait for its GPUs.
		resources = resourceslice.DriverResources{}
	}
	changed, later := p.toWrite(s, resources, ready)
	if changed {
		if err := p.awaitOpen(ctx, todo.step.Closed); err != nil {
			return false, err
		}
		if err := p.publish(ctx, resources); err != nil {
			return false, fmt.Errorf("publish the node's ResourceSlice: %w", err)
		}
		p.last, p.lastDropped = &resources, s.dropped
		p.noteHealth(resources)
	}
	if todo.step.Closed || !p.closedSince.IsZero() {
		if err := p.noteClosed(ctx, todo.step.Closed); err != nil {
			return false, err
		}
	}
	if changed && ready {
		klog.FromContext(ctx).Info("Published the node's GPUs", "mode", todo.step.Mode, "closed", todo.step.Closed, "gpus",
			len(s.machine.GPUs), "order", todo.layout.Order)
		p.tell(todo.published(s))
	}
	p.demand.Publishes(mpsdemand.Offered{Machine: s.machine, Offer: p.checkpoint.Offer(), Others: todo.others})
	err = p.demand.Failure()
	if s.refusals != p.refusalsSeen {
		err = errors.Join(err, p.refusal(ctx, s))
	}
	if err != nil {
		return false, err
	}
	p.noteApplied()
	return !todo.again && !later, nil
}

// usable reports whether the API server keeps all that the pool needs. It fails
// closed: as long as that is not known, nothing is published.
func (p *Publisher) usable(ctx context.Context, todo plan, dropped int) (bool, error) {
	needed := cluster.FeaturesOf(todo.resources)
	if needed == (cluster.Features{}) || dropped == p.droppedSeen && p.preflighted == needed {
		return true, nil
	}
	err := cluster.Preflight(ctx, p.Client, p.NodeName, todo.resources)
	var missing *cluster.MissingFeatureError
	if errors.As(err, &missing) {
		p.preflighted = cluster.Features{}
		p.Events.Warn(v1alpha1.ReasonFeatureDisabled, fmt.Sprintf("No GPUs are offered in mode %s: %v", todo.step.Mode, err))
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p.preflighted, p.droppedSeen = needed, dropped
	p.Events.Clear(v1alpha1.ReasonFeatureDisabled)
	return true, nil
}

// toWrite reports whether the resources are to be published now: because they are others than before, or because the
// API
// server dropped fields of them and keeps them now. The helper goes on to publish what was kept. later says that they
// are to be published again soon: some servers of a cluster that is being updated may still drop fields.
func (p *Publisher) toWrite(s snapshot, resources resourceslice.DriverResources, kept bool) (now, later bool) {
	// Quantities of the same amount can differ in how they are kept.
	if p.last == nil || !apiequality.Semantic.DeepEqual(*p.last, resources) {
		p.rewrite = backoff.Tries{}
		return true, false
	}
	// Of a pool that needs nothing nobody asks what would be kept.
	if !kept || s.dropped == p.lastDropped || s.dropped != p.droppedSeen {
		return false, false
	}
	if !p.rewrite.IsDue(s.now) {
		return false, true
	}
	p.rewrite = p.rewrite.Plus(askAgain, s.now)
	return true, false
}

// save keeps what is about to be published, and what was asked for.
func (p *Publisher) save(ctx context.Context, c state.Node) error {
	// Without what is kept claims are refused, so it must not stay lost.
	if _, kept, _ := p.State.Node(); kept && reflect.DeepEqual(c, p.checkpoint) {
		return nil
	}
	if !c.Offer().Equal(p.checkpoint.Offer()) && p.checkpoint.Published != "" {
		if err := p.saveOtherOffer(ctx, c); err != nil {
			return err
		}
	} else if err := p.State.PutNode(c); err != nil {
		return err
	}
	p.checkpoint = c
	return nil
}

// saveOtherOffer stores that something else is published than before. From then on claims
// of the mode before are refused; one that was prepared since the last look keeps
// the offer before instead.
func (p *Publisher) saveOtherOffer(ctx context.Context, c state.Node) error {
	return p.Claims.WithNodeLocked(ctx, func(prepared []state.Record) error {
		for _, r := range prepared {
			if firstAllocated(r.Grants) >= 0 {
				before := describe(p.checkpoint.Offer(), c.Offer())
				return fmt.Errorf("claim %s/%s was prepared in the moment before the GPUs changed from %s to %s: they stay in "+
					"%s until it ends",
					r.Namespace, r.Name, before, describe(c.Offer(), p.checkpoint.Offer()), before)
			}
		}
		return p.State.PutNode(c)
	})
}

// noteClosed notes since when the devices are closed. That is when the API
// server shows it: what was published is written in the background, and only
// from then on do schedulers see it.
func (p *Publisher) noteClosed(ctx context.Context, closed bool) error {
	if !closed {
		p.closedSince, p.reopened = time.Time{}, true
		return nil
	}
	if !p.closedSince.IsZero() {
		return nil
	}
	if err := p.awaitStored(ctx, allClosed); err != nil {
		return fmt.Errorf("the API server does not show the node's devices as closed to new claims, so they cannot change "+
			"their mode yet: %w", err)
	}
	p.closedSince = p.Clock.Now()
	return nil
}

// awaitOpen waits, before devices are closed that were closed before, until the API server shows that they were open in
// the meantime: else the closing before would be taken for this one, and claims come in between.
func (p *Publisher) awaitOpen(ctx context.Context, closing bool) error {
	if !closing || !p.reopened {
		return nil
	}
	err := p.awaitStored(ctx, func(stored []resourceapi.ResourceSlice) bool { return holds(stored, *p.last) })
	if err != nil {
		return fmt.Errorf("the API server does not show the node's devices as they were published last, so they cannot be "+
			"closed to change their mode: %w", err)
	}
	p.reopened = false
	return nil
}

// awaitStored waits a moment for what the API server has.
func (p *Publisher) awaitStored(ctx context.Context, shows func([]resourceapi.ResourceSlice) bool) error {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, seenLimit, true,
		func(ctx context.Context) (bool, error) {
			stored, err := p.stored(ctx)
			return err == nil && shows(stored), err
		})
}

// refusal is why the API server did not take what was published, nil once it has it. What is published is
// written in the background, where only failures are told of.
func (p *Publisher) refusal(ctx context.Context, s snapshot) error {
	// What fields were dropped of was taken, and never is what was published.
	if s.dropped == p.lastDropped {
		if !p.reread.IsDue(s.now) {
			return s.refused
		}
		p.reread = p.reread.Plus(askAgain, s.now)
		if stored, err := p.stored(ctx); err != nil || !holds(stored, *p.last) {
			return s.refused
		}
	}
	p.refusalsSeen, p.reread = s.refusals, backoff.Tries{}
	return nil
}

// withheld is the plan where the API server would not keep all that the pool needs: nothing is
// published.
func (p plan) withheld(s snapshot) plan {
	before := s.checkpoint.Offer()
	if !p.step.Equal(before) {
		// The offer before was left, and this one cannot be published.
		before = mode.Offer{}
	}
	p.checkpoint.Offers(before)
	p.resources, p.again = devices.Empty(s.pool), true
	return p
}

// published is what is told of it once it is.
func (p plan) published(s snapshot) []event {
	gpus := len(s.machine.GPUs)
	switch {
	case p.step.Closed:
		return []event{{reason: v1alpha1.ReasonModeServed}}
	case p.step.Mode != "" && len(s.machine.Partitioned) > 0:
		message := fmt.Sprintf("%d GPUs are offered in mode %s", gpus, p.step.Mode)
		dynamic := countOnDemand(s.machine)
		if static := len(s.machine.Partitioned) - dynamic; static > 0 {
			message += fmt.Sprintf(", and %d MIG instances of %d GPUs", countInstances(s.machine), static)
		}
		if dynamic > 0 {
			message += fmt.Sprintf(", and %d GPUs whose MIG instances are made when claims need them", dynamic)
		}
		return []event{{reason: v1alpha1.ReasonModeServed, good: true, message: message}}
	case p.step.Mode != "" && gpus > 0:
		return []event{{reason: v1alpha1.ReasonModeServed, good: true,
			message: fmt.Sprintf("%d GPUs are offered in mode %s", gpus, p.step.Mode)}}
	default:
		return nil
	}
}

// tell tells the node what a pass has found.
func (p *Publisher) tell(events []event) {
	for _, e := range events {
		switch {
		case e.message == "":
			p.Events.Clear(e.reason)
		case e.good:
			p.Events.Normal(e.reason, e.message)
		default:
			p.Events.Warn(e.reason, e.message)
		}
	}
}

// tellClaims tells claims what became of their MIG instances; before are those that were told last.
func (p *Publisher) tellClaims(before, gone map[types.UID]goneClaim) {
	if p.ClaimEvents == nil {
		return
	}
	for uid, c := range gone {
		p.ClaimEvents.Warn(report.Claim(c.namespace, c.name, uid), v1alpha1.ReasonInstanceGone, c.message)
	}
	for uid := range before {
		if _, still := gone[uid]; !still {
			p.ClaimEvents.Forget(uid)
		}
	}
}
