// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"

	"github.com/gpushare/dra-driver-gpushare/pkg/held"
)

// reconcile is one pass: it publishes what the labels ask for as far as it can be. It returns
// false if it has to look again although nothing may change in the meantime.
func (p *Publisher) reconcile(ctx context.Context) (settled bool, err error) {
	// What pods hold depends on when the last device plugin left.
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
		if todo.lacks == lacksNothing {
			return p.apply(ctx, s, todo)
		}
		if err := p.lookUp(ctx, &s, todo.lacks); err != nil {
			return false, err
		}
	}
}
