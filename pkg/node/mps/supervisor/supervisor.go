// SPDX-License-Identifier: Apache-2.0

// Package supervisor keeps one MPS control daemon running for each of the
// node's cards, or one for all of them where that is wanted, and tells everybody
// what became of it, in a directory on the host (mps.Dir).
//
// One daemon per card, not per claim: two daemons on one card halve each other
// (measured on an H200). When a daemon is dead, a CUDA program that was sent to
// it runs outside of MPS, without any limit, and does not know. So what is said
// about a daemon is said at once, and a supervisor that ends takes its daemons
// with it and lets go of the directory, by which everybody sees that nothing it
// said holds any more.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/beat"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// rereadInterval is how often the cards are read again while there are none, or
// some that cannot be used.
const rereadInterval = time.Minute

// idleInterval is how often it is looked whether anything uses MPS where nothing does. That something does
// again is told: only the loss of the directory is not.
const idleInterval = 10 * time.Second

// Options are what a supervisor works with. All fields but NodeControl are needed.
type Options struct {
	Dir mps.Dir
	// Read reads the node's cards. It may be slow, and it may fail; with ErrStale for as
	// long as this process lives.
	Read func(ctx context.Context) (*gpu.Machine, error)
	// Device is a card of the last reading. It is good for as long as this process lives.
	Device  func(ctx context.Context, uuid string) (Device, error)
	Control Control
	// NodeControl runs the daemon for all cards, in Dir.OfNode; nil where there is never one.
	NodeControl Control
	Clock       clock.Clock
}

// ErrStale is that nothing but a new process can read the cards, as after the driver was
// replaced.
var ErrStale = errors.New("gpu-mps-supervisor has to be started anew")

// Run keeps the daemons, while anything may use them, until the context ends, and stops
// them then, which ends
// their clients. An error is one that trying again within the process would not
// repair: another supervisor runs, or the directory cannot be written.
func Run(ctx context.Context, opts Options) (err error) {
	release, err := opts.Dir.Hold()
	if err != nil {
		return fmt.Errorf("%w: it has to be a directory of the host that this process may write, and that no other "+
			"supervisor uses", err)
	}
	defer func() {
		if releaseErr := release(); err == nil {
			err = releaseErr
		}
	}()
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &supervisor{Options: opts, fail: cancel}
	s.run(running)
	s.wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(running)
}

type supervisor struct {
	Options
	wg   sync.WaitGroup
	kept []card // that have a daemon
	fail context.CancelCauseFunc
	// node is the daemon for all cards.
	node nodeDaemon
	// dismiss ends the daemons; nil while there are none.
	dismiss context.CancelCauseFunc
	// serving is the context of the daemons' keepers.
	serving context.Context
	// read is when the cards are to be read next; never if it is zero.
	read time.Time
	told []gpu.Fault // as they were last
	// restored is when compute modes were last put back that an earlier supervisor left.
	restored time.Time
	// needed tells that something uses MPS again; nil if nobody waits for that.
	needed chan error
}

// card is one that was read.
type card struct {
	uuid   string
	device Device
}

func (s *supervisor) keeps(uuid string) bool {
	return slices.ContainsFunc(s.kept, func(c card) bool { return c.uuid == uuid })
}

// errUnneeded ends daemons that nothing uses.
var errUnneeded = errors.New("nothing on this node uses MPS")

func (s *supervisor) run(ctx context.Context) {
	for ctx.Err() == nil {
		s.look(ctx)
		if s.dismiss != nil {
			select {
			case <-ctx.Done():
			case <-beat.After(s.Clock, lookInterval):
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-s.Clock.After(idleInterval):
		case <-s.awaitNeed():
			// Where it was an error, the look has it, too.
			s.needed = nil
		}
	}
}

// awaitNeed tells when something uses MPS.
func (s *supervisor) awaitNeed() <-chan error {
	if s.needed == nil {
		needed := make(chan error, 1)
		s.needed = needed
		go func() { needed <- s.Dir.AwaitNeeded() }()
	}
	return s.needed
}

// look sees to it that there are daemons where something may use them, and only there.
func (s *supervisor) look(ctx context.Context) {
	logger := klog.FromContext(ctx)
	needed, err := s.Dir.Needed()
	if err != nil && s.dismiss == nil {
		logger.Error(err, "It is not known whether anything uses MPS, so its daemons run")
	}
	now := s.Clock.Now()
	switch {
	case needed && s.dismiss == nil:
		s.serving, s.dismiss = context.WithCancelCause(ctx)
		s.read = now
	case !needed && s.dismiss != nil:
		logger.Info("Nothing on this node uses MPS any more, its daemons end")
		s.dismiss(errUnneeded)
		s.wg.Wait()
		s.serving, s.dismiss = nil, nil
		s.kept, s.node = nil, nodeDaemon{}
	case !needed && (s.restored.IsZero() || now.Sub(s.restored) >= rereadInterval):
		s.restored = now
		err := s.restore(ctx)
		if errors.Is(err, ErrStale) {
			// It ends no client.
			s.fail(err)
			return
		}
		if err != nil {
			logger.Error(err, "The compute mode of GPUs was not put back, will try again", "after", rereadInterval)
		}
	}
	if s.dismiss == nil {
		return
	}
	if !s.read.IsZero() && !now.Before(s.read) {
		s.read = time.Time{}
		if next := s.refresh(s.serving); next > 0 {
			s.read = s.Clock.Now().Add(next)
		}
	}
	s.lookAtNodeDaemon()
}

// restore puts the compute modes back that are not yet, where nothing uses MPS: a
// supervisor that was killed cannot have done it. Without any the driver is not asked.
func (s *supervisor) restore(ctx context.Context) error {
	var errs []error
	read := false
	for _, dir := range []mps.Dir{s.Dir, s.Dir.OfNode()} {
		uuids, err := dir.Changed()
		if err != nil {
			return err
		}
		if len(uuids) > 0 && !read {
			if _, err := s.Read(ctx); err != nil {
				return err
			}
			read = true
		}
		for _, uuid := range uuids {
			errs = append(errs, restore(ctx, s.Options, dir, uuid))
		}
	}
	return errors.Join(errs...)
}

// refresh reads the cards, sees to those that are new, and says after how long
// to do so again; 0 for never.
//
// A daemon that runs is left alone, whatever becomes of its card: to stop it
// would end its clients, and a card that is really lost ends them by itself.
func (s *supervisor) refresh(ctx context.Context) time.Duration {
	logger := klog.FromContext(ctx)
	machine, err := s.Read(ctx)
	if errors.Is(err, ErrStale) && len(s.kept) == 0 {
		// It ends no client.
		s.fail(err)
		return 0
	}
	if err != nil {
		logger.Error(err, "The node's GPUs cannot be read, will try again", "after", rereadInterval)
		return rereadInterval
	}
	for _, fault := range machine.Faults {
		if slices.Contains(s.told, fault) {
			continue
		}
		logger.Info("A GPU gets no MPS control daemon", "index", fault.Index, "uuid", fault.UUID, "reason", fault.Reason,
			"message", fault.Message)
	}
	s.told = machine.Faults
	for _, found := range machine.GPUs {
		if s.keeps(found.UUID) {
			continue
		}
		device, err := s.Device(ctx, found.UUID)
		if err != nil {
			logger.Error(err, "A GPU gets no MPS control daemon yet", "uuid", found.UUID)
			return rereadInterval
		}
		kept := card{found.UUID, device}
		s.kept = append(s.kept, kept)
		k := newKeeper(s.Options, kept)
		s.wg.Go(func() {
			if err := k.run(klog.NewContext(ctx, logger.WithValues("gpu", found.Index, "uuid", found.UUID))); err != nil {
				s.fail(err)
			}
		})
	}
	// One in MIG mode is whole again when an administrator says so.
	if len(machine.Faults)+len(machine.Partitioned) > 0 || len(machine.GPUs) == 0 {
		return rereadInterval
	}
	return 0
}
