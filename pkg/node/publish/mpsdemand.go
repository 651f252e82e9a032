// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// retellInterval is how often it is looked whether what MPS is used for is still what
// gpu-mps-supervisor was told. This process tells of what it prepares and takes back at once.
// Another one, which an update of the plugin has beside it or after it, may not: it may be of a
// version that tells nothing, or end before it has.
const retellInterval = 10 * time.Second

// mpsDemand tells gpu-mps-supervisor whether its daemons are needed, and for what: in a loop of
// its own, beside the publisher, which tells it what the node asks for and what is published.
type mpsDemand struct {
	*Options
	wake chan struct{}
	// failureChanged is called when failure answers otherwise than before. It must not block.
	failureChanged func()

	mu sync.Mutex
	// wanted and nodeWanted say that what the node asks for uses MPS, and the daemon for all GPUs.
	wanted, nodeWanted bool
	// takeBack ends that nothing uses MPS; nil while that is not said.
	takeBack func() error
	// started is when daemons were last asked for that had not been; zero for never.
	started time.Time
	// offered is what is published; nil before anything is.
	offered *mpsOffered
	err     error
}

func newMPSDemand(o *Options, failureChanged func()) *mpsDemand {
	return &mpsDemand{Options: o, wake: make(chan struct{}, 1), failureChanged: failureChanged}
}

// want has the daemons started that what the node asks for needs, and returns when they were
// last started; zero for never.
func (d *mpsDemand) want(served []servedMode) (started time.Time, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = slices.ContainsFunc(served, servedMode.byMPS)
	d.nodeWanted = slices.ContainsFunc(served, servedMode.byNodeDaemon)
	if d.nodeWanted {
		there, err := d.MPS.NodeDaemonWanted()
		if err == nil && !there {
			d.started = d.Clock.Now()
			err = d.MPS.WantNodeDaemon(true)
		}
		if err != nil {
			return time.Time{}, err
		}
	}
	if d.wanted && d.takeBack != nil {
		if err := d.takeBack(); err != nil {
			return time.Time{}, err
		}
		d.takeBack, d.started = nil, d.Clock.Now()
	}
	return d.started, nil
}

// publishes says what is published now.
func (d *mpsDemand) publishes(o mpsOffered) {
	d.mu.Lock()
	d.offered = &o
	d.mu.Unlock()
	signal.Send(d.wake)
}

// failure is why the supervisor could not be told last, nil if it could.
func (d *mpsDemand) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// run tells the supervisor until the context ends.
func (d *mpsDemand) run(ctx context.Context) {
	var retry, retell <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-retry:
		case <-retell:
		}
		settled, err := d.pass(ctx)
		if ctx.Err() != nil {
			return
		}
		d.noteFailure(err)
		retry, retell = nil, nil
		if err != nil || !settled {
			retry = d.Clock.After(retryInterval)
		}
		if d.locked((*mpsDemand).used) {
			retell = d.Clock.After(retellInterval)
		}
	}
}

func (d *mpsDemand) noteFailure(err error) {
	d.mu.Lock()
	changed := fmt.Sprint(d.err) != fmt.Sprint(err)
	d.err = err
	d.mu.Unlock()
	if changed {
		d.failureChanged()
	}
}

// pass brings what the supervisor was told in line with what is published and prepared. It
// returns false if it has to look again although nothing may change in the meantime.
func (d *mpsDemand) pass(ctx context.Context) (settled bool, err error) {
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
	told, err := d.tell(ctx, *offered, records)
	if err != nil {
		return false, err
	}
	nodeKnown, err := d.stopUnusedNodeDaemon(ctx, records)
	if err != nil {
		return false, err
	}
	return d.stopUnused(ctx, records) && nodeKnown && told, nil
}

// tell says what each GPU is used for by MPS: whether it is published for nothing else, and
// what the largest share of it is. What is prepared says so itself if it is larger than all
// others, before it is used. It returns false, and says nothing, where claims may be prepared
// that are not among the records: the MPS server of a GPU without any is ended, and its clients
// with it.
func (d *mpsDemand) tell(ctx context.Context, o mpsOffered, records []state.Record) (told bool, err error) {
	told, err = d.told(o, records)
	if err != nil || told {
		return told, err
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
			for gpu, use := range uses {
				if use.Guarded() != guarded {
					continue
				}
				if err := d.of(gpu).SetUse(gpu.uuid, use); err != nil {
					return err
				}
			}
		}
		told = true
		return nil
	})
	return told, err
}

// told says whether that is what the supervisor was told last.
func (d *mpsDemand) told(o mpsOffered, records []state.Record) (bool, error) {
	uses, err := o.uses(d.Isolation, records)
	if err != nil {
		return false, err
	}
	for gpu, use := range uses {
		last, err := d.of(gpu).Use(gpu.uuid)
		if err != nil {
			return false, nil // it is written anew
		}
		if use.Seq = last.Seq; use != last {
			return false, nil
		}
	}
	return true, nil
}

// stopUnusedNodeDaemon has the daemon for all GPUs ended where neither what the node asks for,
// nor what it publishes, nor a claim that is prepared uses it. It returns false where that is
// not known.
func (d *mpsDemand) stopUnusedNodeDaemon(ctx context.Context, records []state.Record) (known bool, err error) {
	there, err := d.MPS.NodeDaemonWanted()
	if err != nil || !there || d.locked((*mpsDemand).nodeDaemonUsed) {
		return err == nil, err
	}
	if err := d.Claims.Known(ctx); err != nil {
		klog.FromContext(ctx).Info("It is not known whether a claim uses the MPS control daemon for all GPUs, so it goes on",
			"reason", err)
		return false, nil
	}
	byNodeDaemon := func(g claim.Grant) bool { return g.Isolation == isolation.NameMPSNode }
	if slices.ContainsFunc(records, func(r state.Record) bool { return slices.ContainsFunc(r.Grants, byNodeDaemon) }) {
		return true, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nodeDaemonUsed() {
		return true, nil
	}
	return true, d.MPS.WantNodeDaemon(false)
}

// stopUnused has the daemons ended where neither what the node asks for, nor what it publishes,
// nor a claim that is prepared uses MPS. Where that is not known they go on, and it returns
// false.
func (d *mpsDemand) stopUnused(ctx context.Context, records []state.Record) (known bool) {
	if d.locked((*mpsDemand).used) || d.locked((*mpsDemand).saidUnneeded) {
		return true
	}
	logger := klog.FromContext(ctx)
	if err := d.Claims.Known(ctx); err != nil {
		logger.Info("It is not known whether a claim uses MPS, so its daemons go on", "reason", err)
		return false
	}
	if slices.ContainsFunc(records, usesMPS) {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used() {
		return true
	}
	takeBack, err := d.MPS.SayUnneeded()
	if err != nil {
		logger.V(4).Info("The MPS control daemons go on although nothing uses them", "reason", err)
		return true
	}
	d.takeBack, d.started = takeBack, time.Time{}
	return true
}

// used says whether what the node asks for, or what it publishes, uses MPS, and nodeDaemonUsed
// the same of the daemon for all GPUs. They are to be locked.
func (d *mpsDemand) used() bool {
	return d.wanted || d.offered != nil && offersMPS(d.offered.offer)
}

func (d *mpsDemand) nodeDaemonUsed() bool {
	return d.nodeWanted || d.offered != nil && offersBy(d.offered.offer, isolation.NameMPSNode)
}

func (d *mpsDemand) saidUnneeded() bool { return d.takeBack != nil }

func (d *mpsDemand) locked(is func(*mpsDemand) bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return is(d)
}
