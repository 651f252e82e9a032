// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// reconcile is one pass: it publishes what the labels ask for as far as it can be. It returns
// false if it has to look again although nothing may change in the meantime.
func (p *Publisher) reconcile(ctx context.Context) (settled bool, err error) {
	s, err := p.observe(ctx)
	// What pods hold depends on when the last device plugin left.
	if err == nil && !p.restored {
		err = p.restore(ctx, &s)
	}
	if err == nil {
		s.reserved, err = p.Pods.Observe(ctx, s.machine)
	}
	if errors.Is(err, held.ErrPodsUnread) {
		return true, nil // the end of the wait wakes the publisher
	}
	if err != nil {
		return false, err
	}
	// Before it is looked whether the daemons are there.
	if s.failed = p.enter(ctx, &s, s.begin(p.Isolation)); s.failed == nil {
		s.failed = p.observeModes(ctx, &s)
		s.watched = s.asked.served
	}
	for {
		todo, err := s.plan()
		p.tell(todo.events)
		p.tellClaims(s.goneClaims, todo.goneClaims)
		s.goneClaims = todo.goneClaims
		p.memory = s.memory
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

// observeModes reads how the modes are served that the pass is about.
func (p *Publisher) observeModes(ctx context.Context, s *snapshot) (err error) {
	s.served, s.notServed = servedModes(s.checkpoint.Offer(), p.Isolation)
	checkIsolation(s.machine, s.asked.served, s.served)
	if s.asked.mode == mode.Dynamic {
		s.tooOld, err = s.version.TooOldForDynamic(ctx, p.Client.Discovery())
	}
	return err
}

// lookUp completes the snapshot with what a plan lacks.
func (p *Publisher) lookUp(ctx context.Context, s *snapshot, l lack) error {
	switch l {
	case lacksOccupants:
		found, check, err := p.occupants(ctx, *s)
		s.occupants, s.drainCheck = &found, check
		return err
	case lacksRetained:
		sets, err := p.setsToRetain(ctx, *s)
		s.retained = retainedSets{machine: s.machine, sets: sets}
		return err
	default:
		return fmt.Errorf("the plan lacks %q", l)
	}
}
