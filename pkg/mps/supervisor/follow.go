// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
)

// secure brings the card's compute mode in line with its use before its daemon starts. It
// waits for as long as that cannot be, and says why.
func (k *keeper) secure(ctx context.Context) error {
	for {
		err := k.trySecure(ctx)
		if err == nil {
			return nil
		}
		if err := k.sayIfNew(ctx, mps.Down, err.Error()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-k.nudges:
		case <-k.Clock.After(lookInterval):
		}
	}
}

func (k *keeper) trySecure(ctx context.Context) error {
	if err := k.guard.probe(ctx); err != nil {
		return err
	}
	use, err := k.Dir.Use(k.uuid)
	if err != nil {
		return err
	}
	if !use.Guarded() {
		return k.guard.release(ctx)
	}
	if k.shutOut {
		if err := k.guard.strangers(ctx); err != nil {
			return err
		}
	}
	return k.guard.take(ctx)
}

// errUseGone is that a file is gone which nobody removes but by mistake.
var errUseGone = errors.New("what the plugin said that the GPU is used for was removed, as by a program that cleans " +
	"up in /run: the plugin says it again when it next publishes the GPUs")

// follow brings the card, whose daemon runs, in line with its use. What keeps others from
// the card for the moment is closed; the error is one with which the daemon cannot go on.
func (k *keeper) follow(ctx context.Context, daemon Daemon) (closed, err error) {
	if closed := k.guard.remember(ctx); closed != nil {
		return closed, nil
	}
	use, err := k.Dir.Use(k.uuid)
	if err == nil && use.Seq == 0 && k.use != nil && k.use.Seq > 0 {
		// Nobody takes it back that way. What runs goes on.
		err = errUseGone
	}
	if err != nil {
		return err, nil
	}
	if use.Guarded() {
		k.idle = idle{}
	}
	switch {
	case use.Guarded() && k.guard.fixed == nil && k.server == nil:
		closed, err = k.takeOver(ctx, daemon)
	case use.Guarded():
		closed = k.guard.keep(ctx)
	case k.server != nil:
		if k.idle.clients = k.clientsLeft(ctx); k.idle.clients != "" {
			return nil, nil
		}
		// Nobody is to come in before the last client's server has gone.
		k.guard.close(ctx)
		err = k.stopServer(ctx)
	}
	if closed != nil || err != nil {
		return closed, err
	}
	if !use.Guarded() && k.guard.held {
		if closed := k.guard.release(ctx); closed != nil {
			return closed, nil
		}
	}
	// A daemon that is silent is not to be killed for it.
	return k.limit(ctx, use), nil
}

// limit has the daemon hold processes to the largest share of the card.
func (k *keeper) limit(ctx context.Context, use mps.Use) error {
	if k.use != nil && *k.use == use {
		return nil
	}
	// Without claims the last limits stay: the next claim is likely to have the same.
	if use.Claimed && use.Limits != k.limits {
		commands, err := k.limitCommands(ctx, use.Limits)
		if err != nil {
			return err
		}
		answer, err := k.ask(ctx, commands)
		if err != nil {
			return err
		}
		k.limits = use.Limits
		klog.FromContext(ctx).V(2).Info("No process on the GPU gets more than its largest share", "limits", use.Limits,
			"answer", answer)
	}
	k.use = &use
	return nil
}

func (k *keeper) limitCommands(ctx context.Context, l mps.Limits) (string, error) {
	if k.server != nil {
		return limitCommands(l, []int{k.server.pid}), nil
	}
	// Where clients start it.
	servers, err := k.servers(ctx)
	return limitCommands(l, servers), err
}

// left brings the card in line with its use after the daemon has ended for good. As long
// as there are claims their containers may start programs, so the card stays closed, until
// the next supervisor opens it.
func (k *keeper) left(ctx context.Context) {
	unneeded := errors.Is(context.Cause(ctx), errUnneeded)
	ctx = context.WithoutCancel(ctx)
	use, err := k.Dir.Use(k.uuid)
	stays := use.Claimed && !unneeded
	if err == nil && !stays {
		err = k.guard.release(ctx)
	}
	if err != nil || stays {
		k.guard.close(ctx)
	}
	switch {
	case err != nil:
		klog.FromContext(ctx).Error(err, "The GPU's compute mode was not put back")
	case stays && k.guard.held:
		klog.FromContext(ctx).Info("The GPU stays closed until gpu-mps-supervisor runs again, for claims use it by MPS")
	}
}

// sayIfNew is say where that is not what everybody can read.
func (k *keeper) sayIfNew(ctx context.Context, state mps.State, reason string) error {
	s := k.status
	if k.said && state == s.State && reason == s.Reason && s.DriverEnforced == k.enforced() && s.InForce == k.limits &&
		ptr.Equal(s.Use, k.use) {
		return nil
	}
	return k.say(ctx, state, reason)
}

func (k *keeper) enforced() bool { return k.guard.probed && k.guard.fixed == nil }

// restore puts the compute mode of a card back on a node where nothing uses MPS.
func restore(ctx context.Context, opts Options, uuid string) error {
	device, err := opts.Device(ctx, uuid)
	if err != nil {
		return err
	}
	g := &guard{dir: opts.Dir, uuid: uuid, device: device, held: true}
	if err := g.release(ctx); err != nil {
		return fmt.Errorf("GPU %s: %w", uuid, err)
	}
	return nil
}
