// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// awaitComputeMode has the GPU's compute mode be that of its use before its daemon starts. While
// that fails it waits, and the status says why.
func (k *keeper) awaitComputeMode(ctx context.Context) error {
	for {
		err := k.prepareComputeMode(ctx)
		k.waits.Store(err != nil)
		if err == nil {
			return nil
		}
		if err := k.updateStatus(ctx, mps.Down, err.Error()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-k.useChanged:
		case <-k.Clock.After(lookInterval):
		}
	}
}

func (k *keeper) prepareComputeMode(ctx context.Context) error {
	if err := k.gpus.each(ctx, (*guard).probe); err != nil {
		return err
	}
	uses, err := k.knownUses()
	if err != nil {
		return err
	}
	if !uses.guarded() {
		return k.gpus.release(ctx)
	}
	if k.foreignSeen {
		if err := k.gpus.checkForeign(ctx); err != nil {
			return err
		}
	}
	return k.gpus.take(ctx)
}

// reconcile brings the GPU, whose daemon runs, in line with its use. closed is why the GPU
// takes no clients for the moment; with an err the daemon cannot go on.
func (k *keeper) reconcile(ctx context.Context, daemon Daemon) (closed, err error) {
	defer func() { k.closed.Store(closed != nil) }()
	if closed := k.gpus.each(ctx, (*guard).remember); closed != nil {
		return closed, nil
	}
	uses, err := k.knownUses()
	if err != nil {
		// What runs goes on.
		return err, nil
	}
	if uses.guarded() {
		k.draining = draining{}
	}
	switch {
	case uses.guarded() && k.gpus.canHold() && k.server == nil:
		closed, err = k.takeOver(ctx, daemon)
		if errors.Is(err, context.DeadlineExceeded) {
			// The daemon is late. What it was told it may do yet, and the next look finds it done.
			closed, err = err, nil
		}
	case uses.guarded():
		closed = k.gpus.each(ctx, (*guard).keep)
	case k.server != nil:
		if k.draining.clients = k.clientsLeft(ctx); k.draining.clients != "" {
			return nil, nil
		}
		// Otherwise a program could start on the GPU before the server has ended.
		k.gpus.close(ctx)
		err = k.stopServer(ctx)
	}
	if closed != nil || err != nil {
		return closed, err
	}
	if !uses.guarded() && k.gpus.held() {
		if closed := k.gpus.release(ctx); closed != nil {
			return closed, nil
		}
	}
	// An error here closes the GPU: a daemon that does not answer is not killed for it.
	return k.limit(ctx, uses), nil
}

// limitFirst has the daemon limit its first clients, which may wait for it already: limits that
// it is told later are not for those who are there. The server that it will have has none of its
// own, so limit tells all of them again.
func (k *keeper) limitFirst(ctx context.Context) error {
	uses, err := k.knownUses()
	if err != nil {
		return err
	}
	commands := limitCommands(uses.limits(k.inForce()), nil)
	if commands == "" {
		return nil
	}
	// It has no clients yet that would be kept waiting.
	if _, err := k.askFor(ctx, startLimit, commands); err != nil {
		return fmt.Errorf("limit the first clients of the MPS control daemon: %w", err)
	}
	return nil
}

// limit has the daemon limit each process to the largest share of each GPU.
func (k *keeper) limit(ctx context.Context, uses gpuUses) error {
	now := k.inForce()
	limits := uses.limits(now)
	if !slices.Equal(limits, now) {
		commands, err := k.limitCommands(ctx, limits)
		if err != nil {
			return err
		}
		answer, err := k.ask(ctx, commands)
		if err != nil {
			return err
		}
		klog.FromContext(ctx).V(2).Info("No process gets more of a GPU than its largest share", "limits", limits,
			"answer", answer)
	}
	for i, gpu := range k.gpus {
		gpu.limits, gpu.use = limits[i], &uses[i]
	}
	return nil
}

func (k *keeper) limitCommands(ctx context.Context, limits []mps.Limits) (string, error) {
	if k.server != nil {
		return limitCommands(limits, []int{k.server.pid}), nil
	}
	// Clients may have started servers that the supervisor does not watch.
	servers, err := k.servers(ctx)
	return limitCommands(limits, servers), err
}

// finish brings the GPU in line with its use after the daemon has ended for good. A GPU
// with claims stays closed until the next supervisor opens it: their containers may start
// programs meanwhile.
func (k *keeper) finish(ctx context.Context) {
	nodeIdle := errors.Is(context.Cause(ctx), errNodeIdle)
	ctx = context.WithoutCancel(ctx)
	uses, err := k.knownUses()
	if nodeIdle || errors.Is(err, errUseGone) && k.gpus.each(ctx, (*guard).remember) != nil {
		// In a directory that was removed as well, nothing would tell the next supervisor to open the GPU again.
		uses, err = k.uses()
	}
	stays := uses.claimed() && !nodeIdle
	if err == nil && !stays {
		err = k.gpus.release(ctx)
	}
	if err != nil || stays {
		k.gpus.close(ctx)
	}
	switch {
	case err != nil:
		klog.FromContext(ctx).Error(err, "The GPU's compute mode was not put back")
	case stays && k.gpus.held():
		klog.FromContext(ctx).Info("The GPU stays closed until gpu-mps-supervisor runs again, for claims use it by MPS")
	}
}

// restore puts the compute mode of a GPU back on a node where nothing uses MPS.
func restore(ctx context.Context, opts Options, dir mps.Dir, uuid string) error {
	device, err := opts.Device(ctx, uuid)
	if err != nil {
		return err
	}
	g := &guard{dir: dir, uuid: uuid, device: device, held: true}
	if err := g.release(ctx); err != nil {
		return fmt.Errorf("GPU %s: %w", uuid, err)
	}
	return nil
}
