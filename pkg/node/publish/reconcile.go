// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish/mpsdemand"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// reconcile is one pass: it publishes what the labels ask for as far as it can be. It returns
// false if it has to look again although nothing may change in the meantime.
func (p *Publisher) reconcile(ctx context.Context) (settled bool, err error) {
	s, err := p.observe(ctx)
	if errors.Is(err, held.ErrPodsUnread) {
		return true, nil // the end of the wait wakes the publisher
	}
	if err != nil {
		return false, err
	}
	for {
		todo, err := s.plan()
		p.tell(todo.events)
		if len(todo.goneClaims)+len(p.goneClaims) > 0 {
			p.tellClaims(todo.goneClaims)
		}
		if err != nil || todo.waits { // the daemons wake the publisher
			return false, err
		}
		if todo.lacks == lacksNothing {
			return p.apply(ctx, s, todo)
		}
		if err := p.lookUp(ctx, &s, todo.lacks); err != nil {
			return false, err
		}
	}
}

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

// tellClaims tells claims what became of their MIG instances.
func (p *Publisher) tellClaims(gone map[types.UID]goneClaim) {
	if p.ClaimEvents == nil {
		return
	}
	for uid, c := range gone {
		p.ClaimEvents.Warn(corev1.ObjectReference{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim",
			Namespace: c.namespace, Name: c.name, UID: uid}, v1alpha1.ReasonInstanceGone, c.message)
	}
	for uid := range p.goneClaims {
		if _, still := gone[uid]; !still {
			p.ClaimEvents.Forget(uid)
		}
	}
	p.goneClaims = gone
}

// apply does what is planned. What has to be known later of what is published is written before:
// a mode that might be published must not be forgotten.
func (p *Publisher) apply(ctx context.Context, s snapshot, todo plan) (settled bool, err error) {
	p.noteSwitch(todo.step.Closed)
	p.layout, p.retained = todo.layout, todo.retained
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
		p.rewrite = tries{}
		return true, false
	}
	// Of a pool that needs nothing nobody asks what would be kept.
	if !kept || s.dropped == p.lastDropped || s.dropped != p.droppedSeen {
		return false, false
	}
	if !p.rewrite.isDue(s.now) {
		return false, true
	}
	p.rewrite = p.rewrite.after(s.now)
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
		if !p.reread.isDue(s.now) {
			return s.refused
		}
		p.reread = p.reread.after(s.now)
		if stored, err := p.stored(ctx); err != nil || !holds(stored, *p.last) {
			return s.refused
		}
	}
	p.refusalsSeen, p.reread = s.refusals, tries{}
	return nil
}

// tries count how often an API server was asked: at first at once, and then after waits that grow from retryInterval to
// listInterval.
type tries struct {
	made int
	next time.Time
}

// isDue reports whether it may be asked now.
func (t tries) isDue(now time.Time) bool { return !now.Before(t.next) }

// after are the tries once it was asked.
func (t tries) after(now time.Time) tries {
	made := t.made + 1
	return tries{made, now.Add(backoff.Doubling{Least: retryInterval, Most: listInterval}.After(made))}
}

// holds reports whether the stored slices are those of the resources.
func holds(stored []resourceapi.ResourceSlice, resources resourceslice.DriverResources) bool {
	want := 0
	for _, pool := range resources.Pools {
		want += len(pool.Slices)
		for _, slice := range pool.Slices {
			if !slices.ContainsFunc(stored, func(s resourceapi.ResourceSlice) bool {
				return resourceslice.DevicesDeepEqual(s.Spec.Devices, slice.Devices) &&
					apiequality.Semantic.DeepEqual(s.Spec.SharedCounters, slice.SharedCounters)
			}) {
				return false
			}
		}
	}
	return len(stored) == want
}
