// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	limitcalls "github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	nvmllimit "github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
)

// inventories tell what there is of GPUs: first whether their memory can be limited.
type inventories func(*prepare.Inventory)

func (f inventories) SetInventory(inv *prepare.Inventory) { f(inv) }

// look finds out whether memory can be limited on the machine's GPUs, and tells.
func (l *memoryLimits) look(ctx context.Context, m *gpu.Machine) (before isolation.KernelLimits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.last
	if l.machine = m; l.never {
		return before
	}
	l.last = l.detect(ctx, m)
	l.never = l.never || errors.Is(l.last.Err, nvmllimit.ErrUnsupported) || errors.Is(l.last.Err, errWithoutHook)
	l.last.Settled = l.never || len(m.GPUs) > 0 && !failed(l.last)
	klog.FromContext(ctx).V(1).Info("Looked whether the NVIDIA driver limits memory by control group", "gpus",
		l.last.Kinds,
		"not", l.last.Reasons, "err", l.last.Err)
	l.found(l.last)
	return before
}

var (
	errWithoutHook = errors.New("there is no hook for it (setting MEMORY_LIMIT_HOOK)")
	errHostMemory  = errors.New("the GPU has no memory of its own")
)

// failed says whether another look may find something else.
func failed(found isolation.KernelLimits) bool {
	for _, err := range found.Reasons {
		if !errors.Is(err, errHostMemory) && !errors.Is(err, nvmllimit.ErrUncounted) && !errors.Is(err, nvmllimit.ErrUnset) {
			return true
		}
	}
	return found.Err != nil
}

func (l *memoryLimits) detect(ctx context.Context, m *gpu.Machine) isolation.KernelLimits {
	out := isolation.KernelLimits{Kinds: map[string]memlimit.Kind{}, Reasons: map[string]error{}}
	if out.Err = l.detectNode(ctx, &out); out.Err != nil {
		return out
	}
	var gpus []gpu.GPU
	var calls []*limitcalls.Calls
	for _, g := range m.GPUs {
		if g.HostMemory {
			out.Reasons[g.UUID] = errHostMemory
			continue
		}
		if l.gpus[g.UUID] == nil {
			// It is kept also if nothing comes of it: a GPU that hangs is asked once.
			l.gpus[g.UUID] = &limitedGPU{calls: limitcalls.New("NVML", limitsCall)}
		}
		gpus, calls = append(gpus, g), append(calls, l.gpus[g.UUID].calls)
	}
	find := l.find
	found, errs := limitcalls.Each(ctx, calls, limitsCall, func(i int, doing func(string)) (limitedGPU, error) {
		doing("trying a memory limit")
		return l.detectGPU(find, gpus[i], out.Kubelet)
	})
	for i, g := range gpus {
		if errs[i] != nil {
			out.Reasons[g.UUID] = errs[i]
			continue
		}
		found[i].calls = calls[i]
		l.gpus[g.UUID], out.Kinds[g.UUID] = &found[i], found[i].Kind
	}
	return out
}

// detectNode finds what all GPUs need.
func (l *memoryLimits) detectNode(ctx context.Context, out *isolation.KernelLimits) error {
	if l.config.Hook == "" {
		return errWithoutHook
	}
	type library struct{ local, onHost string }
	found, err := limitcalls.Try(ctx, l.calls, "looking for the NVML library", func() (found library, err error) {
		found.local, found.onHost, err = l.options.Library()
		return found, err
	})
	if err != nil {
		return err
	}
	if l.find == nil {
		// It stays open for as long as this process lives; another driver takes another process.
		if l.find, err = limitcalls.Try(ctx, l.calls, "opening NVML for memory limits", func() (findGPU, error) {
			return l.open(found.local)
		}); err != nil {
			return err
		}
	}
	if l.config.CgroupRoot == memlimit.DefaultRoot {
		if err := memlimit.CheckRoot(l.host.Root); err != nil {
			l.never = true // until the node is started otherwise
			return err
		}
	}
	if out.Kubelet, err = l.pods.Root(); err != nil {
		return err
	}
	out.Library = found.onHost
	return l.hookRuns(ctx, found.onHost)
}

// findGPU finds a GPU by its UUID, first at its likely place in NVML's order.
type findGPU func(uuid string, likely int) (memlimit.GPU, error)

func openLimits(path string) (findGPU, error) {
	lib, err := nvmllimit.Open(path)
	if err != nil {
		return nil, err
	}
	return func(uuid string, likely int) (memlimit.GPU, error) { return lib.GPU(uuid, likely) }, nil
}

// detectGPU finds out who counts a GPU's memory.
func (l *memoryLimits) detectGPU(find findGPU, g gpu.GPU, kubelet string) (limitedGPU, error) {
	handle, err := find(g.UUID, g.Index)
	if err != nil {
		return limitedGPU{}, err
	}
	kind, err := l.host.Detect(handle, kubelet)
	return limitedGPU{Target: memlimit.Target{UUID: g.UUID, Kind: kind, MemoryMiB: g.MemoryMiB},
		handle: handle}, err
}
