// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// wholeCompute is a limit of all the GPU's multiprocessors, in percent.
const wholeCompute = 100

// containerPipeDir is where a container finds the pipe directory of its GPU.
const containerPipeDir = "/run/gpushare/mps"

// mpsBackend limits the clients of the GPU's MPS server. The limits are in
// the client's environment and hold per process: what gets around them is in
// docs/isolation.md.
type mpsBackend struct {
	// name is mode.IsolationMPS, where each GPU has a daemon of its own, or mode.IsolationMPSNode.
	name string
	// dir is the directory shared with gpu-mps-supervisor, under the same path on
	// the host.
	dir    mps.Dir
	config Config
	// memory has the kernel limit memory beside MPS, for those grants that say so.
	memory *kernelMemory
	// insists is whether the kernel has to limit the memory of all grants.
	insists bool
}

func (b mpsBackend) Name() string { return b.name }

func (mpsBackend) Adjust(*claim.Grant) {}

func (b mpsBackend) EnforcedByDriver(uuid string) bool { return b.dir.DriverEnforced(uuid) }

// Check matters most when it fails: a client whose daemon is gone runs without
// MPS, with all of the GPU, and nobody tells.
func (b mpsBackend) Check(uuid string) error {
	if b.insists {
		return errors.Join(b.dir.Check(uuid), b.memory.check(uuid))
	}
	return b.dir.Check(uuid)
}

func (b mpsBackend) KernelMemory(m mode.Mode, uuid string) (held bool, kind memlimit.Kind) {
	return b.memory.besideMPS(m, uuid)
}

func (b mpsBackend) CheckMemory(uuid string) error { return b.memory.check(uuid) }

// NodeDaemon has no daemon for each GPU, and keeps all else.
func (b mpsBackend) NodeDaemon() (Backend, bool) {
	if b.name == mode.IsolationMPSNode {
		return nil, false
	}
	b.name, b.dir = mode.IsolationMPSNode, b.dir.OfNode()
	return b, true
}

// Alone: a process is the client of one daemon.
func (b mpsBackend) Alone(claim.Grant) string {
	if b.name == mode.IsolationMPSNode {
		return ""
	}
	return "with MPS a process can use one GPU"
}

// Counted: where one daemon has all GPUs, CUDA is given a list of them, of which it takes none behind one that is not
// there.
func (b mpsBackend) Counted(grants []claim.Grant) []string {
	if b.name != mode.IsolationMPSNode {
		return nil
	}
	return uuids(grants)
}

// Validate: a process can use one pipe directory, and so the GPUs of one daemon. It has one
// percentage of the multiprocessors of each.
func (b mpsBackend) Validate(grants []claim.Grant) error {
	if b.name == mode.IsolationMPSNode {
		return samePercent(claim.PerGPU(grants))
	}
	for _, g := range grants {
		if g.GPU.UUID != grants[0].GPU.UUID {
			return fmt.Errorf("one container would have GPUs %d and %d, but with MPS a container has to be on one GPU: ask "+
				"for one device per request, and have each request used by a container of its own (claims: [{name: CLAIM, "+
				"request: REQUEST}]), or bind them to one GPU with the constraint matchAttribute: gpu.aliyun.com/uuid",
				grants[0].GPU.Index, g.GPU.Index)
		}
	}
	return nil
}

// processLimits reports limits of single processes that something else than MPS would have to keep.
func processLimits(g claim.Grant) error {
	if !g.Config.LimitsProcesses() || mode.ByMPS(g.Isolation) || g.Admin {
		return nil
	}
	return fmt.Errorf("processMemory and threadPercentage (defaultPinnedDeviceMemoryLimit and "+
		"defaultActiveThreadPercentage of NVIDIA's strategy MPS) are limits of MPS, and device %s of mode %s is not limited "+
		"by it: ask for a share by the class mps.gpu.aliyun.com, or leave them out", g.Device, g.Mode)
}

func samePercent(grants []claim.Grant) error {
	for _, g := range grants {
		if first := grants[0]; g.CoresPercent != first.CoresPercent {
			return fmt.Errorf("one container would have %d percent of the compute of GPU %d and %d of GPU %d, but with MPS a "+
				"process has the same of all its GPUs: ask for as much of each", first.CoresPercent, first.GPU.Index,
				g.CoresPercent, g.GPU.Index)
		}
	}
	return nil
}

// pipeDirOptions keep whoever a container runs as from the pipe directory, which all
// clients of the GPU have: from filling the host's /run with files, which others would
// see and which would outlive the container, and from the socket of the daemon. A client
// makes no files there, and connecting to a socket is no write (seen with CUDA and
// nvidia-cuda-mps-control of driver 535).
func pipeDirOptions() []string { return []string{"rbind", "ro", "nosuid", "nodev", "noexec"} }

func (b mpsBackend) Edits(r Group) (*specs.ContainerEdits, error) {
	g := r.Grants[0]
	edits := &specs.ContainerEdits{
		Env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + containerPipeDir},
		Mounts: []*specs.Mount{{
			HostPath:      b.dir.PipeDir(g.GPU.UUID),
			ContainerPath: containerPipeDir,
			Options:       pipeDirOptions(),
		}},
	}
	if b.name == mode.IsolationMPSNode {
		// The server has all of the node's GPUs, and numbers them for its clients.
		edits.Env = append(edits.Env, envCUDADevices+"="+strings.Join(b.Counted(r.Grants), ","))
	}
	var err error
	if edits.Hooks, err = b.memory.edits(r); err != nil {
		return nil, err
	}
	limits := b.memoryLimits(r.Grants)
	if limits == "" {
		return edits, nil
	}
	// The kubelet asks the driver once per claim, but containers start again.
	if program := b.config.MPSCheck; program != "" {
		check := &specs.Hook{
			HookName: "createRuntime", Path: program, Args: []string{filepath.Base(program), string(b.dir), g.GPU.UUID},
			// The program of an earlier version, as after a downgrade, takes no further arguments.
			Env: []string{mps.EnvShare + "=" + string(g.ShareID),
				mps.EnvContainers + "=" + strconv.Itoa(b.config.ContainersPerShare)},
		}
		if more := uuids(r.Grants[1:]); len(more) > 0 {
			// The daemon may serve without those that were lost.
			check.Env = append(check.Env, mps.EnvMoreGPUs+"="+strings.Join(more, ","))
		}
		edits.Hooks = append(edits.Hooks, check)
	}
	edits.Env = append(edits.Env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+limits)
	if percent := b.MPSLimits(g).ThreadPercent; percent < wholeCompute || g.CoresPercent > 0 {
		edits.Env = append(edits.Env, fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", percent))
	}
	return edits, nil
}

func uuids(grants []claim.Grant) []string {
	var out []string
	for _, g := range grants {
		out = append(out, g.GPU.UUID)
	}
	return out
}

// memoryLimits are the container's limits on its GPUs, empty where it has none. They are in
// M: limits in K are ignored without a word.
func (b mpsBackend) memoryLimits(grants []claim.Grant) string {
	var limits []string
	for _, g := range grants {
		// A daemon that serves one GPU has it as its device 0. Which number a GPU has among
		// those of a container depends on what else it sees.
		device := "0"
		if b.name == mode.IsolationMPSNode {
			device = g.GPU.UUID
		}
		if limited(g) {
			limits = append(limits, fmt.Sprintf("%s=%dM", device, b.MPSLimits(g).MemoryMiB))
		}
	}
	return strings.Join(limits, ",")
}

// MPSLimits are what MPS holds a process to that has what was granted.
func (b mpsBackend) MPSLimits(g claim.Grant) mps.Limits {
	l := mps.Limits{MemoryMiB: g.GPU.MemoryMiB, ThreadPercent: wholeCompute}
	if !limited(g) {
		return l
	}
	l.MemoryMiB = g.CapMiB() + b.config.MPSOverheadMiB
	if g.CoresPercent > 0 {
		l.ThreadPercent = g.CoresPercent
	}
	if m := g.Config.ProcessMemory; m != nil {
		l.MemoryMiB = min(l.MemoryMiB, m.Value()>>20+b.config.MPSOverheadMiB)
	}
	if p := g.Config.ThreadPercentage; p != nil {
		l.ThreadPercent = min(l.ThreadPercent, *p)
	}
	return l
}

// clientEffect ends the name of the effect that a claim's containers are clients of MPS on the GPU: of the back end
// whose name it starts with.
const clientEffect = "-client"

// isClientEffect reports whether that is the effect of the name.
func isClientEffect(name string) bool {
	backend, is := strings.CutSuffix(name, clientEffect)
	return is && mode.ByMPS(backend)
}

// Effects are the claim's part of what the supervisor is told that each GPU is used for.
func (b mpsBackend) Effects(r Group) []Effect {
	var out []Effect
	for _, g := range r.Grants {
		if !g.Admin {
			out = append(out, Effect{Name: b.name + clientEffect, GPU: g.GPU.UUID})
		}
	}
	return out
}

// SetUp has room made on the GPU for a process with the container's limits: the GPU's
// server gives nobody more than its largest claim has.
func (b mpsBackend) SetUp(ctx context.Context, r Group) error {
	for _, g := range r.Grants {
		if g.Admin || !limited(g) && b.dir.Check(g.GPU.UUID) != nil {
			// Without limits a program may run without MPS.
			continue
		}
		if err := b.dir.Admit(ctx, g.GPU.UUID, b.MPSLimits(g)); err != nil {
			return err
		}
	}
	return nil
}

// MPSLimits are the largest limits of the claim's containers on each GPU that they use as clients of that daemon, by
// UUID.
func (c Claim) MPSLimits(by mode.Daemon) map[string]mps.Limits {
	out := map[string]mps.Limits{}
	for _, container := range c {
		if mode.IsolationNamed(container.backend.Name()).Daemon != by {
			continue
		}
		for _, g := range container.group.Grants {
			if !g.Admin {
				out[g.GPU.UUID] = mps.Use{Limits: out[g.GPU.UUID]}.With(container.backend.MPSLimits(g)).Limits
			}
		}
	}
	return out
}

// BesideMPS are the UUIDs of the GPUs that the claim's containers use otherwise than by MPS.
// An administrator, who has nothing of a GPU, leaves it as it is.
func (c Claim) BesideMPS() []string {
	var out []string
	for _, container := range c {
		if mode.ByMPS(container.backend.Name()) {
			continue
		}
		for _, g := range container.group.Grants {
			if !g.Admin && !slices.Contains(out, g.GPU.UUID) {
				out = append(out, g.GPU.UUID)
			}
		}
	}
	return out
}

// UsesNodeDaemon reports whether the one MPS daemon for all GPUs holds containers with any of the grants to their
// shares.
func UsesNodeDaemon(grants []claim.Grant) bool {
	return slices.ContainsFunc(grants, func(g claim.Grant) bool {
		return !g.Admin && mode.IsolationNamed(g.Isolation).Daemon == mode.DaemonOfNode
	})
}

// firstMPSLimits is the first major compute capability, that of Volta, whose MPS limits memory and compute of each
// client (source: NVIDIA's documentation of MPS).
const firstMPSLimits = 7

func (mpsBackend) Unlimited(g gpu.GPU) string {
	major, _, _ := strings.Cut(g.ComputeCapability, ".")
	if n, err := strconv.Atoi(major); err != nil || n >= firstMPSLimits {
		return ""
	}
	return fmt.Sprintf("its compute capability is %s, and MPS limits programs from %d.0 (Volta) on: use mode share or "+
		"exclusive", g.ComputeCapability, firstMPSLimits)
}
