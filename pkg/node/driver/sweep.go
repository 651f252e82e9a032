// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

const (
	// sweepInterval is how often all claims are compared with the API server's;
	// sweepSoon how soon those are that somebody wants released, which collects what
	// happens at once; sweepAgain how often orphans are.
	sweepInterval = 10 * time.Minute
	sweepSoon     = 2 * time.Second
	sweepAgain    = 10 * time.Second
	// sweepNotice tells an orphan from a claim whose pod has just ended, for
	// which the kubelet is about to ask. sweepGrace is how long it has for that, where no
	// process of the pods is left.
	sweepNotice = 5 * time.Second
	sweepGrace  = time.Minute
	// mostContended is how many claims may wait to be looked at.
	mostContended = 256
)

// sweeper compares what is prepared with what the API server says is allocated: where
// something hints at a difference at once, and all of it now and then.
type sweeper struct {
	prepare.Sweeper
	users   *users
	cgroups *podcgroup.Tree
	clock   clock.Clock
	// wanted takes claims that somebody wants released.
	wanted releases
}

// releases are claims that somebody wants released.
type releases chan types.UID

func (a *agent) newSweeper(onOrphans func([]prepare.Orphan)) *sweeper {
	return &sweeper{
		Sweeper: prepare.Sweeper{Preparer: a.preparer, OnOrphans: onOrphans, Grace: sweepGrace, Notice: sweepNotice,
			Now: time.Now},
		users: a.users, cgroups: a.cgroups, clock: clock.RealClock{}, wanted: a.contended,
	}
}

// want has the claims looked at soon. What does not fit is looked at with all others.
func (r releases) want(claims ...types.UID) {
	for _, uid := range claims {
		select {
		case r <- uid:
		default:
		}
	}
}

// run sweeps until the context ends.
func (s *sweeper) run(ctx context.Context) {
	all := s.clock.After(0)
	var soon, again <-chan time.Time
	wanted := map[types.UID]bool{}
	for {
		of := func(r state.Record) bool { return wanted[r.UID] || s.users.leftOf(r) }
		select {
		case <-ctx.Done():
			return
		case uid := <-s.wanted:
			wanted[uid] = true
			if soon == nil {
				soon = s.clock.After(sweepSoon)
			}
			continue
		case <-s.users.left:
			if soon == nil {
				soon = s.clock.After(sweepSoon)
			}
			continue
		case <-soon:
		case <-again:
		case <-all:
			all, of = s.clock.After(sweepInterval), nil
		}
		soon, again = nil, nil
		more, err := s.Sweep(ctx, of)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Looking for claims that nobody unprepared failed, will try again", "after",
				sweepAgain)
		}
		if more || err != nil {
			again = s.clock.After(sweepAgain)
		}
		if err == nil {
			clear(wanted)
			s.users.forget(s.cgroups.Running)
		}
	}
}
