// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// Device is a GPU, as the driver answers for it (pkg/gpu/nvml, or a fake).
type Device interface {
	// ComputeMode and SetComputeMode are gpu.ErrComputeModeFixed where the mode cannot be
	// set.
	ComputeMode(ctx context.Context) (gpu.ComputeMode, error)
	SetComputeMode(ctx context.Context, mode gpu.ComputeMode) error
	// Processes are those that have contexts on the GPU.
	Processes(ctx context.Context) ([]int, error)
}

// guard has the kernel driver keep programs from a GPU that are no clients of its MPS
// server, by the GPU's compute mode. While it holds the GPU, that is PROHIBITED as long
// as there is no server, and EXCLUSIVE_PROCESS from the moment at which one is told to
// make the GPU's only context: until it has, another program could. The mode that was
// found is in a file before it is changed, so that it is put back by whoever is there then.
type guard struct {
	dir    mps.Dir
	uuid   string
	device Device
	// fixed is why the compute mode cannot be set, nil if it can. Then nothing is held.
	fixed error
	// probed is whether that is known.
	probed bool
	// held is whether the guard has set the mode. found is the one before, should the file be
	// lost.
	held  bool
	found gpu.ComputeMode
	// beside is that others have some of the GPU (mps.Use). Then it is not taken; if it is held already, as
	// claims were there first, it is until these have ended. It may be set beside the other calls.
	beside atomic.Bool
}

// errForeign is that processes use the GPU which are no clients of MPS.
var errForeign = errors.New("processes use the GPU beside MPS")

// enforces reports whether the kernel driver can keep programs from the GPU, and is to.
func (g *guard) enforces() bool { return g.probed && g.canHold() }

// canHold reports whether the mode can be set, and may be.
func (g *guard) canHold() bool { return g.fixed == nil && (g.held || !g.beside.Load()) }

// probe finds out once whether the mode can be set, without a change.
func (g *guard) probe(ctx context.Context) error {
	if g.probed {
		return nil
	}
	now, err := g.device.ComputeMode(ctx)
	if err == nil {
		err = g.device.SetComputeMode(ctx, now)
	}
	if errors.Is(err, gpu.ErrComputeModeFixed) {
		klog.FromContext(ctx).Info("Only their environment keeps programs in MPS on this GPU", "reason", err)
		g.probed, g.fixed = true, err
		return nil
	}
	g.probed = err == nil
	return err
}

// take keeps every process from making contexts on the GPU. Contexts that are there stay, so it
// does not take a GPU with other processes than those of MPS: the error is errForeign.
func (g *guard) take(ctx context.Context, ofMPS ...int) error {
	if g.fixed != nil {
		return nil
	}
	if g.beside.Load() {
		return g.release(ctx)
	}
	if err := g.remember(ctx); err != nil {
		return err
	}
	found, known, err := g.dir.FoundMode(g.uuid)
	if err != nil {
		return err
	}
	if !known {
		if err := g.otherHolds(); err != nil {
			return err
		}
	}
	now, err := g.device.ComputeMode(ctx)
	if err != nil {
		return err
	}
	ours := known && (now == gpu.ComputeProhibited || now == gpu.ComputeExclusiveProcess)
	switch {
	case ours:
		// This supervisor has set it, or one that was killed. No process has a context, or one
		// has the only one: then the server will not start.
	case now == gpu.ComputeProhibited:
		return fmt.Errorf("the GPU's compute mode is %s, which gpu-mps-supervisor has not set: somebody wants nothing to "+
			"run on it; nvidia-smi --id=%s --compute-mode=DEFAULT changes that", now, g.uuid)
	default:
		if err := g.checkForeign(ctx, ofMPS...); err != nil {
			return err
		}
		if !known {
			found = now
			if err := g.dir.KeepFoundMode(g.uuid, found); err != nil {
				return err
			}
		}
		// No process makes a context from here on, but one may have since the check above.
		if err := g.device.SetComputeMode(ctx, gpu.ComputeProhibited); err != nil {
			return err
		}
		if err := g.checkForeign(ctx, ofMPS...); err != nil {
			return errors.Join(err, g.putBack(ctx, found))
		}
		klog.FromContext(ctx).Info("The GPU is for MPS alone", "computeModeFound", found)
	}
	g.held, g.found = true, found
	return g.set(ctx, gpu.ComputeProhibited)
}

// otherHolds reports that the GPU is still that of the other kind of daemon, as in the moment
// in which a node changes from one daemon per GPU to one for all, or back.
func (g *guard) otherHolds() error {
	_, known, err := g.dir.Other().FoundMode(g.uuid)
	if err == nil && known {
		err = errors.New("another MPS control daemon has the GPU until its last claim has ended")
	}
	return err
}

// remember writes the file with the mode that was found again, if it was lost: without it no
// other supervisor would put the mode back.
func (g *guard) remember(ctx context.Context) error {
	if !g.held {
		return nil
	}
	_, known, err := g.dir.FoundMode(g.uuid)
	if err != nil || known {
		return err
	}
	klog.FromContext(ctx).Info("The file with the compute mode that the GPU had was lost, it is written again",
		"computeModeFound", g.found)
	return g.dir.KeepFoundMode(g.uuid, g.found)
}

// open lets one process make contexts on a held GPU.
func (g *guard) open(ctx context.Context) error {
	if !g.held {
		return nil
	}
	return g.set(ctx, gpu.ComputeExclusiveProcess)
}

// keep sets the guard's mode again, where somebody else has changed it or the driver has lost it. A
// process that made a context meanwhile keeps it beside the server.
func (g *guard) keep(ctx context.Context) error {
	if !g.held {
		return nil
	}
	now, err := g.device.ComputeMode(ctx)
	if err != nil || now == gpu.ComputeExclusiveProcess {
		return err
	}
	klog.FromContext(ctx).Info("The GPU's compute mode was changed by somebody else, it is set again", "found", now)
	return g.set(ctx, gpu.ComputeExclusiveProcess)
}

// close keeps every process from making contexts on a held GPU. Call it as soon as the server
// may have ended.
func (g *guard) close(ctx context.Context) {
	if !g.held {
		return
	}
	if err := g.set(context.WithoutCancel(ctx), gpu.ComputeProhibited); err != nil {
		klog.FromContext(ctx).Error(err, "The GPU could not be closed while it has no MPS server: the first program that "+
			"uses it has all of it")
	}
}

// release puts back the mode that was found, unless that is done.
func (g *guard) release(ctx context.Context) error {
	if g.fixed != nil {
		return nil
	}
	found, known, err := g.dir.FoundMode(g.uuid)
	if !known && g.held {
		found, known, err = g.found, true, nil
	}
	if err != nil || !known {
		return err
	}
	now, err := g.device.ComputeMode(ctx)
	if err != nil {
		return err
	}
	if now != gpu.ComputeProhibited && now != gpu.ComputeExclusiveProcess {
		// Somebody else has set it, or the driver was reloaded: that stays.
		found = now
	}
	return g.putBack(ctx, found)
}

func (g *guard) putBack(ctx context.Context, found gpu.ComputeMode) error {
	if err := g.set(ctx, found); err != nil {
		return fmt.Errorf("put the GPU's compute mode back: %w", err)
	}
	g.held = false
	klog.FromContext(ctx).Info("The GPU's compute mode is what it was before MPS", "computeMode", found)
	return g.dir.ForgetFoundMode(g.uuid)
}

func (g *guard) set(ctx context.Context, mode gpu.ComputeMode) error {
	now, err := g.device.ComputeMode(ctx)
	if err != nil || now == mode {
		return err
	}
	return g.device.SetComputeMode(ctx, mode)
}

// checkForeign is an errForeign where processes have contexts on the GPU that are not of MPS, and may not be there.
func (g *guard) checkForeign(ctx context.Context, ofMPS ...int) error {
	if g.beside.Load() {
		return nil
	}
	pids, err := g.device.Processes(ctx)
	pids = slices.DeleteFunc(pids, func(pid int) bool { return slices.Contains(ofMPS, pid) })
	if err != nil || len(pids) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s: MPS cannot hold anybody to a share there until they have ended", errForeign, listed(pids))
}

// mostListed keeps a message short.
const mostListed = 5

func listed(pids []int) string {
	pids = slices.Sorted(slices.Values(pids))
	more := ""
	if len(pids) > mostListed {
		more = fmt.Sprintf(" and %d more", len(pids)-mostListed)
		pids = pids[:mostListed]
	}
	return "process " + strings.Trim(fmt.Sprint(pids), "[]") + more
}
