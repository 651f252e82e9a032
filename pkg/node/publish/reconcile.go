// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// reconcile publishes what the labels ask for as far as it can be. It returns
// false if it has to look again although nothing may change in the meantime.
func (p *Publisher) reconcile(ctx context.Context) (settled bool, err error) {
	in := p.inputs()
	if in.node == nil {
		return false, errNoNode
	}
	// What pods hold depends on when the last device plugin left.
	if err := p.restore(ctx, in.node); err != nil {
		return false, err
	}
	reserved, err := p.Pods.Observe(ctx, in.machine)
	if errors.Is(err, deviceplugin.ErrPodsUnread) {
		return true, nil // the end of the wait wakes the publisher
	}
	if err != nil {
		return false, err
	}
	p.reportPodsWithoutClaim(in.machine, reserved)
	p.noteOtherDrivers(in.machine, reserved)
	if reserved, err = p.withOrphans(ctx, in, reserved); err != nil {
		return false, err
	}
	w, err := p.desiredState(ctx, in)
	if errors.Is(err, errMPSStarting) {
		return false, nil // the daemons wake the publisher
	}
	if err != nil {
		return false, err
	}
	step, err := p.next(ctx, w)
	if err != nil {
		return false, err
	}
	resources, err := p.build(ctx, in, w, step, reserved)
	if err != nil {
		return false, err
	}
	ready, err := p.usable(ctx, step.Mode, resources, in.dropped)
	if err != nil {
		return false, err
	}
	if !ready {
		resources = devices.Empty(p.pool())
	}
	if in.unread {
		// A pool without devices would say that the node is complete, and the cluster autoscaler make
		// another one for the pods that wait for its GPUs.
		resources = resourceslice.DriverResources{}
	}
	if err := p.put(ctx, in, w, step, ready, resources); err != nil {
		return false, err
	}
	p.demand.publishes(mpsOffered{machine: in.machine, offer: p.checkpoint.offer(), others: p.others})
	settled = ready && !step.Closed && !w.again && !p.heard.goes && !mayBecomeKnown(reserved)
	return settled, p.demand.failure()
}

func (p *Publisher) pool() string { return v1alpha1.PoolName(p.NodeName) }

// desiredState is what the node asks for; what is wrong with it is said in Events. A
// mode is entered only where at least one card's shares can be enforced; once
// entered, a card where they cannot is closed to new claims (see build).
func (p *Publisher) desiredState(ctx context.Context, in inputs) (desired, error) {
	w := in.node.desired(p.checkpoint.asked(), p.Isolation)
	if err := p.afterDevicePlugin(in.node, &w); err != nil {
		return w, err
	}
	if in.unusable != nil && w.notServed == nil {
		w.offerNothing(in.unusable)
		w.again = true
	}
	started, err := p.demand.want(w.served)
	if err != nil {
		return w, err
	}
	checkIsolation(w.served, in.machine)
	p.served = w.served
	if !p.checkpoint.offer().Equal(w.offer()) {
		if mpsStarting(w.served, started, p.Clock.Now()) {
			return w, errMPSStarting
		}
		if err := unavailable(w.served, in.machine); err != nil {
			w.offerNothing(err)
		}
	}
	if w.mode == mode.Dynamic {
		tooOld, err := p.version.TooOldForDynamic(ctx, p.Client.Discovery())
		if err != nil {
			return w, err
		}
		if tooOld != nil {
			w.offerNothing(tooOld)
			w.again = true
		}
	}
	p.report(v1alpha1.ReasonModeNotServed, w.notServed, "No GPUs are offered on this node: ")
	p.report(v1alpha1.ReasonInvalidLabel, errors.Join(w.ignored...), "")
	return w, nil
}

// report reports the error as an Event, or that it is gone.
func (p *Publisher) report(reason string, err error, prefix string) {
	if err == nil {
		p.Events.Clear(reason)
		return
	}
	p.Events.Warn(reason, prefix+err.Error())
}

// healthChanged says whether a reconciliation would see the cards otherwise
// than the last one did.
func (p *Publisher) healthChanged() bool { return healthChanged(p.served, p.inputs().machine) }

// next decides on the mode to publish, and tells in an Event what a change of
// the mode waits for.
func (p *Publisher) next(ctx context.Context, w desired) (mode.Step, error) {
	var found allocations
	step, err := mode.Next(mode.Node{
		Wanted: w.offer(), Published: p.checkpoint.offer(), ClosedFor: p.closedFor(),
		Occupied: func() (bool, error) {
			var err error
			found, err = p.blocking(ctx)
			return len(found.names) > 0, err
		},
	})
	if err != nil {
		return step, err
	}
	if !step.Closed {
		p.drainCheck = drainCheck{}
	}
	p.noteSwitch(step.Closed)
	switch {
	case len(found.names) > 0:
		p.Events.Warn(v1alpha1.ReasonModeSwitchWaiting,
			fmt.Sprintf("The GPUs stay in %s, closed to new claims, and change to %s when these have ended: %s",
				describe(step.Offer, w.offer()), describe(w.offer(), step.Offer), text.List(found.names, mostNamed)))
	case !step.Closed:
		p.Events.Clear(v1alpha1.ReasonModeSwitchWaiting)
	}
	return step, nil
}

func (p *Publisher) closedFor() time.Duration {
	if p.closedSince.IsZero() {
		return 0
	}
	return p.Clock.Since(p.closedSince)
}

// build puts the devices together that the step publishes.
func (p *Publisher) build(ctx context.Context, in inputs, w desired, step mode.Step, reserved deviceplugin.Reserved) (
	resourceslice.DriverResources, error) {
	if step.Mode == "" {
		return devices.Empty(p.pool()), nil
	}
	served := w.served
	if !step.Equal(w.offer()) {
		var err error
		if served, err = servedModes(step.Offer, p.Isolation); err != nil {
			return resourceslice.DriverResources{}, err
		}
		checkIsolation(served, in.machine)
	}
	p.report(v1alpha1.ReasonIsolationUnavailable, problems(served, in.machine), "")
	placed, err := p.place(ctx, in, step.Mode, w.placement, served, reserved)
	if err != nil {
		return resourceslice.DriverResources{}, err
	}
	p.placed = placed
	retained, err := p.setsToRetain(ctx, step.Mode, in.machine)
	if err != nil {
		return resourceslice.DriverResources{}, err
	}
	return buildPool(in.machine, step.Mode, served, reserved, placed.limits, devices.Options{
		Pool: p.pool(), Order: placed.order, Taints: switchingTaints(step.Closed), Retained: retained,
		CardTaints: unhealthyTaints(in.unhealthy, p.UnhealthyEffect),
	}), nil
}

// usable says whether the API server keeps all that the pool needs. It fails
// closed: as long as that is not known, nothing is published.
func (p *Publisher) usable(ctx context.Context, m mode.Mode, resources resourceslice.DriverResources, dropped int) (
	bool, error) {
	needed := cluster.FeaturesOf(resources)
	if needed == (cluster.Features{}) || dropped == p.droppedSeen && p.passed == needed {
		return true, nil
	}
	err := cluster.Preflight(ctx, p.Client, p.NodeName, resources)
	var missing *cluster.MissingFeatureError
	if errors.As(err, &missing) {
		p.passed = cluster.Features{}
		p.Events.Warn(v1alpha1.ReasonFeatureDisabled, fmt.Sprintf("No GPUs are offered in mode %s: %v", m, err))
		return false, nil
	}
	if err != nil {
		return false, err
	}
	p.passed, p.droppedSeen = needed, dropped
	p.Events.Clear(v1alpha1.ReasonFeatureDisabled)
	return true, nil
}

// put publishes the pool if it changed. What has to be known of it later is
// written before: a mode that might be published must not be forgotten.
func (p *Publisher) put(ctx context.Context, in inputs, w desired, step mode.Step, ready bool,
	resources resourceslice.DriverResources) error {
	if err := p.save(ctx, w, step, ready); err != nil {
		return err
	}
	// Quantities of the same amount can differ in how they are kept.
	changed := p.last == nil || !apiequality.Semantic.DeepEqual(*p.last, resources)
	if changed {
		if err := p.Publish(ctx, resources); err != nil {
			return fmt.Errorf("publish the node's ResourceSlice: %w", err)
		}
		p.last = &resources
		p.noteHealth(resources)
	}
	if err := p.noteClosed(ctx, step); err != nil {
		return err
	}
	if changed && ready {
		p.reportPublished(ctx, in, step)
	}
	return nil
}

func (p *Publisher) reportPublished(ctx context.Context, in inputs, step mode.Step) {
	klog.FromContext(ctx).Info("Published the node's GPUs", "mode", step.Mode, "closed", step.Closed, "cards",
		len(in.machine.GPUs), "order", p.placed.order)
	if step.Mode != "" && !step.Closed && len(in.machine.GPUs) > 0 {
		p.Events.Normal(v1alpha1.ReasonModeServed, fmt.Sprintf("%d GPUs are offered in mode %s", len(in.machine.GPUs),
			step.Mode))
	}
	if step.Closed {
		p.Events.Clear(v1alpha1.ReasonModeServed)
	}
}

// noteClosed notes since when the devices are closed. That is when the API
// server shows it: what was published is written in the background, and only
// from then on do schedulers see it.
func (p *Publisher) noteClosed(ctx context.Context, step mode.Step) error {
	if !step.Closed {
		p.closedSince = time.Time{}
		return nil
	}
	if !p.closedSince.IsZero() {
		return nil
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, seenLimit, true,
		func(ctx context.Context) (bool, error) {
			stored, err := p.stored(ctx)
			if err != nil {
				return false, err
			}
			return allClosed(stored), nil
		})
	if err != nil {
		return fmt.Errorf("the API server does not show the node's devices as closed to new claims, so they cannot change "+
			"their mode yet: %w", err)
	}
	p.closedSince = p.Clock.Now()
	return nil
}
