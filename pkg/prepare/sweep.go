package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/state"
)

// Holding is what the API server says of the claim that a record stands for.
type Holding struct {
	// Held says that the claim holds what the record says: it exists, with this UID and
	// this allocation (see SameAllocation).
	Held bool
	// Pods are those that the claim is reserved for, if it exists with this UID.
	Pods []types.UID
}

// LetGo is a claim that is prepared, though for the API server it holds nothing here any
// more: the scheduler takes what it has for free.
type LetGo struct {
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
	Held     func(ctx context.Context, r state.Record) (Holding, error)
	// OnLetGo is told, after each sweep, the claims that have let go for Notice and
	// are prepared still, ordered by UID.
	OnLetGo func([]LetGo)
	// Grace is how long a claim must have let go to be unprepared: the kubelet normally
	// asks by itself. Notice is how long it must have, to be told.
	Grace, Notice time.Duration
	Now           func() time.Time

	releasedSince map[types.UID]time.Time
}

// Sweep looks at the records that it is to look at, and at those that had let go when it
// looked last; of tells which, nil stands for all. It returns whether some have let go,
// so that it has to look again soon. A claim that let go and whose record was written
// before the last boot is unprepared at once: its containers are gone.
func (s *Sweeper) Sweep(ctx context.Context, of func(state.Record) bool) (again bool, err error) {
	records, err := s.Preparer.Prepared(ctx)
	errs := []error{err}
	released := map[types.UID]time.Time{}
	var letGo []LetGo
	for _, r := range records {
		since, seen := s.releasedSince[r.UID]
		if !seen && of != nil && !of(r) {
			continue
		}
		holding, err := s.Held(ctx, r)
		if err != nil {
			errs = append(errs, fmt.Errorf("look up claim %s/%s: %w", r.Namespace, r.Name, err))
			if seen {
				released[r.UID] = since
			}
			continue
		}
		// What uses the claim uses what it held before, too.
		if r, err = s.Preparer.enterUsers(ctx, r, holding.Pods); err != nil {
			errs = append(errs, err)
		}
		if holding.Held {
			continue
		}
		if !seen {
			since = s.Now()
		}
		user, unknown := s.Preparer.inUse(r)
		certain := user == "" && unknown == nil
		if certain && (r.BootID != s.Preparer.BootID || s.Now().Sub(since) >= s.Grace) {
			klog.FromContext(ctx).Info("Unpreparing a claim that no longer holds its devices", "claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID)
			errs = append(errs, s.Preparer.unprepareIf(ctx, r))
			continue
		}
		released[r.UID] = since
		if s.Now().Sub(since) >= s.Notice {
			letGo = append(letGo, LetGo{Record: r, User: user, Unknown: unknown})
		}
	}
	s.releasedSince = released
	s.OnLetGo(letGo)
	return len(released) > 0, errors.Join(errs...)
}

// enterUsers enters pods that have come to use the claim into its record, if that is
// still there and stands for the same.
func (p *Preparer) enterUsers(ctx context.Context, r state.Record, reserved []types.UID) (state.Record, error) {
	pods := slices.Concat(reserved, p.Users(r.Namespace, r.Name))
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
