// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"errors"
	"fmt"
	"sync"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// Auto chooses a back end by what the node has.
const Auto = "auto"

// Config says which back ends there are and which mode uses which. Paths are
// as this process sees them unless they say otherwise.
type Config struct {
	// CGPU, CoreMem and MPS choose the back end of the mode: Auto (or empty), or a back end's
	// name. Auto of CGPU is Alibaba's module where it is loaded, the kernel where it can limit
	// memory on all GPUs, and MPS elsewhere. Auto of CoreMem is that module or MPS, with memory
	// limited by the kernel, too, on GPUs where it can; so is that of MPS, without the module.
	// mode.IsolationKernel takes MPS there for compute, and insists on the kernel for memory.
	CGPU, CoreMem, MPS string
	// Share is mode.IsolationNone, or empty, or mode.IsolationKernel.
	Share string
	// Kernel is how the kernel limits memory.
	Kernel KernelConfig
	// Offered names the back ends by which the node's GPUs were offered last, by mode; none where that is not known.
	// Auto keeps to it until it is known what the kernel can limit.
	Offered map[mode.Mode]string
	// MPSDir is the directory shared with gpu-mps-supervisor, under the same path
	// on the host.
	MPSDir string
	// MPSOverheadMiB is added to each memory limit under MPS, where the CUDA
	// context counts against it.
	MPSOverheadMiB int64
	// MPSCheck is the program gpu-mps-check on the host, which keeps containers
	// from starting while MPS would not limit them; empty to do without.
	MPSCheck string
	// ContainersPerShare is how many containers may have one share under MPS, 0 for any number.
	ContainersPerShare int
	// KeepLimits is whether a container's own environment may not lift its limits.
	KeepLimits bool
	// CGPUProc is the procfs directory of Alibaba's module.
	CGPUProc string
	// HostHAMiLibrary is HAMi-core's library on the host, HAMiLibrary the same
	// as this process sees it; empty where the operator supplies none.
	HostHAMiLibrary, HAMiLibrary string
	// HAMiDir is a directory of the plugin's, under the same path on the host.
	HAMiDir string
}

// Registry finds the back end of each mode on this node.
type Registry struct {
	config Config
	// moduleLoaded is whether Alibaba's module was there at the start: a choice
	// that changed by itself would mix two kinds of isolation on a GPU. Should
	// the module go away, GPUs are closed.
	moduleLoaded bool
	cgpu         cgpuBackend
	mps          mpsBackend
	hami         hamiBackend
	memory       *kernelMemory
}

// NewRegistry never fails: what is wrong with a setting concerns the modes that go
// by it. The back end of such a mode says so in its Check, for every GPU.
func NewRegistry(c Config) *Registry {
	memory := &kernelMemory{config: c.Kernel, overheadMiB: c.MPSOverheadMiB, containers: c.ContainersPerShare}
	r := &Registry{
		memory: memory,
		config: c,
		cgpu:   cgpuBackend{proc: c.CGPUProc, keep: c.KeepLimits},
		mps: mpsBackend{name: mode.IsolationMPS, dir: mps.Dir(c.MPSDir), overheadMiB: c.MPSOverheadMiB, check: c.MPSCheck,
			containers: c.ContainersPerShare, memory: memory},
		hami: hamiBackend{library: c.HostHAMiLibrary, localLibrary: c.HAMiLibrary, dir: c.HAMiDir, mu: &sync.Mutex{}},
	}
	r.moduleLoaded = r.cgpu.present()
	return r
}

// For returns the back end that serves a mode on this node. A mode that this
// version does not serve is an error.
func (r *Registry) For(m mode.Mode) (Backend, error) {
	switch m {
	case mode.Exclusive, mode.Topology:
		return wholeGPU{}, nil
	case mode.Share:
		return r.ofShare(), nil
	case mode.MIG:
		return migInstance{}, nil
	case mode.CGPU:
		return r.chosen("ISOLATION_CGPU", r.config.CGPU, m), nil
	case mode.CoreMem:
		return r.chosen("ISOLATION_CORE_MEM", r.config.CoreMem, m), nil
	case mode.MPS:
		return r.ofMPS(), nil
	default:
		return nil, fmt.Errorf("mode %q is not served by this version of the driver", m)
	}
}

// chosen is the back end that the setting chooses.
func (r *Registry) chosen(setting, choice string, m mode.Mode) Backend {
	switch choice {
	case "", Auto:
		return r.auto(m)
	case mode.IsolationKernel:
		if m.CountsCores() {
			return r.insisting()
		}
		return r.byKernel()
	case mode.IsolationCGPU:
		return r.cgpu
	case mode.IsolationMPS:
		return r.byMPS(r.mps)
	case mode.IsolationHAMi:
		return r.byHAMi()
	default:
		return misconfigured{r.auto(m), fmt.Errorf("the setting %s is %q: use %s, %s, %s, %s or %s",
			setting, choice, Auto, mode.IsolationKernel, mode.IsolationCGPU, mode.IsolationMPS, mode.IsolationHAMi)}
	}
}

// auto is the one of mode.AutoIsolation, by which plans go, too.
func (r *Registry) auto(m mode.Mode) Backend {
	switch mode.AutoIsolation(m, r.moduleLoaded, r.autoKernel(m) && r.config.MPSOverheadMiB >= 0).Name {
	case mode.IsolationCGPU:
		return r.cgpu
	case mode.IsolationKernel:
		return r.byKernel()
	default:
		return r.byMPS(r.mps)
	}
}

// autoKernel reports whether Auto comes to the kernel alone, where there is no module.
func (r *Registry) autoKernel(m mode.Mode) bool {
	if all, known := r.memory.everywhere(); known {
		return all
	}
	return r.config.Offered[m] == mode.IsolationKernel
}

// ofShare is the back end of mode share, which limits nothing unless it is told to: programs
// that take more than they asked for, as they may on ACK, would end.
func (r *Registry) ofShare() Backend {
	switch r.config.Share {
	case "", mode.IsolationNone:
		return none{}
	case mode.IsolationKernel:
		return r.byKernel()
	default:
		return misconfigured{none{}, fmt.Errorf("the setting ISOLATION_SHARE is %q: use %s or %s", r.config.Share,
			mode.IsolationNone,
			mode.IsolationKernel)}
	}
}

// ofMPS is the back end of mode mps.
func (r *Registry) ofMPS() Backend {
	switch r.config.MPS {
	case "", Auto, mode.IsolationMPS:
		return r.byMPS(r.mps)
	case mode.IsolationKernel:
		return r.insisting()
	default:
		return misconfigured{r.byMPS(r.mps), fmt.Errorf("the setting ISOLATION_MPS is %q: use %s, %s or %s",
			r.config.MPS, Auto,
			mode.IsolationKernel, mode.IsolationMPS)}
	}
}

// insisting is MPS where the kernel has to limit memory, too.
func (r *Registry) insisting() Backend {
	b := r.mps
	b.insists = true
	return r.byMPS(b)
}

func (r *Registry) byKernel() Backend {
	b := kernelBackend{memory: r.memory}
	if r.config.MPSOverheadMiB < 0 {
		return misconfigured{b, r.wrongOverhead()}
	}
	return b
}

func (r *Registry) byMPS(b mpsBackend) Backend {
	if r.config.MPSOverheadMiB < 0 {
		return misconfigured{b, r.wrongOverhead()}
	}
	return b
}

func (r *Registry) wrongOverhead() error {
	return fmt.Errorf("the setting MPS_MEMORY_OVERHEAD_MIB, which is added to each memory limit, is %d: use 0 or more",
		r.config.MPSOverheadMiB)
}

func (r *Registry) byHAMi() Backend {
	if r.config.HostHAMiLibrary == "" {
		return misconfigured{r.hami,
			errors.New("no HAMi-core library is configured: set HAMI_LIBRARY to the path of libvgpu.so on the nodes")}
	}
	return r.hami
}

// ByName returns the back end of that name.
func (r *Registry) ByName(name string) (Backend, error) {
	byMPS := r.byMPS(r.mps)
	ofNode, _ := byMPS.NodeDaemon()
	for _, b := range []Backend{wholeGPU{}, none{}, migInstance{}, byMPS, ofNode, r.cgpu, r.byHAMi(), r.byKernel()} {
		if b.Name() == name {
			return b, nil
		}
	}
	return nil, fmt.Errorf("isolation %q is not known to this version of the driver", name)
}

// misconfigured is a back end that cannot limit anything, because a setting that
// it goes by is wrong.
type misconfigured struct {
	Backend
	// reason names the setting and what it may be.
	reason error
}

// NodeDaemon limits nothing either.
func (b misconfigured) NodeDaemon() (Backend, bool) {
	ofNode, is := b.Backend.NodeDaemon()
	return misconfigured{ofNode, b.reason}, is
}

func (b misconfigured) Check(string) error { return b.reason }

// Edits without limits do not depend on the setting.
func (b misconfigured) Edits(r Group) (*specs.ContainerEdits, error) {
	if limited(r.Grants[0]) {
		return nil, b.reason
	}
	return b.Backend.Edits(r)
}
