// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"

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

// errMoreGPUs ends the daemon for all GPUs where there are some that it does not serve.
var errMoreGPUs = errors.New("it is started anew for GPUs that were found since it was started")

// lookAtNodeDaemon sees to it that there is a daemon for all GPUs where one is wanted, and
// only there. The plugin says that no GPU is used before it withdraws the wish: one that is lost
// ends no daemon. It serves those GPUs that it finds when it starts. What is found later it serves
// when it has no claims, for a daemon learns of no further GPU, and its clients end with it.
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
	if s.node.end != nil {
		switch {
		case !wanted && !s.nodeDaemonUsed(gpuUses.guarded):
			s.endNodeDaemon(errNodeIdle)
		case wanted && len(s.node.keeper.gpus) < len(s.gpus) && !s.nodeDaemonUsed(gpuUses.claimed):
			s.endNodeDaemon(errMoreGPUs)
		default:
			return
		}
	}
	if !wanted || len(s.gpus) == 0 {
		return
	}
	opts := s.Options
	opts.Dir, opts.Control = s.Dir.OfNode(), s.NodeControl
	ctx, end := context.WithCancelCause(s.serving)
	ended := make(chan struct{})
	k := newKeeper(opts, s.gpus...)
	s.node = nodeDaemon{end: end, ended: ended, keeper: k}
	s.wg.Go(func() {
		defer close(ended)
		if err := k.run(klog.NewContext(ctx, logger.WithValues("uuids", k.devices))); err != nil {
			s.fail(err)
		}
	})
}

// nodeDaemonWanted says whether there is to be such a daemon: where the plugin says so, or
// where a supervisor that was killed has left GPUs to be put back.
func (s *supervisor) nodeDaemonWanted() (bool, error) {
	wanted, err := s.Dir.NodeDaemonWanted()
	if err != nil || wanted || s.node.end != nil {
		return wanted, err
	}
	left, err := s.Dir.OfNode().Changed()
	return len(left) > 0, err
}

func (s *supervisor) endNodeDaemon(why error) {
	klog.FromContext(s.serving).Info("The MPS control daemon for all GPUs ends", "reason", why)
	s.node.end(why)
	<-s.node.ended
	s.node = nodeDaemon{}
}

// nodeDaemonUsed says whether the daemon for all GPUs is used like that, or may be.
func (s *supervisor) nodeDaemonUsed(like func(gpuUses) bool) bool {
	uses, err := s.node.keeper.knownUses()
	return err != nil || like(uses)
}
