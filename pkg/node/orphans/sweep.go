// SPDX-License-Identifier: Apache-2.0

// Package orphans finds claims that are prepared though nobody has them any more, and the pods
// that use them all the same.
package orphans

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
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
	// mostWanted is how many claims may wait to be looked at.
	mostWanted = 256
)

// Orphan is a claim that is prepared, though for the API server it is gone or was
// allocated again: the scheduler takes what it has for free.
type Orphan struct {
	state.Record
	// User is a pod that uses it and has processes, empty if none is known; Unknown
	// says why it is not known whether there is one.
	User    types.UID
	Unknown error
	// Kept is why it could not be unprepared, although no process of its pods is left.
	Kept error
}

// Options are what a Sweeper works with.
type Options struct {
	Claims  *prepare.Preparer
	Cluster prepare.Cluster
	// Pods has the node's pods if they are watched.
	Pods *pods.Picture
	// BootID identifies the boot of the node.
	BootID string
	// OnOrphans is told, after each sweep, the claims that have been orphans for sweepNotice
	// and are prepared still, ordered by UID.
	OnOrphans func([]Orphan)
	Clock     clock.Clock
}

// Sweeper looks for claims that no longer hold their devices although nobody asked to
// unprepare them, as happens when the kubelet loses its own state, or is asked to forget
// a pod while its containers run. It releases them when it is certain that their pods
// have no processes.
type Sweeper struct {
	options Options
	// wanted takes claims that somebody wants released.
	wanted chan types.UID
	found  map[types.UID]*orphaned
}

// orphaned is what the last look has found of an orphan: since when it is one, and what is told of it, nil as long as
// that is nothing.
type orphaned struct {
	since time.Time
	told  *Orphan
}

// New returns a Sweeper that looks as long as its Run runs.
func New(o Options) *Sweeper { return &Sweeper{options: o, wanted: make(chan types.UID, mostWanted)} }

// Want has the claims looked at soon, which somebody wants released. What does not fit is
// looked at with all others.
func (s *Sweeper) Want(claims ...types.UID) {
	for _, uid := range claims {
		select {
		case s.wanted <- uid:
		default:
		}
	}
}

// Run sweeps until the context ends: what something hints at at once, and all of it now and
// then.
func (s *Sweeper) Run(ctx context.Context) {
	all := s.options.Clock.After(0)
	var soon, again <-chan time.Time
	wanted := map[types.UID]bool{}
	hinted := func(r state.Record) bool {
		if s.options.Pods.AnyLeaves(r.Namespace, r.Name, r.Pods) {
			wanted[r.UID] = true
		}
		return wanted[r.UID]
	}
	left := s.options.Pods.Left.Next()
	for {
		of := hinted
		select {
		case <-ctx.Done():
			return
		case uid := <-s.wanted:
			wanted[uid] = true
			if soon == nil {
				soon = s.options.Clock.After(sweepSoon)
			}
			continue
		case <-left:
			left = s.options.Pods.Left.Next()
			if soon == nil {
				soon = s.options.Clock.After(sweepSoon)
			}
			continue
		case <-soon:
		case <-again:
		case <-all:
			all, of = s.options.Clock.After(sweepInterval), nil
		}
		soon, again = nil, nil
		more, err := s.sweep(ctx, of)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Looking for claims that nobody unprepared failed, will try again", "after",
				sweepAgain)
		}
		if more || err != nil {
			again = s.options.Clock.After(sweepAgain)
		}
		if err == nil {
			clear(wanted)
		}
	}
}

// sweep looks at the records that it is to look at, and at those that were orphans when it
// looked last; of tells which, nil stands for all. It returns whether some are orphans,
// so that it has to look again soon. What cannot be looked at stays what it was.
func (s *Sweeper) sweep(ctx context.Context, of func(state.Record) bool) (again bool, err error) {
	records, unread := s.options.Claims.Prepared(ctx)
	errs, found := []error{unread}, map[types.UID]*orphaned{}
	if unread != nil {
		maps.Copy(found, s.found)
	}
	for _, r := range records {
		before := s.found[r.UID]
		if before == nil && of != nil && !of(r) {
			continue
		}
		now, err := s.look(ctx, r, before)
		errs = append(errs, err)
		delete(found, r.UID)
		if now != nil {
			found[r.UID] = now
		}
	}
	s.found = found
	var orphans []Orphan
	for _, uid := range slices.Sorted(maps.Keys(found)) {
		if told := found[uid].told; told != nil {
			orphans = append(orphans, *told)
		}
	}
	s.options.OnOrphans(orphans)
	return len(found) > 0, errors.Join(errs...)
}

// look says what there is to know of a record's claim if it is an orphan, nil if it is none; before
// is what the last look has said. An orphan that was not prepared in this boot of the node is
// unprepared at once: its containers are gone. So is one that another node prepared, of which this node's disk is a
// copy.
func (s *Sweeper) look(ctx context.Context, r state.Record, before *orphaned) (*orphaned, error) {
	c, err := s.claim(ctx, r)
	if err != nil {
		return before, fmt.Errorf("look up claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	// What uses the claim uses what it held before, too.
	r, ofAnother, unnoted := s.options.Claims.EnterUsers(ctx, r, c)
	if c != nil && c.UID == r.UID && prepare.SameAllocation(r, c) && s.options.Claims.IsOwn(r) {
		return nil, unnoted
	}
	now := &orphaned{since: s.options.Clock.Now()}
	if before != nil {
		now.since = before.since
	}
	user, unknown := s.options.Claims.InUse(r, ofAnother...)
	certain := user == "" && unknown == nil
	var kept error
	if certain && (r.BootID != s.options.BootID || s.options.Clock.Now().Sub(now.since) >= sweepGrace) {
		klog.FromContext(ctx).Info("Unpreparing a claim that no longer holds its devices",
			"claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID)
		if kept = s.options.Claims.UnprepareSame(ctx, r); kept == nil {
			return nil, unnoted
		}
	}
	if s.options.Clock.Now().Sub(now.since) >= sweepNotice {
		now.told = &Orphan{Record: r, User: user, Unknown: unknown, Kept: kept}
	}
	return now, errors.Join(unnoted, kept)
}

// claim is the claim that has the record's name now, nil if none has.
func (s *Sweeper) claim(ctx context.Context, r state.Record) (*resourceapi.ResourceClaim, error) {
	c, err := s.options.Cluster.Claim(ctx, r.Namespace, r.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return c, err
}
