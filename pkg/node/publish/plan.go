// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// plan is what a pass does about what it found.
type plan struct {
	// events are told in any case: also where the rest could not be planned.
	events []event
	// lacks is what has to be looked up before more can be planned.
	lacks lack
	// waits says that what is published stays as it is: the mode asked for waits for MPS control
	// daemons that are being started.
	waits bool

	step mode.Step
	// resources are what is published, if it writes them now. closes says that it closes the devices by that, and that
	// the same pass goes on to plan what follows.
	resources      resourceslice.DriverResources
	writes, closes bool
	// memory is that of the next pass, once this one is applied. Its checkpoint is what has to be known of the resources
	// before they are published.
	memory
	// refused is why the API server did not take what was published before.
	refused error
	// others are the GPUs that other drivers, or pods without a claim, have any of, by UUID.
	others map[string]bool
	// again says that it has to be looked again although nothing may change in the meantime.
	again bool
}

// event is what is told of the node under a reason: that it is not so, if the message is empty.
type event struct {
	reason, message string
	// good says that there is nothing to warn of.
	good bool
}

// warning is the event of an error, nil for none.
func warning(reason string, err error, prefix string) event {
	if err == nil {
		return event{reason: reason}
	}
	// Joined errors have a line each, and an Event has one line.
	return event{reason: reason, message: prefix + strings.ReplaceAll(err.Error(), "\n", "; ")}
}

func (p *plan) tell(events ...event) { p.events = append(p.events, events...) }

// plan decides what to publish, and all that goes with it. It is a function of the snapshot alone.
func (s snapshot) plan() (p plan, err error) {
	p.memory = s.memory
	reserved, others, held, err := s.holders()
	p.others = others
	p.tell(held...)
	if err != nil {
		return p, err
	}
	p.goneClaims = nil
	leftOut, gone := event{reason: v1alpha1.ReasonInstancesLeftOut}, event{reason: v1alpha1.ReasonInstanceGone}
	if s.hasMIG() {
		leftOut = notOffered(s.machine, madeInstances(s.records))
		gone, p.goneClaims = s.goneInstances()
	}
	p.tell(leftOut, gone)
	if s.failed != nil {
		return p, s.failed
	}
	w, waits := s.desired()
	if waits {
		p.waits = true
		return p, nil
	}
	p.tell(warning(v1alpha1.ReasonModeNotServed, w.notServed, "No GPUs are offered on this node: "),
		warning(v1alpha1.ReasonInvalidLabel, errors.Join(w.ignored...), ""))
	if p.step, p.lacks = s.next(w); p.lacks != lacksNothing {
		return p, nil
	}
	if p.step.Closed {
		p.tell(s.switchWaiting(w, p.step)...)
	} else {
		p.tell(event{reason: v1alpha1.ReasonModeSwitchWaiting})
		p.drainCheck = drainCheck{}
	}
	p.checkpoint = s.checkpointOf(w, p.step)
	p.resources = devices.Empty(s.pool)
	p.again = p.step.Closed || w.again
	if p.step.Mode != "" {
		err = p.offer(s, w, reserved)
	}
	if err == nil && p.lacks == lacksNothing {
		p.publication(s)
	}
	return p, err
}

// offer plans what is published of the GPUs in the step's mode.
func (p *plan) offer(s snapshot, w desired, reserved held.Reserved) error {
	p.again = p.again || mayBecomeKnown(s.reserved)
	served := w.served
	if !p.step.Equal(w.offer()) {
		if served = s.served; s.notServed != nil {
			return s.notServed
		}
	}
	if len(p.others) > 0 {
		served = besideOthers(served, s.machine, p.others)
	}
	var closed error
	if slices.ContainsFunc(served, servedMode.closesGPUs) {
		closed = problems(served, s.machine)
	}
	p.tell(warning(v1alpha1.ReasonIsolationUnavailable, closed, ""))
	var heeds bool
	var err error
	if p.layout, heeds, err = s.place(p.step.Mode, w.placement, served, reserved); err != nil {
		return err
	}
	p.again, p.retained = p.again || heeds, retainedSets{}
	if p.step.Mode == mode.Topology {
		if s.retained.machine != s.machine { // a set that stays longer than it has to does no harm
			p.lacks = lacksRetained
			return nil
		}
		p.retained = s.retained
	}
	o := devices.Options{Pool: s.pool, Order: p.layout.Order, Retained: p.retained.sets, Allocated: s.allocated(),
		NVIDIA: s.nvidia}
	p.again = p.again || o.Allocated != nil // a claim may end without a word
	if p.step.Closed {
		o.Taints = []resourceapi.DeviceTaint{closing(v1alpha1.TaintSwitching, "")}
	}
	gpuTaints := s.taints()
	if s.hasMIG() {
		if o.MIG, err = s.instances(reserved, gpuTaints); err != nil {
			return err
		}
	}
	o.GPUTaints = gpuTaints
	p.resources = buildPool(s.machine, p.step.Mode, served, reserved, p.layout.Limits, o)
	return nil
}

// desired is what the node asks for, as far as it can be served. A mode is entered only where at
// least one GPU's shares can be enforced; once entered, a GPU where they cannot is closed to new
// claims. waits says that it depends on daemons that are being started.
func (s snapshot) desired() (w desired, waits bool) {
	w = s.asked
	if !s.checkpoint.Offer().Equal(w.offer()) {
		if mpsStarting(w.served, s.daemonsStarted, s.now) {
			return w, true
		}
		if err := unavailable(w.served, s.machine); err != nil {
			w.offerNothing(err)
		}
	}
	if w.mode == mode.Dynamic && s.tooOld != nil {
		w.offerNothing(s.tooOld)
		w.again = true
	}
	return w, false
}

// mpsStartLimit is how long the publisher waits for daemons that it has just asked
// for before it says that they are not there. They take a second.
const mpsStartLimit = 10 * time.Second

// mpsStarting reports whether daemons that were started a moment ago are not there yet; started is
// zero if none were.
func mpsStarting(served []servedMode, started, now time.Time) bool {
	missing := slices.ContainsFunc(served, func(s servedMode) bool { return s.byMPS() && s.closesGPUs() })
	return missing && !started.IsZero() && now.Sub(started) < mpsStartLimit
}

// next decides on the mode to publish.
func (s snapshot) next(w desired) (mode.Step, lack) {
	n := mode.Node{Wanted: w.offer(), Published: s.checkpoint.Offer(), ClosedFor: s.closedFor()}
	if s.occupants != nil {
		n.Occupied = ptr.To(len(s.occupants.names) > 0)
	}
	step, decided := mode.Next(n)
	if !decided {
		return step, lacksOccupants
	}
	return step, lacksNothing
}

// switchWaiting tells what a change of the mode waits for, as far as that is known.
func (s snapshot) switchWaiting(w desired, step mode.Step) []event {
	if s.occupants == nil || len(s.occupants.names) == 0 {
		return nil
	}
	message := fmt.Sprintf("The GPUs stay in %s, closed to new claims, and change to %s when these have ended: %s",
		describe(step.Offer, w.offer()), describe(w.offer(), step.Offer), text.List(s.occupants.names, mostNamed))
	if w.mode != step.Mode && !mode.Labelled(s.node.labels) {
		message += ". No label asks for that any more; the mode that was asked for last counts until " +
			ack.NodeLabelSchedule + " has another value"
	}
	return []event{{reason: v1alpha1.ReasonModeSwitchWaiting, message: message}}
}

// checkpointOf is what has to be known of what the step publishes, and of what was asked for.
func (s snapshot) checkpointOf(w desired, step mode.Step) state.Node {
	c := s.checkpoint
	if w.asked.Mode != "" {
		c.Asks(w.asked)
	}
	c.Offers(step.Offer)
	c.Closed = step.Closed && (c.Closed || s.closedFor() >= mode.Settle)
	return c
}
