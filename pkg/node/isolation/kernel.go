// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/bounded"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
)

// KernelConfig says how the memory of containers is limited by the kernel. Paths are those of
// the host.
type KernelConfig struct {
	// Hook is the program gpu-memory-limit; empty to do without such limits.
	Hook string
	// CgroupRoot is where control groups of version 2 are mounted, Ledger a directory of the
	// plugin's.
	CgroupRoot, Ledger string
}

// KernelLimits is what a node's kernel can limit, as far as it was found out.
type KernelLimits struct {
	// Library is the NVML library on the host, Kubelet the control group of all pods, below
	// the root of control groups.
	Library, Kubelet string
	// Kinds says who counts the memory of each GPU that can be limited, by UUID. Of the others
	// Reasons says why they cannot be.
	Kinds   map[string]memlimit.Kind
	Reasons map[string]error
	// Err is why none can be, nil if it is a matter of each GPU.
	Err error
	// Settled says that it would be found again: nothing of it is a failure that may pass.
	Settled bool
}

// errNotLooked is for the time before it was found out.
var errNotLooked = errors.New("it was not looked yet whether the NVIDIA driver has memory limits by control group: " +
	"it is tried again by itself")

// kernelMemory limits the memory of containers on the GPUs on which the kernel can.
type kernelMemory struct {
	config Config
	found  atomic.Pointer[KernelLimits]
	// first is what was found first that is settled: a choice that changed by itself would close
	// GPUs, or mix two kinds of isolation.
	first atomic.Pointer[KernelLimits]
	// had are the GPUs, by UUID, whose memory the kernel could limit once.
	had sync.Map
}

// kind says who counts the GPU's memory; empty where it cannot be limited.
func (k *kernelMemory) kind(uuid string) memlimit.Kind {
	if k.check(uuid) != nil {
		return ""
	}
	return k.found.Load().Kinds[uuid]
}

// check reports why the memory of a container that starts now could not be limited on the GPU.
func (k *kernelMemory) check(uuid string) error {
	const prefix = "NVIDIA's driver offers no memory limits by control group (docs/kernel-limits.md#requirements): "
	switch found := k.found.Load(); {
	case found == nil:
		return errors.New(prefix + errNotLooked.Error())
	case found.Err != nil:
		return fmt.Errorf(prefix+"%w", found.Err)
	case found.Kinds[uuid] == "" && found.Reasons[uuid] != nil:
		return fmt.Errorf(prefix+"%w", found.Reasons[uuid])
	case found.Kinds[uuid] == "":
		return errors.New(prefix + "the GPU was not there when it was looked")
	default:
		return nil
	}
}

// everywhere reports whether the kernel could limit memory on all of the node's GPUs when that was
// known first. It is not known as long as looking has failed.
func (k *kernelMemory) everywhere() (all, known bool) {
	first := k.first.Load()
	if first == nil {
		return false, false
	}
	return first.Err == nil && len(first.Kinds) > 0 && len(first.Reasons) == 0, true
}

// missed says of a GPU whose memory cannot be limited now whether it could be before, or whether nobody knows since the
// driver did not answer yet. A claim is not to be prepared without: it would go without for its whole life.
func (k *kernelMemory) missed(uuid string) bool {
	if k.config.Kernel.Hook == "" {
		return false
	}
	first, found := k.first.Load(), k.found.Load()
	_, had := k.had.Load(uuid)
	switch {
	case had:
		return true
	case first != nil && (first.Err != nil || first.Reasons[uuid] != nil):
		return false // it has none for good
	case found == nil:
		return true
	default:
		// Another failure may last, as that of a hook which does not run on the host, and claims would wait for ever.
		return errors.Is(errors.Join(found.Err, found.Reasons[uuid]), bounded.ErrHung)
	}
}

// besideMPS reports whether the kernel limits memory beside MPS, as the mode's setting says, and who counts it: by Auto
// where it can, or could.
func (k *kernelMemory) besideMPS(m mode.Mode, uuid string) (held bool, kind memlimit.Kind) {
	kind = k.kind(uuid)
	switch k.config.settingOf(m).value {
	case mode.IsolationKernel:
		return true, kind
	case "", Auto:
		return kind != "" || k.missed(uuid), kind
	default:
		return false, ""
	}
}

// limitMiB is what the containers with a grant have together of its GPU, pod by pod.
func (k *kernelMemory) limitMiB(g claim.Grant) int64 {
	if !limited(g) {
		return g.GPU.MemoryMiB
	}
	return g.CapMiB() + k.config.MPSOverheadMiB
}

// edits have containers limited when they start, on those GPUs of the group on which the
// kernel limits it; none if there are none. Containers whose limits are switched off are
// told to the hook, too: the limit of their pod would hold them.
func (k *kernelMemory) edits(r Group) ([]*specs.Hook, error) {
	first, kernel := r.Grants[0], k.config.Kernel
	switch held := slices.ContainsFunc(r.Grants, func(g claim.Grant) bool { return g.KernelMemory }); {
	case held && kernel.Hook == "" && limited(first):
		return nil,
			errors.New("it was prepared with memory limits that the kernel holds, and there is no hook for them now " +
				"(setting MEMORY_LIMIT_HOOK)")
	case !held || kernel.Hook == "":
		return nil, nil
	}
	var gpus []string
	for _, g := range r.Grants {
		if g.KernelMemory {
			gpus = append(gpus, fmt.Sprintf("%s=%d/%d@%d", g.GPU.UUID, k.limitMiB(g), g.GPU.MemoryMiB, g.GPU.Index))
		}
	}
	found := k.found.Load()
	if found == nil {
		found = &KernelLimits{}
	}
	if limited(first) && (found.Library == "" || found.Kubelet == "") {
		// The hook would refuse what is not complete. A spec that is there may be right.
		return nil, fmt.Errorf("it was prepared with memory limits that the kernel holds, and it is not known now by which "+
			"library and control groups to set them; its CDI spec stays as it is, and is written again by itself: %w",
			cmp.Or(found.Err, errNotLooked))
	}
	args := []string{filepath.Base(kernel.Hook), "set", "--library", found.Library, "--cgroup-root",
		kernel.CgroupRoot,
		"--kubelet-root", found.Kubelet, "--ledger", kernel.Ledger, "--claim", string(r.Claim),
		"--share", string(first.ShareID), "--containers", strconv.Itoa(k.config.ContainersPerShare)}
	if r.Only {
		args = append(args, "--only")
	}
	if !limited(first) {
		args = append(args, "--lifted")
	}
	return []*specs.Hook{{HookName: "createRuntime", Path: kernel.Hook, Args: slices.Concat(args, gpus)}}, nil
}

// kernelBackend has the kernel limit memory, and nothing else limited: containers compute by
// turns, as without limits.
type kernelBackend struct {
	noSetUp
	memory *kernelMemory
}

func (kernelBackend) Name() string                 { return mode.IsolationKernel }
func (kernelBackend) Validate([]claim.Grant) error { return nil }

func (b kernelBackend) Check(uuid string) error { return b.memory.check(uuid) }

func (b kernelBackend) KernelMemory(_ mode.Mode, uuid string) (held bool, kind memlimit.Kind) {
	return true, b.memory.kind(uuid)
}

func (b kernelBackend) Edits(r Group) (*specs.ContainerEdits, error) {
	hooks, err := b.memory.edits(r)
	return &specs.ContainerEdits{Hooks: hooks}, err
}

// SetKernelLimits tells what the node's kernel can limit. What Auto comes to is decided by the
// first that is settled; GPUs on which the kernel can limit nothing any more are closed.
func (r *Registry) SetKernelLimits(found KernelLimits) {
	for uuid := range found.Kinds {
		r.memory.had.Store(uuid, true)
	}
	if found.Settled {
		r.memory.first.CompareAndSwap(nil, &found)
	}
	r.memory.found.Store(&found)
}
