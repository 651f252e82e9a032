// SPDX-License-Identifier: Apache-2.0

package limitwatch

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	limitcalls "github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	nvmllimit "github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
)

// Look finds out whether memory can be limited on the machine's GPUs, tells Found, and returns what was known before.
// It waits for a driver that does not answer for some seconds at most.
func (l *Watch) Look(ctx context.Context, m *gpu.Machine) (before isolation.KernelLimits) {
	l.looking.Lock()
	defer l.looking.Unlock()
	l.mu.Lock()
	before, l.machine = l.last, m
	never := l.never
	l.mu.Unlock()
	if never {
		return before
	}
	found := l.detect(ctx, m)
	never = errors.Is(found.Err, nvmllimit.ErrUnsupported) || errors.Is(found.Err, errWithoutHook) ||
		errors.As(found.Err, &rootError{})
	found.Settled = never || len(m.GPUs) > 0 && !failed(found)
	l.mu.Lock()
	l.last, l.never = found, never
	l.mu.Unlock()
	klog.FromContext(ctx).V(1).Info("Looked whether the NVIDIA driver limits memory by control group", "gpus",
		found.Kinds, "not", found.Reasons, "err", found.Err)
	l.Found(found)
	return before
}

var (
	errWithoutHook = errors.New("there is no hook for it (setting MEMORY_LIMIT_HOOK)")
	errHostMemory  = errors.New("the GPU has no memory of its own")
)

// rootError is about the node's control groups. It stays until the node is started otherwise.
type rootError struct{ error }

// failed reports whether another look may find something else.
func failed(found isolation.KernelLimits) bool {
	for _, err := range found.Reasons {
		if !errors.Is(err, errHostMemory) && !errors.Is(err, nvmllimit.ErrUncounted) && !errors.Is(err, nvmllimit.ErrUnset) {
			return true
		}
	}
	return found.Err != nil
}

func (l *Watch) detect(ctx context.Context, m *gpu.Machine) isolation.KernelLimits {
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
		gpus, calls = append(gpus, g), append(calls, l.callsOf(g.UUID))
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
		l.mu.Lock()
		l.gpus[g.UUID] = &found[i]
		l.mu.Unlock()
		out.Kinds[g.UUID] = found[i].Kind
	}
	return out
}

// callsOf bound what concerns the GPU. They are kept also if nothing comes of it: a GPU that hangs is asked once.
func (l *Watch) callsOf(uuid string) *limitcalls.Calls {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gpus[uuid] == nil {
		l.gpus[uuid] = &limitedGPU{calls: limitcalls.New("NVML", limitsCall)}
	}
	return l.gpus[uuid].calls
}

// detectNode finds what all GPUs need.
func (l *Watch) detectNode(ctx context.Context, out *isolation.KernelLimits) error {
	if l.Config.Hook == "" {
		return errWithoutHook
	}
	type library struct{ local, onHost string }
	found, err := limitcalls.Try(ctx, l.calls, "looking for the NVML library", func() (found library, err error) {
		found.local, found.onHost, err = l.Library.Library()
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
	if l.Config.CgroupRoot == memlimit.DefaultRoot {
		if err := memlimit.CheckRoot(l.host.Root); err != nil {
			return rootError{err}
		}
	}
	if out.Kubelet, err = l.Pods.Root(); err != nil {
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
func (l *Watch) detectGPU(find findGPU, g gpu.GPU, kubelet string) (limitedGPU, error) {
	handle, err := find(g.UUID, g.Index)
	if err != nil {
		return limitedGPU{}, err
	}
	kind, err := l.host.Detect(handle, kubelet)
	return limitedGPU{Target: memlimit.Target{UUID: g.UUID, Kind: kind, MemoryMiB: g.MemoryMiB},
		handle: handle}, err
}
