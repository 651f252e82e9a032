// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// errNoNode cannot happen once the agent runs: it reads the node first.
var errNoNode = errors.New("the node has not been read yet")

// known is what of a snapshot was told, or is prepared.
func (p *Publisher) known(ctx context.Context) (snapshot, error) {
	s := snapshot{given: p.inputs(), memory: p.memory, pool: p.pool(), now: p.Clock.Now(),
		unhealthyEffect: p.UnhealthyEffect}
	if s.node == nil {
		return s, errNoNode
	}
	s.records, s.unlisted = p.Claims.Prepared(ctx)
	return s, nil
}

// observe reads what there is, and does nothing else. Its error is held.ErrPodsUnread where nothing can be
// decided yet.
func (p *Publisher) observe(ctx context.Context) (snapshot, error) {
	s, err := p.known(ctx)
	if err == nil {
		s.reserved, err = p.Pods.Observe(ctx, s.machine)
	}
	return s, err
}

// observeModes reads how the modes are served that the pass is about.
func (p *Publisher) observeModes(ctx context.Context, s *snapshot) (err error) {
	s.served, s.notServed = servedModes(s.checkpoint.Offer(), p.Isolation)
	checkIsolation(s.machine, p.Isolation, s.asked.served, s.served)
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
