// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// served is a GPU that a keeper's daemon serves.
type served struct {
	uuid    string
	guard   *guard
	status  mps.Status
	written bool       // that everybody can read the status
	use     *mps.Use   // that the daemon is set up for; nil before it is
	limits  mps.Limits // of the GPU, as the daemon was told last
	// guarded is that the use was Guarded when it was last there.
	guarded atomic.Bool
}

// gpus are the GPUs of one daemon. Its server has a context on each: they are taken,
// opened and given back together, and one that cannot be keeps all of them closed.
type gpus []*served

// each calls a method of the guards for one GPU after the other, until one fails.
func (all gpus) each(ctx context.Context, do func(*guard, context.Context) error) error {
	for _, gpu := range all {
		if err := do(gpu.guard, all.context(ctx, gpu)); err != nil {
			return all.about(gpu, err)
		}
	}
	return nil
}

// context is one whose logs say which GPU they are about, where that is not clear.
func (all gpus) context(ctx context.Context, gpu *served) context.Context {
	if len(all) == 1 {
		return ctx
	}
	return klog.NewContext(ctx, klog.FromContext(ctx).WithValues("uuid", gpu.uuid))
}

// about says of which GPU an error is, where that is not clear.
func (all gpus) about(gpu *served, err error) error {
	if len(all) == 1 || err == nil {
		return err
	}
	return fmt.Errorf("GPU %s: %w", gpu.uuid, err)
}

func (all gpus) take(ctx context.Context, ofMPS ...int) error {
	return all.each(ctx, func(g *guard, ctx context.Context) error { return g.take(ctx, ofMPS...) })
}

func (all gpus) checkForeign(ctx context.Context, ofMPS ...int) error {
	return all.each(ctx, func(g *guard, ctx context.Context) error { return g.checkForeign(ctx, ofMPS...) })
}

// close does so at the same time: a GPU that hangs keeps no other one open.
func (all gpus) close(ctx context.Context) {
	var wg sync.WaitGroup
	for _, gpu := range all {
		wg.Go(func() { gpu.guard.close(all.context(ctx, gpu)) })
	}
	wg.Wait()
}

// release gives back all that can be.
func (all gpus) release(ctx context.Context) error {
	var errs []error
	for _, gpu := range all {
		errs = append(errs, all.about(gpu, gpu.guard.release(all.context(ctx, gpu))))
	}
	return errors.Join(errs...)
}

// held reports whether the mode of any is the guards'.
func (all gpus) held() bool {
	return slices.ContainsFunc(all, func(gpu *served) bool { return gpu.guard.held })
}

// canHold reports whether the mode of any can be set, and may be.
func (all gpus) canHold() bool {
	return slices.ContainsFunc(all, func(gpu *served) bool { return gpu.guard.canHold() })
}

// uses reads what the GPUs are used for, in their order.
func (k *keeper) uses() (gpuUses, error) {
	var out gpuUses
	for _, gpu := range k.gpus {
		use, err := k.Dir.Use(gpu.uuid)
		if err != nil {
			return nil, k.gpus.about(gpu, err)
		}
		if use.Seq > 0 {
			gpu.guarded.Store(use.Guarded())
			gpu.guard.beside.Store(use.Beside)
		}
		out = append(out, use)
	}
	return out, nil
}

// errUseGone is that a file is gone which nobody removes but by mistake.
var errUseGone = errors.New("what the plugin said that the GPU is used for was removed, as by a program that cleans " +
	"up in /run: the plugin says it again when it next publishes the GPUs")

// knownUses is uses, and errUseGone where that of a GPU was lost which is for MPS alone: no plugin
// withdraws it like that. It may be called beside run.
func (k *keeper) knownUses() (gpuUses, error) {
	uses, err := k.uses()
	for i, use := range uses {
		if use.Seq == 0 && k.gpus[i].guarded.Load() {
			return nil, errUseGone
		}
	}
	return uses, err
}

// gpuUses are what the GPUs of a daemon are used for.
type gpuUses []mps.Use

func (u gpuUses) guarded() bool { return slices.ContainsFunc(u, mps.Use.Guarded) }
func (u gpuUses) claimed() bool {
	return slices.ContainsFunc(u, func(use mps.Use) bool { return use.Claimed })
}

// limits are what the daemon is to hold processes to on each GPU, given what it does now. On
// a GPU without claims the last limit stays: the next claim is likely to have the same. The
// percentage of multiprocessors is that of a process on all its GPUs.
func (u gpuUses) limits(now []mps.Limits) []mps.Limits {
	out := slices.Clone(now)
	if !u.claimed() {
		return out
	}
	var percent int64
	for i, use := range u {
		if use.Claimed {
			out[i] = use.Limits
			percent = max(percent, use.ThreadPercent)
		}
	}
	for i := range out {
		out[i].ThreadPercent = percent
	}
	return out
}

// inForce are the limits that the daemon was told last, in the order of its GPUs.
func (k *keeper) inForce() []mps.Limits {
	var out []mps.Limits
	for _, gpu := range k.gpus {
		out = append(out, gpu.limits)
	}
	return out
}

// forgetUses is for when the daemon has ended: the next one has no limits yet.
func (k *keeper) forgetUses() {
	for _, gpu := range k.gpus {
		gpu.use, gpu.limits = nil, mps.Limits{}
	}
}

// setStatus writes the status of the daemon for each of its GPUs.
func (k *keeper) setStatus(ctx context.Context, state mps.State, reason string) error {
	for _, gpu := range k.gpus {
		if err := k.writeStatus(ctx, gpu, state, reason); err != nil {
			return err
		}
	}
	return nil
}

// updateStatus is setStatus for those GPUs whose status is another one.
func (k *keeper) updateStatus(ctx context.Context, state mps.State, reason string) error {
	for _, gpu := range k.gpus {
		s := gpu.status
		if gpu.written && state == s.State && reason == s.Reason && s.DriverEnforced == gpu.guard.enforces() &&
			s.InForce == gpu.limits && ptr.Equal(s.Use, gpu.use) && s.Fault == k.clients.fault {
			continue
		}
		if err := k.writeStatus(ctx, gpu, state, reason); err != nil {
			return err
		}
	}
	return nil
}

func (k *keeper) writeStatus(ctx context.Context, gpu *served, state mps.State, reason string) error {
	gpu.status = mps.Status{State: state, Reason: reason, Since: k.Clock.Now(), Restarts: k.restarts,
		DriverEnforced: gpu.guard.enforces(), Use: gpu.use, InForce: gpu.limits, Fault: k.clients.fault}
	if state == mps.Ready {
		gpu.status.Socket = k.socket
	}
	err := k.Dir.SetStatus(gpu.uuid, gpu.status)
	gpu.written = err == nil
	if gpu.written {
		return nil
	}
	klog.FromContext(ctx).Error(err, "The status of the MPS control daemon could not be written, it is taken away",
		"state", state)
	if forgetErr := k.Dir.Forget(gpu.uuid); forgetErr != nil {
		return statusError{errors.Join(err, forgetErr)}
	}
	return nil
}

// watchUse signals when the use of a GPU may have changed. Where files cannot be watched it
// does not, and claims are prepared more slowly: the use is looked at every lookInterval.
func watchUse(ctx context.Context, dir mps.Dir, gpus gpus) (useChanged <-chan struct{}, forget func()) {
	logger := klog.FromContext(ctx)
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		logger.Error(err, "What the GPU is used for cannot be watched")
		return nil, func() {}
	}
	forget = func() {
		if err := watcher.Close(); err != nil {
			logger.Error(err, "End watching what the GPU is used for")
		}
	}
	for _, gpu := range gpus {
		files := dir.Files(gpu.uuid)
		if err := errors.Join(os.MkdirAll(files, 0o755), watcher.Add(files)); err != nil {
			logger.Error(err, "What the GPU is used for cannot be watched")
			return nil, forget
		}
	}
	told := make(chan struct{}, 1)
	go func() {
		for event := range watcher.Events {
			if filepath.Base(event.Name) == mps.UseFile {
				signal.Send(told)
			}
		}
	}()
	go func() {
		for err := range watcher.Errors {
			logger.V(2).Info("Watching what the GPU is used for", "err", err)
		}
	}()
	return told, forget
}
