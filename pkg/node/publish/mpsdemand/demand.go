// SPDX-License-Identifier: Apache-2.0

// Package mpsdemand tells gpu-mps-supervisor whether its daemons are needed, and for what. The
// publisher of the node's GPUs tells it what the node asks for and what is published; it has a
// loop of its own beside that.
package mpsdemand

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

const (
	// retryInterval is the time from a failed pass to the next one.
	retryInterval = 5 * time.Second
	// ResyncInterval is the time between two passes while MPS is used. This process tells the
	// supervisor at once what it prepares and unprepares. Another instance, which runs beside
	// it during an update, may not: its version may tell nothing, or it may end before.
	ResyncInterval = 10 * time.Second
)

// MPS is how gpu-mps-supervisor is told; mps.Dir implements it.
type MPS interface {
	// SetUse sets what a GPU is used for by MPS, Use returns it, and UseIsSet reports whether that is set.
	SetUse(uuid string, u mps.Use) error
	Use(uuid string) (mps.Use, error)
	UseIsSet(uuid string, u mps.Use) bool
	// OfNode has the uses of the daemon for all GPUs, and WantNodeDaemon reports whether there
	// is to be one.
	OfNode() mps.Dir
	NodeDaemonWanted() (bool, error)
	WantNodeDaemon(want bool) error
	// Declare declares whether anything on the node uses MPS, until withdraw is called: see mps.Dir.
	Declare(what mps.Declaration) (withdraw func() error, err error)
}

// Claims knows what is prepared on the node; *prepare.Preparer implements it.
type Claims interface {
	// Prepared lists it.
	Prepared(ctx context.Context) ([]state.Record, error)
	// WithNodeLocked calls do with the same list; no claim is prepared meanwhile.
	WithNodeLocked(ctx context.Context, do func(prepared []state.Record) error) error
	// Known reports why claims may be prepared that are not in the list, nil if none are.
	Known(ctx context.Context) error
}

// Options are what a Demand works with.
type Options struct {
	MPS       MPS
	Claims    Claims
	Isolation isolation.Backends
	Clock     clock.Clock
	// FailureChanged is called when Failure answers otherwise than before. It must not block.
	FailureChanged func()
}

// Demand tells the supervisor. Its methods may be called concurrently.
type Demand struct {
	Options
	wake chan struct{}

	mu sync.Mutex
	// wanted and nodeWanted say that what the node asks for uses MPS, and the daemon for all GPUs.
	wanted, nodeWanted bool
	// offered is what is published; nil before anything is.
	offered *Offered
	// declared is what this plugin declares, and withdraw ends that; nil if there is nothing to end.
	declared mps.Declaration
	withdraw func() error
	// started is when Want last had daemons started; zero for never.
	started time.Time
	failure error
}

// New returns a Demand, which has to Run.
func New(o Options) *Demand {
	return &Demand{Options: o, wake: make(chan struct{}, 1), declared: mps.Undeclared}
}

// Want sets which daemons the modes need that the node asks for, and has them started: those of the
// GPUs, and the one for all. It returns when any were last started; zero for never.
func (d *Demand) Want(byMPS, byNodeDaemon bool) (started time.Time, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted, d.nodeWanted = byMPS, byNodeDaemon
	if byNodeDaemon {
		there, err := d.MPS.NodeDaemonWanted()
		if err == nil && !there {
			d.started = d.Clock.Now()
			err = d.MPS.WantNodeDaemon(true)
		}
		if err != nil {
			return time.Time{}, err
		}
	}
	if byMPS && d.declared != mps.InUse {
		wasIdle := d.declared == mps.Idle
		if err := d.declare(mps.InUse); err != nil {
			return time.Time{}, err
		}
		// The plugin before this one may have declared the node idle.
		if wasIdle || d.withdraw != nil {
			d.started = d.Clock.Now()
		}
	}
	return d.started, nil
}

// declare replaces what this plugin declares. The lock is held.
func (d *Demand) declare(what mps.Declaration) error {
	if d.declared == what {
		return nil
	}
	withdraw, err := d.MPS.Declare(what)
	if err != nil {
		return err
	}
	before := d.withdraw
	d.declared, d.withdraw = what, withdraw
	if before == nil {
		return nil
	}
	return before()
}

// Publishes sets what is published now. It does not block.
func (d *Demand) Publishes(o Offered) {
	d.mu.Lock()
	d.offered = &o
	d.mu.Unlock()
	signal.Send(d.wake)
}

// Failure is the error of the last pass.
func (d *Demand) Failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}

// Run tells the supervisor until the context ends.
func (d *Demand) Run(ctx context.Context) {
	var retry, resync <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-retry:
		case <-resync:
		}
		settled, err := d.Pass(ctx)
		if ctx.Err() != nil {
			return
		}
		d.mu.Lock()
		changed := fmt.Sprint(d.failure) != fmt.Sprint(err)
		d.failure = err
		used := d.used()
		d.mu.Unlock()
		if changed {
			d.FailureChanged()
		}
		retry, resync = nil, nil
		if err != nil || !settled {
			retry = d.Clock.After(retryInterval)
		}
		if used {
			resync = d.Clock.After(ResyncInterval)
		}
	}
}

// Pass tells the supervisor what is published and prepared. It returns false if it has to be called
// again even if neither changes. Run calls it.
func (d *Demand) Pass(ctx context.Context) (settled bool, err error) {
	d.mu.Lock()
	offered := d.offered
	d.mu.Unlock()
	if offered == nil {
		return true, nil
	}
	records, err := d.Claims.Prepared(ctx)
	if err != nil {
		return false, fmt.Errorf("look up what uses MPS: %w", err)
	}
	set, err := d.setUses(ctx, *offered, records)
	if err != nil {
		return false, err
	}
	known, err := d.declareUse(ctx, records)
	return set && known, err
}

// setUses sets what each GPU is used for by MPS: whether it is published for nothing else, and
// what the largest share of it is. Prepare itself adds a claim to it. Where claims may be prepared
// that have no record it changes nothing and returns false: the MPS server of a GPU
// without claims is ended, and its clients with it.
func (d *Demand) setUses(ctx context.Context, o Offered, records []state.Record) (set bool, err error) {
	uses, err := d.uses(o, records)
	if err != nil || d.usesAreSet(uses) {
		return err == nil, err
	}
	// Otherwise it could remove the use of a claim that is prepared meanwhile.
	err = d.Claims.WithNodeLocked(ctx, func(records []state.Record) error {
		// After the records were read: one that is damaged is set aside then.
		if unknown := d.Claims.Known(ctx); unknown != nil {
			klog.FromContext(ctx).Info("It is not known which claims use MPS, so what gpu-mps-supervisor was told stays",
				"reason", unknown)
			return nil
		}
		uses, err := d.uses(o, records)
		if err != nil {
			return err
		}
		// One daemon gives a GPU up before another one takes it.
		for _, guarded := range []bool{false, true} {
			for of, use := range uses {
				if use.Guarded() != guarded {
					continue
				}
				if err := d.daemonOf(of).SetUse(of.uuid, use); err != nil {
					return err
				}
			}
		}
		set = true
		return nil
	})
	return set, err
}

// usesAreSet reports whether the supervisor has these uses; not if they cannot be read.
func (d *Demand) usesAreSet(uses map[daemonGPU]mps.Use) bool {
	for of, use := range uses {
		if !d.daemonOf(of).UseIsSet(of.uuid, use) {
			return false
		}
	}
	return true
}

// declareUse declares whether anything that the node asks for or publishes, or a prepared claim, uses
// MPS, and ends the daemon for all GPUs where nothing uses that. Where it is not known which claims are
// prepared it changes nothing and returns false.
func (d *Demand) declareUse(ctx context.Context, records []state.Record) (known bool, err error) {
	nodeDaemon, err := d.MPS.NodeDaemonWanted()
	if err != nil {
		return false, err
	}
	nodeDaemon = nodeDaemon && !slices.ContainsFunc(records, func(r state.Record) bool {
		return isolation.UsesNodeDaemon(r.Grants)
	})
	claimed := slices.ContainsFunc(records, usesMPS)
	d.mu.Lock()
	stopNode, used := nodeDaemon && !d.nodeUsed(), claimed || d.used()
	if used {
		err = d.declare(mps.InUse)
	}
	done := !stopNode && (used || d.declared == mps.Idle)
	d.mu.Unlock()
	if err != nil || done {
		return true, err
	}
	logger := klog.FromContext(ctx)
	if err := d.Claims.Known(ctx); err != nil {
		logger.Info("It is not known whether a claim uses MPS, so what gpu-mps-supervisor was told stays", "reason", err)
		return false, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// The node may ask for them since.
	if stopNode && !d.nodeUsed() {
		if err := d.MPS.WantNodeDaemon(false); err != nil {
			return true, err
		}
	}
	if claimed || d.used() {
		return true, nil
	}
	if err := d.declare(mps.Idle); err != nil {
		logger.V(4).Info("The MPS control daemons go on although nothing uses them", "reason", err)
		return true, nil
	}
	d.started = time.Time{}
	return true, nil
}

// used reports whether what the node asks for, or what it publishes, uses MPS, and nodeUsed the same
// of the daemon for all GPUs. The lock is held.
func (d *Demand) used() bool { return d.wanted || d.offered != nil && d.offered.byMPS() }

func (d *Demand) nodeUsed() bool {
	return d.nodeWanted || d.offered != nil && d.offered.by(mode.DaemonOfNode)
}
