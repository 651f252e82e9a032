// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"slices"

	"k8s.io/klog/v2"
)

// nodeDaemon is the daemon for all GPUs, while one is kept running.
type nodeDaemon struct {
	// end ends it, nil if there is none, and ended is closed when it has.
	end   context.CancelCauseFunc
	ended <-chan struct{}
	// keeper has its GPUs.
	keeper *keeper
}

// errGPULost ends the daemon for all GPUs, which waits to be started, where some of them cannot be used any more.
var errGPULost = errors.New("it is started without the GPUs that cannot be used any more")

// errMoreGPUs ends the daemon for all GPUs where there are some that it does not serve.
var errMoreGPUs = errors.New("it is restarted for GPUs that were found since it was started")

// lookAtNodeDaemon sees to it that there is a daemon for all GPUs where one is wanted, and
// only there. The plugin says that no GPU is used before it withdraws the wish: one that is lost
// ends no daemon that has claims. It serves those GPUs that it finds when it starts. What is found later it serves
// when it has no claims or waits, for a daemon learns of no further GPU, and its clients end with it. One that cannot
// be started with a GPU, or serves nobody because of it, is started without it, so that the others serve.
func (s *supervisor) lookAtNodeDaemon() {
	if s.NodeControl == nil {
		return
	}
	logger := klog.FromContext(s.serving)
	wanted, err := s.nodeDaemonWanted()
	if err != nil {
		logger.Error(err, "It is not known whether a daemon for all GPUs is wanted, so none is started or ended")
		return
	}
	usable := s.usable()
	if s.node.end != nil {
		switch {
		case !wanted && !s.nodeDaemonUsed(gpuUses.guarded):
			s.endNodeDaemon(errNodeIdle)
		case wanted && len(usable) > 0 && s.nodeDaemonHindered() && s.nodeDaemonLost() && s.nodeDaemonReplaceable():
			s.endNodeDaemon(errGPULost)
		case wanted && s.node.keeper.lacks(usable) && s.nodeDaemonReplaceable():
			s.endNodeDaemon(errMoreGPUs)
		default:
			return
		}
	}
	if !wanted || len(usable) == 0 {
		return
	}
	opts := s.Options
	opts.Dir, opts.Control = s.Dir.OfNode(), s.NodeControl
	ctx, end := context.WithCancelCause(s.serving)
	ended := make(chan struct{})
	k := newKeeper(opts, usable...)
	s.node = nodeDaemon{end: end, ended: ended, keeper: k}
	s.wg.Go(func() {
		defer close(ended)
		if err := k.run(klog.NewContext(ctx, logger.WithValues("uuids", k.devices))); err != nil {
			s.fail(err)
		}
	})
}

// usable are the GPUs that can be used as a whole, as they were last read.
func (s *supervisor) usable() []servedGPU {
	var usable []servedGPU
	for _, gpu := range s.gpus {
		if s.reads(gpu.uuid) {
			usable = append(usable, gpu)
		}
	}
	return usable
}

// lacks reports whether the daemon serves not all of the GPUs.
func (k *keeper) lacks(gpus []servedGPU) bool {
	return slices.ContainsFunc(gpus, func(c servedGPU) bool {
		return !slices.ContainsFunc(k.gpus, func(own *served) bool { return own.uuid == c.uuid })
	})
}

// nodeDaemonHindered reports whether the daemon for all GPUs cannot be started, or be used, now.
func (s *supervisor) nodeDaemonHindered() bool {
	return s.node.keeper != nil && (s.node.keeper.waits.Load() || s.node.keeper.closed.Load())
}

// nodeDaemonLost reports whether it has a GPU that was in neither of the last two readings: in one alone it may be
// missing for a moment.
func (s *supervisor) nodeDaemonLost() bool {
	return slices.ContainsFunc(s.node.keeper.gpus, func(own *served) bool {
		return !s.reads(own.uuid) && !has(s.foundBefore, own.uuid)
	})
}

// nodeDaemonReplaceable reports whether nothing ends with it, since it waits or has no claims: not while it is not
// known what the GPUs are used for, when they all have to stay closed.
func (s *supervisor) nodeDaemonReplaceable() bool {
	return !s.nodeDaemonUsed(func(uses gpuUses) bool { return uses.claimed() && !s.node.keeper.waits.Load() })
}

// nodeDaemonWanted reports whether there is to be such a daemon: where the plugin says so, or
// where a supervisor that was killed has left GPUs to be put back, which can be read.
func (s *supervisor) nodeDaemonWanted() (bool, error) {
	wanted, err := s.Dir.NodeDaemonWanted()
	if err != nil || wanted || s.node.end != nil {
		return wanted, err
	}
	left, err := s.Dir.OfNode().Changed()
	return slices.ContainsFunc(left, s.reads), err
}

func (s *supervisor) endNodeDaemon(why error) {
	klog.FromContext(s.serving).Info("The MPS control daemon for all GPUs ends", "reason", why)
	s.node.end(why)
	<-s.node.ended
	s.node = nodeDaemon{}
}

// nodeDaemonUsed reports whether the daemon for all GPUs is used like that, or may be.
func (s *supervisor) nodeDaemonUsed(like func(gpuUses) bool) bool {
	uses, err := s.node.keeper.knownUses()
	return err != nil || like(uses)
}
