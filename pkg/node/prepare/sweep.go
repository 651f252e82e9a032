// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Orphan is a claim that is prepared, though for the API server it is gone or was
// allocated anew: the scheduler takes what it has for free.
type Orphan struct {
	state.Record
	// User is a pod that uses it and has processes, empty if none is known; Unknown
	// says why it is not known whether there is one.
	User    types.UID
	Unknown error
}

// Sweeper looks for claims that no longer hold their devices although nobody asked to
// unprepare them, as happens when the kubelet loses its own state, or is asked to forget
// a pod while its containers run. It releases them when it is certain that their pods
// have no processes. Call its Sweep from one goroutine.
type Sweeper struct {
	Preparer *Preparer
	// OnOrphans is told, after each sweep, the claims that have been orphans for Notice
	// and are prepared still, ordered by UID.
	OnOrphans func([]Orphan)
	// Grace is how long a claim must have been an orphan to be unprepared: the kubelet
	// normally asks by itself. Notice is how long it must have been one, to be told.
	Grace, Notice time.Duration
	Now           func() time.Time

	orphanedSince map[types.UID]time.Time
}

// Sweep looks at the records that it is to look at, and at those that were orphans when it
// looked last; of tells which, nil stands for all. It returns whether some are orphans,
// so that it has to look again soon. An orphan whose record was written before the last
// boot is unprepared at once: its containers are gone.
func (s *Sweeper) Sweep(ctx context.Context, of func(state.Record) bool) (again bool, err error) {
	records, err := s.Preparer.Prepared(ctx)
	errs := []error{err}
	orphaned := map[types.UID]time.Time{}
	var orphans []Orphan
	for _, r := range records {
		since, seen := s.orphanedSince[r.UID]
		if !seen && of != nil && !of(r) {
			continue
		}
		allocated, reservedFor, err := s.Preparer.allocated(ctx, r)
		if err != nil {
			errs = append(errs, fmt.Errorf("look up claim %s/%s: %w", r.Namespace, r.Name, err))
			if seen {
				orphaned[r.UID] = since
			}
			continue
		}
		// What uses the claim uses what it held before, too.
		if r, err = s.Preparer.enterUsers(ctx, r, reservedFor); err != nil {
			errs = append(errs, err)
		}
		if allocated {
			continue
		}
		if !seen {
			since = s.Now()
		}
		user, unknown := s.Preparer.inUse(r)
		certain := user == "" && unknown == nil
		if certain && (r.BootID != s.Preparer.options.BootID || s.Now().Sub(since) >= s.Grace) {
			klog.FromContext(ctx).Info("Unpreparing a claim that no longer holds its devices",
				"claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID)
			errs = append(errs, s.Preparer.unprepareIf(ctx, r))
			continue
		}
		orphaned[r.UID] = since
		if s.Now().Sub(since) >= s.Notice {
			orphans = append(orphans, Orphan{Record: r, User: user, Unknown: unknown})
		}
	}
	s.orphanedSince = orphaned
	s.OnOrphans(orphans)
	return len(orphaned) > 0, errors.Join(errs...)
}

// allocated says whether the claim that the record stands for is still allocated what the
// record says, and which pods it is reserved for. A claim that was made anew under the
// same name is not that claim.
func (p *Preparer) allocated(ctx context.Context, r state.Record) (same bool, reservedFor []types.UID, err error) {
	c, err := p.options.Cluster.Claim(ctx, r.Namespace, r.Name)
	if apierrors.IsNotFound(err) || err == nil && c.UID != r.UID {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	return SameAllocation(r, c), PodsOf(c), nil
}

// enterUsers enters pods that have come to use the claim into its record, if that is
// still there and stands for the same.
func (p *Preparer) enterUsers(ctx context.Context, r state.Record, reserved []types.UID) (state.Record, error) {
	pods := slices.Concat(reserved, p.options.Node.UsersOf(r.Namespace, r.Name))
	if !slices.ContainsFunc(pods, func(pod types.UID) bool { return !slices.Contains(r.Pods, pod) }) {
		return r, nil
	}
	err := p.locked(ctx, r.UID, func() error {
		now, found, err := p.get(ctx, r.UID)
		if err != nil || !found || now.Phase != r.Phase {
			return err
		}
		if err := p.addUsers(&now, pods); err != nil {
			return fmt.Errorf("note which pods use claim %s/%s: %w", r.Namespace, r.Name, err)
		}
		r = now
		return nil
	})
	return r, err
}
