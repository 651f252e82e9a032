// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

const (
	// completeLimit is how long a claim waits until it is known what was prepared: one
	// that is refused is not tried again by the kubelet for ten seconds and more.
	completeLimit   = 5 * time.Second
	completePolling = 20 * time.Millisecond
)

// errIncomplete says that a claim could be given what another one has.
var errIncomplete = errors.New("the plugin's record of prepared claims was lost and is being rebuilt from the API " +
	"server's claims: " +
	"the kubelet tries again by itself; if this stays, see the node's Events")

// waitComplete waits a moment until it is known which claims are prepared.
func (p *Preparer) waitComplete(ctx context.Context) error {
	if err := p.checkComplete(); !errors.Is(err, errIncomplete) {
		return err
	}
	return waitKnown(ctx, p.checkComplete)
}

// waitKnown waits a moment until what check looks for is known.
func waitKnown(ctx context.Context, check func() error) error {
	var last error
	_ = wait.PollUntilContextTimeout(ctx, completePolling, completeLimit, true, func(context.Context) (bool, error) {
		last = check()
		return !errors.Is(last, errIncomplete), nil
	})
	return last
}

// Complete says whether every claim that is prepared has its record, or had one that was set
// aside: see Known.
func (p *Preparer) Complete() (bool, error) { return p.options.Store.Complete() }

func (p *Preparer) checkComplete() error {
	complete, err := p.Complete()
	if err == nil && !complete {
		err = errIncomplete
	}
	return err
}

// straySpecs are the claims that have a spec and no record.
func (p *Preparer) straySpecs(ctx context.Context) ([]types.UID, error) {
	uids, err := p.options.Specs.Claims()
	if err != nil {
		return nil, err
	}
	records, err := p.Prepared(ctx)
	if err != nil {
		return nil, err
	}
	return without(uids, records), nil
}

// without are the claims of which there is no record.
func without(uids []types.UID, records []state.Record) []types.UID {
	return slices.DeleteFunc(uids, func(uid types.UID) bool {
		return slices.ContainsFunc(records, func(r state.Record) bool { return r.UID == uid })
	})
}

// known is knownBeside with the records of now.
func (p *Preparer) known(ctx context.Context, but types.UID) error {
	records, err := p.Prepared(ctx)
	if err != nil {
		return err
	}
	return p.knownBeside(records, but)
}

// knownBeside reports that a claim may be prepared that is not among the records, but for the
// one that is asked for: what is granted of the GPUs is not known then. Claims that Repair
// could not enter do not count: one with a GPU that is gone must not keep all others away.
func (p *Preparer) knownBeside(records []state.Record, but types.UID) error {
	if err := p.checkComplete(); err != nil {
		return err
	}
	uids, err := p.options.Specs.Claims()
	if err != nil {
		return err
	}
	var tried []types.UID
	if unenterable := p.unenterable.Load(); unenterable != nil {
		tried = *unenterable
	}
	for _, uid := range without(uids, records) {
		if uid != but && !slices.Contains(tried, uid) {
			return fmt.Errorf("claim %s has a CDI spec and no record: %w", uid, errIncomplete)
		}
	}
	return nil
}

// Known reports why claims may be prepared that are not among the records, nil if none are:
// the records were lost, or one was set aside, and are not entered again yet. What was listed
// before is all there is then.
func (p *Preparer) Known(ctx context.Context) error {
	if err := p.checkComplete(); err != nil {
		return err
	}
	strays, err := p.straySpecs(ctx)
	if err != nil {
		return err
	}
	for _, uid := range strays {
		// A claim that was unprepared just now has no spec any more.
		if there, err := p.options.Specs.Exists(cdi.SpecName(uid)); err != nil || there {
			return errors.Join(fmt.Errorf("claim %s has a CDI spec and no record: %w", uid, errIncomplete), err)
		}
	}
	return nil
}
