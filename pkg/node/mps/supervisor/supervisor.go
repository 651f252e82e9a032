// SPDX-License-Identifier: Apache-2.0

// Package supervisor keeps one MPS control daemon running for each of the
// node's GPUs, or one for all of them where that is wanted, and tells everybody
// what became of it, in a directory on the host (mps.Dir).
//
// One daemon per GPU, not per claim: two daemons on one GPU halve each other
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

// rereadInterval is how often the GPUs are read again while there are none, or
// some that cannot be used.
const rereadInterval = time.Minute

// confirmInterval is how soon they are read again where one of them was missing, as while it is reset.
const confirmInterval = 5 * time.Second

const (
	// idleInterval is how often it is looked whether anything uses MPS where nothing does. That something does
	// again is told: only the loss of the directory is not.
	idleInterval = 10 * time.Second
	// restartGrace is how long no daemon is started after the last plugin that had declared the node idle has
	// ended. The next one declares what holds then, some seconds later. One of an earlier version that uses MPS
	// does not, so its daemons come after that time.
	restartGrace = time.Minute
)

// Options are what a supervisor works with. All fields but NodeControl are needed.
type Options struct {
	Dir mps.Dir
	// Read reads the node's GPUs. It may be slow, and it may fail; with ErrStale for as
	// long as this process lives.
	Read func(ctx context.Context) (*gpu.Machine, error)
	// Device is a GPU of the last reading. It is good for as long as this process lives.
	Device  func(ctx context.Context, uuid string) (Device, error)
	Control Control
	// NodeControl runs the daemon for all GPUs, in Dir.OfNode; nil where there is never one.
	NodeControl Control
	// Describe says what is known of a client, and KernelLog is what the kernel has logged.
	Describe  func(pid int) mps.Client
	KernelLog func() (string, error)
	Clock     clock.Clock
}

// ErrStale is that nothing but a new process can read the GPUs, as after the driver was
// replaced.
var ErrStale = errors.New("gpu-mps-supervisor has to be restarted")

// Run keeps the daemons, while anything may use them, until the context ends. It stops them
// then, and with them their clients. Its error is one that only a new process can repair, or
// none: another supervisor runs, or the directory cannot be written.
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
	fail context.CancelCauseFunc
	// GPUs are those that have a daemon.
	gpus []servedGPU
	// node is the daemon for all GPUs.
	node nodeDaemon
	// stopDaemons ends the daemons; nil while there are none.
	stopDaemons context.CancelCauseFunc
	// serving is the context of the daemons' keepers.
	serving context.Context
	// read is when the GPUs are to be read next; never if it is zero.
	read time.Time
	// found are the GPUs that can be used as a whole, as they were last read, foundBefore those of the reading before,
	// and logged the faults that the log has.
	found, foundBefore []gpu.GPU
	logged             []gpu.Fault
	// restored is when it was last tried to put back the compute modes that an earlier supervisor had set.
	restored time.Time
	// declared is what plugins declared at the last look. idleAt is when that was last mps.Idle; zero if
	// daemons were needed since.
	declared mps.Declaration
	idleAt   time.Time
	// idleEnds tells that no plugin declares the node idle any more; nil if nobody waits for that.
	idleEnds chan error
}

// GPU is one that was read.
type servedGPU struct {
	uuid   string
	device Device
}

func (s *supervisor) serves(uuid string) bool {
	return slices.ContainsFunc(s.gpus, func(c servedGPU) bool { return c.uuid == uuid })
}

// reads reports whether the GPU was there, and could be used, when they were last read.
func (s *supervisor) reads(uuid string) bool { return has(s.found, uuid) }

func has(gpus []gpu.GPU, uuid string) bool {
	return slices.ContainsFunc(gpus, func(g gpu.GPU) bool { return g.UUID == uuid })
}

// errNodeIdle ends daemons that nothing uses.
var errNodeIdle = errors.New("nothing on this node uses MPS")

func (s *supervisor) run(ctx context.Context) {
	for ctx.Err() == nil {
		s.look(ctx)
		if s.stopDaemons != nil || s.declared == mps.Undeclared {
			select {
			case <-ctx.Done():
			case <-beat.After(s.Clock, lookInterval):
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-s.Clock.After(idleInterval):
		case <-s.awaitIdleEnd():
			// Where it was an error, the look has it, too.
			s.idleEnds = nil
		}
	}
}

// awaitIdleEnd tells when no plugin declares the node idle any more.
func (s *supervisor) awaitIdleEnd() <-chan error {
	if s.idleEnds == nil {
		ends := make(chan error, 1)
		s.idleEnds = ends
		go func() { ends <- s.Dir.AwaitIdleEnd() }()
	}
	return s.idleEnds
}

// needed reports whether there are to be daemons. Clients outlive plugins, so there are where no plugin declares
// anything. A plugin that ended while the node was idle left no clients, and the next one declares
// mps.InUse before it prepares a claim: until then there need not be any.
func (s *supervisor) needed(ctx context.Context, now time.Time) bool {
	var err error
	s.declared, err = s.Dir.Declared()
	if err != nil && s.stopDaemons == nil {
		klog.FromContext(ctx).Error(err, "It is not known whether anything uses MPS, so its daemons run")
	}
	switch {
	case s.declared == mps.Idle:
		s.idleAt = now
		return false
	case s.declared == mps.Undeclared && err == nil && now.Sub(s.idleAt) < restartGrace:
		return false
	}
	s.idleAt = time.Time{}
	return true
}

// look sees to it that there are daemons where something may use them, and only there.
func (s *supervisor) look(ctx context.Context) {
	logger := klog.FromContext(ctx)
	now := s.Clock.Now()
	needed := s.needed(ctx, now)
	switch {
	case needed && s.stopDaemons == nil:
		logger.V(2).Info("MPS control daemons are needed", "declared", s.declared)
		s.serving, s.stopDaemons = context.WithCancelCause(ctx)
		s.read = now
	case !needed && s.stopDaemons != nil:
		logger.Info("Nothing on this node uses MPS any more, its daemons end")
		s.stopDaemons(errNodeIdle)
		s.wg.Wait()
		s.serving, s.stopDaemons = nil, nil
		s.gpus, s.node = nil, nodeDaemon{}
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
	if s.stopDaemons == nil {
		return
	}
	if s.read.IsZero() && s.nodeDaemonHindered() {
		// It may be for a GPU that is lost.
		s.read = now
	}
	if !s.read.IsZero() && !now.Before(s.read) {
		s.read = time.Time{}
		if next := s.refresh(s.serving); next > 0 {
			s.read = s.Clock.Now().Add(next)
		}
	}
	s.lookAtNodeDaemon()
}

// restore puts back the compute modes that a supervisor which was killed has left, where nothing
// uses MPS. It asks the driver only if there are any.
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

// refresh reads the GPUs, starts daemons for new ones, and returns after how long to
// do so again; 0 for never.
//
// It stops no daemon, whatever becomes of its GPU: that would end its clients, and a GPU
// that is lost ends them by itself.
func (s *supervisor) refresh(ctx context.Context) time.Duration {
	logger := klog.FromContext(ctx)
	machine, err := s.Read(ctx)
	if errors.Is(err, ErrStale) && len(s.gpus) == 0 {
		// It ends no client.
		s.fail(err)
		return 0
	}
	if err != nil {
		logger.Error(err, "The node's GPUs cannot be read, will try again", "after", rereadInterval)
		return rereadInterval
	}
	for _, fault := range machine.Faults {
		if slices.Contains(s.logged, fault) {
			continue
		}
		logger.Info("A GPU gets no MPS control daemon", "index", fault.Index, "uuid", fault.UUID, "reason", fault.Reason,
			"message", fault.Message)
	}
	s.found, s.foundBefore, s.logged = machine.GPUs, s.found, machine.Faults
	for _, found := range machine.GPUs {
		if s.serves(found.UUID) {
			continue
		}
		device, err := s.Device(ctx, found.UUID)
		if err != nil {
			logger.Error(err, "A GPU gets no MPS control daemon yet", "uuid", found.UUID)
			return rereadInterval
		}
		kept := servedGPU{found.UUID, device}
		s.gpus = append(s.gpus, kept)
		k := newKeeper(s.Options, kept)
		s.wg.Go(func() {
			if err := k.run(klog.NewContext(ctx, logger.WithValues("gpu", found.Index, "uuid", found.UUID))); err != nil {
				s.fail(err)
			}
		})
	}
	if slices.ContainsFunc(s.foundBefore, func(g gpu.GPU) bool { return !s.reads(g.UUID) }) {
		return confirmInterval
	}
	// One in MIG mode is whole again when an administrator says so.
	if len(machine.Faults)+len(machine.Partitioned) > 0 || len(machine.GPUs) == 0 || len(machine.GPUs) < len(s.gpus) ||
		s.nodeDaemonHindered() {
		return rereadInterval
	}
	return 0
}
