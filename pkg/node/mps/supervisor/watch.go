// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/beat"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
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
	answers := make(chan answer, 1)
	asked, pending, news := k.Clock.Now(), false, false
	k.clients = clients{fault: k.clients.fault, logged: -1, seen: map[int]mps.Client{}}
	var observed daemonState
	// Clients find the daemon before there is a server: without it they would ask for
	// contexts of their own, in the moment in which the first who asks gets one.
	observed.openPipes(ctx, k.Clock.Now(), pipes)
	closed, err := k.reconcile(ctx, daemon)
	if err != nil {
		return errors.Join(err, k.end(daemon))
	}
	observed.reconciled(ctx, closed)
	if closed == nil {
		// It serves, whatever became of the one before.
		k.faultOver(ctx)
	}
	for {
		if err := observed.fatal(k.Clock.Now()); err != nil {
			return errors.Join(err, k.end(daemon))
		}
		state, reason := observed.state()
		switch {
		case k.clients.faulty():
			state, reason = mps.Down, k.clients.fault.Tell(mps.Client.String)
		case state == mps.Ready:
			reason = k.draining.clients
		}
		if err := k.updateStatus(ctx, state, reason); err != nil {
			return errors.Join(err, k.end(daemon))
		}
		look := false
		select {
		case <-daemon.Gone():
			return k.gone(ctx, daemon)
		case <-k.serverEnded():
			k.gpus.close(ctx)
			return k.down(ctx, daemon, fmt.Errorf("the GPU's MPS server, process %d, has ended, and with it its clients",
				k.server.pid))
		case <-ctx.Done():
			return k.quit(ctx, daemon)
		case a := <-answers:
			pending = false
			observed.answered(ctx, k.Clock.Now(), a.err)
			if a.err == nil {
				k.sawClients(ctx, a)
			}
			if err := k.pastFault(); err != nil {
				return k.down(ctx, daemon, err)
			}
		case <-k.useChanged:
		case <-beat.After(k.Clock, lookInterval):
			look = true
		}
		// A command that is on its way may say the opposite.
		if !pending && ctx.Err() == nil {
			closed, err := k.reconcile(ctx, daemon)
			if err != nil {
				return k.down(ctx, daemon, err)
			}
			observed.reconciled(ctx, closed)
		}
		if !look {
			continue
		}
		observed.openPipes(ctx, k.Clock.Now(), pipes)
		news = k.logGrew() || news || k.clients.faulty() || observed.silence != nil
		if pending || !news && k.Clock.Since(asked) < askInterval {
			continue
		}
		k.boundLogs(ctx)
		asked, pending, news = k.Clock.Now(), true, false
		var server int
		var limits string
		if k.server != nil {
			// Its clients can change them.
			server, limits = k.server.pid, limitCommands(k.inForce(), []int{k.server.pid})
		}
		// Beside this loop, for an end is told at once.
		go func() { answers <- k.probe(asking, server, limits) }()
	}
}

func (k *keeper) boundLogs(ctx context.Context) {
	if err := boundLogs(k.Dir.LogDir(k.devices)); err != nil {
		klog.FromContext(ctx).Error(err, "The MPS control daemon's logs could not be kept small")
	}
}
