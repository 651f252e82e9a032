// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish/mpsdemand"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// apply does what is planned, and keeps what the plan remembers. What has to be known later of what is published is
// written before: a mode that might be published must not be forgotten.
func (p *Publisher) apply(ctx context.Context, s snapshot, todo plan) error {
	p.noteSwitch(todo.step.Closed)
	if err := p.save(ctx, todo.checkpoint); err != nil {
		return err
	}
	p.checkpoint = todo.checkpoint
	if todo.writes {
		if err := p.publish(ctx, todo.resources); err != nil {
			return fmt.Errorf("publish the node's ResourceSlice: %w", err)
		}
		p.noteHealth(todo.resources)
		if s.missing == nil {
			klog.FromContext(ctx).Info("Published the node's GPUs", "mode", todo.step.Mode, "closed", todo.step.Closed, "gpus",
				len(s.machine.GPUs), "order", todo.layout.Order)
			p.tell(todo.published(s))
		}
	}
	p.memory = todo.memory
	p.demand.Publishes(mpsdemand.Offered{Machine: s.machine, Offer: p.checkpoint.Offer(), Others: todo.others})
	return errors.Join(p.demand.Failure(), todo.refused)
}

// save keeps what is about to be published, and what was asked for.
func (p *Publisher) save(ctx context.Context, c state.Node) error {
	// Without what is kept claims are refused, so it must not stay lost.
	if _, kept, _ := p.State.Node(); kept && reflect.DeepEqual(c, p.checkpoint) {
		return nil
	}
	if !c.Offer().Equal(p.checkpoint.Offer()) && p.checkpoint.Published != "" {
		return p.saveOtherOffer(ctx, c)
	}
	return p.State.PutNode(c)
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

// published is what is told of it once it is.
func (p plan) published(s snapshot) []event {
	gpus, partitioned := len(s.machine.GPUs), len(s.machine.Partitioned)
	if p.step.Closed {
		return []event{{reason: v1alpha1.ReasonModeServed}}
	}
	if p.step.Mode == "" || gpus+partitioned == 0 {
		return nil
	}
	message := fmt.Sprintf("%d GPUs are offered in mode %s", gpus, p.step.Mode)
	dynamic := countOnDemand(s.machine)
	if static := partitioned - dynamic; static > 0 {
		message += fmt.Sprintf(", and %d MIG instances of %d GPUs", countInstances(s.machine), static)
	}
	if dynamic > 0 {
		message += fmt.Sprintf(", and %d GPUs whose MIG instances are made when claims need them", dynamic)
	}
	return []event{{reason: v1alpha1.ReasonModeServed, good: true, message: message}}
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
