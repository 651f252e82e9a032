// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// snapshot is all that a pass goes by, read once: what is decided in it is decided on one state
// of the node.
type snapshot struct {
	given
	memory
	pool            string
	now             time.Time
	unhealthyEffect resourceapi.DeviceTaintEffect

	// records are those of the claims that are prepared, unless unlisted says why they cannot
	// be read.
	records  []state.Record
	unlisted error
	// reserved is what pods without a claim hold, and other drivers.
	reserved held.Reserved
	// failed is why what follows could not be read.
	failed error
	// asked is what the node asks for, and served how what was last published is, unless
	// notServed says why that cannot be told; both with how a GPU's users are kept apart now.
	asked     desired
	served    []servedMode
	notServed error
	// daemonsStarted is when the MPS control daemons were last started; zero for never.
	daemonsStarted time.Time
	// tooOld says why the cluster is too old for mode dynamic, where that is asked for.
	tooOld error

	// occupants keep the node in its mode. They are dear to find, and nil until a plan lacks them.
	occupants *allocations
}

// lack is what is not read before a plan turns out to need it: it takes asking the API server for
// all claims of the cluster.
type lack string

const (
	lacksNothing   lack = ""
	lacksOccupants lack = "who has devices that are to be published otherwise"
	lacksRetained  lack = "which sets of GPUs may be allocated that the machine has no more"
)

// observe reads what there is. Its error is held.ErrPodsUnread where nothing can be
// decided yet.
func (p *Publisher) observe(ctx context.Context) (snapshot, error) {
	s := snapshot{given: p.inputs(), pool: p.pool(), now: p.Clock.Now(), unhealthyEffect: p.UnhealthyEffect}
	if s.node == nil {
		return s, errNoNode
	}
	if s.records, s.unlisted = p.Claims.Prepared(ctx); s.unlisted == nil {
		p.listed = s.records
	}
	// What pods hold depends on when the last device plugin left.
	if !p.restored {
		if err := p.restore(ctx, s); err != nil {
			return s, err
		}
		s.refusedClaims = p.inputs().refusedClaims
	}
	var err error
	if s.reserved, err = p.Pods.Observe(ctx, s.machine); err != nil {
		return s, err
	}
	if !p.annotation.read || s.node.waiting != p.annotation.text {
		p.noteAnnotation(ctx, s.node.waiting, s.now)
	}
	if p.layout.Limits != nil {
		p.lifting = p.lifting.next(p.annotation.waits(s.now), s.records, s.now)
	}
	s.failed = p.observeModes(ctx, &s)
	if s.hasMIG() || len(p.made) > 0 {
		p.noteMade(&s)
	}
	s.memory = p.memory
	return s, nil
}

// observeModes reads what the node asks for, and how the modes are served that this is about.
func (p *Publisher) observeModes(ctx context.Context, s *snapshot) error {
	w := s.node.desired(p.checkpoint.Asked(), p.Isolation)
	if p.hasDevicePlugin(s.node) {
		if err := p.afterDevicePlugin(*s, &w); err != nil {
			return err
		}
	}
	if s.unusable != nil && w.notServed == nil {
		w.offerNothing(s.unusable)
		w.again = true
	}
	// Before it is looked whether they are there.
	var err error
	if s.daemonsStarted, err = p.demand.Want(slices.ContainsFunc(w.served, servedMode.byMPS),
		slices.ContainsFunc(w.served, servedMode.byNodeDaemon)); err != nil {
		return err
	}
	offer := p.checkpoint.Offer()
	s.served, s.notServed = servedModes(offer, p.Isolation)
	checkIsolation(s.machine, p.Isolation, w.served, s.served)
	s.asked, p.watched = w, w.served
	if w.mode == mode.Dynamic {
		s.tooOld, err = p.version.TooOldForDynamic(ctx, p.Client.Discovery())
	}
	return err
}

// lookUp completes the snapshot with what a plan lacks.
func (p *Publisher) lookUp(ctx context.Context, s *snapshot, l lack) error {
	switch l {
	case lacksOccupants:
		found, err := p.occupants(ctx, *s)
		s.occupants = &found
		return err
	case lacksRetained:
		sets, err := p.setsToRetain(ctx, *s)
		s.retained = retainedSets{machine: s.machine, sets: sets}
		return err
	default:
		return fmt.Errorf("the plan lacks %q", l)
	}
}

// closedFor is for how long the API server has shown the devices as closed to new claims.
func (s snapshot) closedFor() time.Duration {
	if s.closedSince.IsZero() {
		return 0
	}
	return s.now.Sub(s.closedSince)
}

// prepared are the records of the claims that are prepared.
func (s snapshot) prepared() ([]state.Record, error) {
	if s.unlisted != nil {
		return nil, fmt.Errorf("look up which claims are prepared: %w", s.unlisted)
	}
	return s.records, nil
}

// errNoNode cannot happen once the agent runs: it reads the node first.
var errNoNode = errors.New("the node has not been read yet")

func (p *Publisher) pool() string { return v1alpha1.PoolName(p.NodeName) }
