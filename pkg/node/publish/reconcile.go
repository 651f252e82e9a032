// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
)

// reconcile is one pass: it publishes what the labels ask for as far as it can be. It returns
// false if it has to look again although nothing may change in the meantime.
func (p *Publisher) reconcile(ctx context.Context) (settled bool, err error) {
	if !p.restored {
		if err := p.restore(ctx); err != nil {
			return false, err
		}
	}
	s, err := p.observe(ctx)
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
		if todo.lacks != lacksNothing {
			if err := p.lookUp(ctx, &s, todo); err != nil {
				return false, err
			}
			continue
		}
		if err := p.apply(ctx, s, todo); err != nil {
			return false, err
		}
		if !todo.closes {
			p.noteApplied()
			return !todo.again, nil
		}
		s.memory = p.memory
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
func (p *Publisher) lookUp(ctx context.Context, s *snapshot, todo plan) error {
	switch todo.lacks {
	case lacksOccupants:
		found, check, err := p.occupants(ctx, *s)
		s.occupants, s.drainCheck = &found, check
		return err
	case lacksRetained:
		sets, err := p.setsToRetain(ctx, *s)
		s.retained = retainedSets{machine: s.machine, sets: sets}
		return err
	case lacksPreflight:
		return p.preflight(ctx, s, todo.resources)
	case lacksStored:
		stored, err := p.stored(ctx)
		if s.stored = &stored; err != nil {
			return errors.Join(s.refused, err)
		}
		return nil
	case lacksOpening:
		err := p.awaitStored(ctx, func(stored []resourceapi.ResourceSlice) bool { return holds(stored, *s.last) },
			"they were published last, so they cannot be closed to change their mode")
		s.reopened = err != nil
		return err
	case lacksClosing:
		if err := p.awaitStored(ctx, allClosed, "closed to new claims, so they cannot change their mode yet"); err != nil {
			return err
		}
		s.closedSince = p.Clock.Now()
		return nil
	default:
		return fmt.Errorf("the plan lacks %q", todo.lacks)
	}
}

// preflight asks whether the API server keeps all that the pool needs. It fails closed: as long as that is not known,
// nothing is published.
func (p *Publisher) preflight(ctx context.Context, s *snapshot, resources resourceslice.DriverResources) error {
	err := cluster.Preflight(ctx, p.Client, p.NodeName, resources)
	if errors.As(err, &s.missing) {
		s.preflighted = cluster.Features{}
		return nil
	}
	if err == nil {
		s.preflighted, s.droppedSeen = cluster.FeaturesOf(resources), s.dropped
	}
	return err
}

// awaitStored waits a moment for what the API server shows. What was published is written in the background, and only
// from then on do schedulers see it.
func (p *Publisher) awaitStored(
	ctx context.Context, shows func([]resourceapi.ResourceSlice) bool, otherwise string,
) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, seenLimit, true,
		func(ctx context.Context) (bool, error) {
			stored, err := p.stored(ctx)
			return err == nil && shows(stored), err
		})
	if err != nil {
		return fmt.Errorf("the API server does not show the node's devices as %s: %w", otherwise, err)
	}
	return nil
}
