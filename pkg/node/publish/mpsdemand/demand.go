// SPDX-License-Identifier: Apache-2.0

// Package mpsdemand tells gpu-mps-supervisor whether its daemons are needed, and for what. It
// does so in a loop of its own, beside what publishes the node's GPUs: that tells it what the
// node asks for and what is published.
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
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

const (
	// retryInterval is how long there is until the supervisor is told again what it could not
	// be told.
	retryInterval = 5 * time.Second
	// RetellInterval is how often it is looked whether what MPS is used for is still what the
	// supervisor was told. This process tells of what it prepares and takes back at once. Another
	// one, which an update of the plugin has beside it or after it, may not: it may be of a
	// version that tells nothing, or end before it has.
	RetellInterval = 10 * time.Second
)

// MPS is how gpu-mps-supervisor is told; mps.Dir implements it.
type MPS interface {
	// Use and SetUse are what each GPU is used for by MPS.
	Use(uuid string) (mps.Use, error)
	SetUse(uuid string, u mps.Use) error
	// OfNode has the uses of the daemon for all GPUs, and WantNodeDaemon says whether there
	// is to be one.
	OfNode() mps.Dir
	NodeDaemonWanted() (bool, error)
	WantNodeDaemon(want bool) error
	// SayUnneeded tells it, until takeBack is called, that nothing on the node uses MPS.
	SayUnneeded() (takeBack func() error, err error)
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
	// takeBack ends that nothing uses MPS; nil while that is not said.
	takeBack func() error
	// started is when daemons were last asked for that had not been; zero for never.
	started time.Time
	failure error
}

// New returns a Demand, which has to Run.
func New(o Options) *Demand { return &Demand{Options: o, wake: make(chan struct{}, 1)} }

// Want has the daemons started that what the node asks for needs: those of MPS, and the one for
// all GPUs. It returns when any were last started; zero for never.
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
	if byMPS && d.takeBack != nil {
		if err := d.takeBack(); err != nil {
			return time.Time{}, err
		}
		d.takeBack, d.started = nil, d.Clock.Now()
	}
	return d.started, nil
}

// Publishes says what is published now. It does not block.
func (d *Demand) Publishes(o Offered) {
	d.mu.Lock()
	d.offered = &o
	d.mu.Unlock()
	signal.Send(d.wake)
}

// Failure is why the supervisor could not be told last, nil if it could.
func (d *Demand) Failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}

// Run tells the supervisor until the context ends.
func (d *Demand) Run(ctx context.Context) {
	var retry, retell <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-retry:
		case <-retell:
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
		retry, retell = nil, nil
		if err != nil || !settled {
			retry = d.Clock.After(retryInterval)
		}
		if used {
			retell = d.Clock.After(RetellInterval)
		}
	}
}

// Pass brings what the supervisor was told in line with what is published and prepared. It
// returns false if it has to look again although nothing may change in the meantime. Run calls it.
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
	told, err := d.tellUses(ctx, *offered, records)
	if err != nil {
		return false, err
	}
	known, err := d.stopUnused(ctx, records)
	return told && known, err
}

// tellUses says what each GPU is used for by MPS: whether it is published for nothing else, and
// what the largest share of it is. What is prepared says so itself if it is larger than all
// others, before it is used. It returns false, and says nothing, where claims may be prepared
// that are not among the records: the MPS server of a GPU without any is ended, and its clients
// with it.
func (d *Demand) tellUses(ctx context.Context, o Offered, records []state.Record) (told bool, err error) {
	uses, err := o.uses(d.Isolation, records)
	if err != nil || d.toldLast(uses) {
		return err == nil, err
	}
	// What is prepared meanwhile would be taken back.
	err = d.Claims.WithNodeLocked(ctx, func(records []state.Record) error {
		// Asked after the records were read: one that cannot be is set aside then.
		if unknown := d.Claims.Known(ctx); unknown != nil {
			klog.FromContext(ctx).Info("It is not known which claims use MPS, so what gpu-mps-supervisor was told stays",
				"reason", unknown)
			return nil
		}
		uses, err := o.uses(d.Isolation, records)
		if err != nil {
			return err
		}
		// A GPU is given up by one daemon before another one is to have it.
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
		told = true
		return nil
	})
	return told, err
}

// toldLast says whether that is what the supervisor was told last. What cannot be read is
// written anew.
func (d *Demand) toldLast(uses map[daemonGPU]mps.Use) bool {
	for of, use := range uses {
		last, err := d.daemonOf(of).Use(of.uuid)
		if use.Seq = last.Seq; err != nil || use != last {
			return false
		}
	}
	return true
}

// stopUnused has daemons ended that neither what the node asks for, nor what it publishes, nor a
// claim that is prepared uses. Where that is not known they go on, and it returns false.
func (d *Demand) stopUnused(ctx context.Context, records []state.Record) (known bool, err error) {
	nodeDaemon, err := d.MPS.NodeDaemonWanted()
	if err != nil {
		return false, err
	}
	d.mu.Lock()
	stopNode, stop := nodeDaemon && !d.nodeUsed(), d.takeBack == nil && !d.used()
	d.mu.Unlock()
	if !stopNode && !stop {
		return true, nil
	}
	logger := klog.FromContext(ctx)
	if err := d.Claims.Known(ctx); err != nil {
		logger.Info("It is not known whether a claim uses MPS, so its control daemons go on", "reason", err)
		return false, nil
	}
	stopNode = stopNode && !slices.ContainsFunc(records, usesNodeDaemon)
	stop = stop && !slices.ContainsFunc(records, usesMPS)
	d.mu.Lock()
	defer d.mu.Unlock()
	// The node may ask for them since.
	if stopNode && !d.nodeUsed() {
		if err := d.MPS.WantNodeDaemon(false); err != nil {
			return true, err
		}
	}
	if stop && !d.used() {
		takeBack, err := d.MPS.SayUnneeded()
		if err != nil {
			logger.V(4).Info("The MPS control daemons go on although nothing uses them", "reason", err)
			return true, nil
		}
		d.takeBack, d.started = takeBack, time.Time{}
	}
	return true, nil
}

// used says whether what the node asks for, or what it publishes, uses MPS, and nodeUsed the same
// of the daemon for all GPUs. The lock is held.
func (d *Demand) used() bool { return d.wanted || d.offered != nil && d.offered.byMPS() }

func (d *Demand) nodeUsed() bool {
	return d.nodeWanted || d.offered != nil && d.offered.by(isolation.NameMPSNode)
}
