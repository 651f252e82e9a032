// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"
)

const (
	// lookInterval is how soon the way to a daemon is open again for clients that
	// find it blocked. Those who start containers look for themselves
	// (mps.Dir.Check).
	lookInterval = 500 * time.Millisecond

	// askInterval is how often a daemon is asked whether it still answers. It is
	// not more often because each time takes a process, and because a daemon that
	// does not answer makes its new clients wait; it does not let them run
	// without limits.
	askInterval = 10 * time.Second

	// hungLimit is how long a daemon may be silent, or out of reach for good, before it
	// is killed, and with it its clients, which may get on without it. Nothing new is
	// started meanwhile. One that was asked in vain for another reason is not killed: it
	// may be the control program that is at fault, of another version after an
	// upgrade of the driver. Nor is one whose clients cannot be led to it at the
	// moment, as on a full file system.
	hungLimit = time.Minute
)

// watch returns when the daemon has ended, or had to be ended.
func (k *keeper) watch(ctx context.Context, daemon Daemon, pipes *pipes) error {
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, 1)
	asked, pending := k.Clock.Now(), false
	var h health
	h.looked(ctx, k.Clock.Now(), pipes)
	for {
		if err := h.hopeless(k.Clock.Now()); err != nil {
			return errors.Join(err, end(daemon))
		}
		if err := k.tell(ctx, &h); err != nil {
			return errors.Join(err, end(daemon))
		}
		select {
		case <-daemon.Done():
			return daemon.Err()
		case <-ctx.Done():
			return k.quit(ctx, daemon)
		case err := <-answers:
			pending = false
			h.heard(ctx, k.Clock.Now(), err)
		case <-k.Clock.After(lookInterval):
			h.looked(ctx, k.Clock.Now(), pipes)
			if pending || h.silence == nil && k.Clock.Since(asked) < askInterval {
				continue
			}
			k.boundLogs(ctx)
			asked, pending = k.Clock.Now(), true
			// Beside this loop, for an end is told at once.
			go func() {
				_, err := k.ask(asking, commandProbe)
				answers <- err
			}()
		}
	}
}

// tell says how the daemon is where that is not what everybody can read.
func (k *keeper) tell(ctx context.Context, h *health) error {
	state, reason := h.state()
	if k.said && state == k.status.State && reason == k.status.Reason {
		return nil
	}
	return k.say(ctx, state, reason)
}

func (k *keeper) boundLogs(ctx context.Context) {
	if err := boundLogs(k.Dir.LogDir(k.uuid)); err != nil {
		klog.FromContext(ctx).Error(err, "The MPS control daemon's logs could not be kept small")
	}
}
