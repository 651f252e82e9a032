// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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
	memory := &kernelMemory{config: c}
	r := &Registry{
		memory: memory,
		config: c,
		cgpu:   cgpuBackend{proc: c.CGPUProc, keep: c.KeepLimits},
		mps:    mpsBackend{name: mode.IsolationMPS, dir: mps.Dir(c.MPSDir), config: c, memory: memory},
		hami:   hamiBackend{library: c.HostHAMiLibrary, localLibrary: c.HAMiLibrary, dir: c.HAMiDir, mu: &sync.Mutex{}},
	}
	r.moduleLoaded = r.cgpu.present()
	return r
}

// For returns the back end that serves a mode on this node. A mode that this
// version does not serve is an error.
func (r *Registry) For(m mode.Mode) (Backend, error) {
	switch m {
	case mode.Exclusive, mode.Topology, mode.MIG, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS:
		return r.chosen(m)
	default:
		return nil, fmt.Errorf("mode %q is not served by this version of the driver", m)
	}
}

// setting is one that chooses the back end of a mode, and what it may be: first what it is by default.
type setting struct {
	name, value string
	may         []string
}

// settingOf is that of the mode; empty for modes in which there is no choice. Mode share limits nothing unless it is
// told to: programs that take more than they asked for, as they may on ACK, would end.
func (c Config) settingOf(m mode.Mode) setting {
	limiting := []string{Auto, mode.IsolationKernel, mode.IsolationCGPU, mode.IsolationMPS, mode.IsolationHAMi}
	switch m {
	case mode.Share:
		return setting{"ISOLATION_SHARE", c.Share, []string{mode.IsolationNone, mode.IsolationKernel}}
	case mode.CGPU:
		return setting{"ISOLATION_CGPU", c.CGPU, limiting}
	case mode.CoreMem:
		return setting{"ISOLATION_CORE_MEM", c.CoreMem, limiting}
	case mode.MPS:
		return setting{"ISOLATION_MPS", c.MPS, []string{Auto, mode.IsolationKernel, mode.IsolationMPS}}
	default:
		return setting{}
	}
}

// chosen is the back end that the mode's setting chooses.
func (r *Registry) chosen(m mode.Mode) (Backend, error) {
	s := r.config.settingOf(m)
	switch {
	case s.value == "" || s.value == s.may[0]:
		return r.auto(m)
	case !slices.Contains(s.may, s.value):
		b, err := r.auto(m)
		last := len(s.may) - 1
		return misconfigured{b, fmt.Errorf("the setting %s is %q: use %s or %s", s.name, s.value,
			strings.Join(s.may[:last], ", "), s.may[last])}, err
	case s.value == mode.IsolationKernel && (m.CountsCores() || m == mode.MPS):
		return r.insisting(), nil
	default:
		return r.ByName(s.value)
	}
}

// auto is the one of mode.AutoIsolation, by which plans go, too.
func (r *Registry) auto(m mode.Mode) (Backend, error) {
	return r.ByName(mode.AutoIsolation(m, r.moduleLoaded, r.autoKernel(m) && r.config.MPSOverheadMiB >= 0).Name)
}

// autoKernel reports whether Auto comes to the kernel alone, where there is no module.
func (r *Registry) autoKernel(m mode.Mode) bool {
	if all, known := r.memory.everywhere(); known {
		return all
	}
	return r.config.Offered[m] == mode.IsolationKernel
}

// insisting is MPS where the kernel has to limit memory, too.
func (r *Registry) insisting() Backend {
	b := r.mps
	b.insists = true
	return r.limiting(b)
}

func (r *Registry) byKernel() Backend { return r.limiting(kernelBackend{memory: r.memory}) }

// limiting returns a back end that adds MPSOverheadMiB to each memory limit, misconfigured if that is negative.
func (r *Registry) limiting(b Backend) Backend {
	if r.config.MPSOverheadMiB < 0 {
		return misconfigured{b, fmt.Errorf("the setting MPS_MEMORY_OVERHEAD_MIB, which is added to each memory limit, is "+
			"%d: use 0 or more", r.config.MPSOverheadMiB)}
	}
	return b
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
	byMPS := r.limiting(r.mps)
	ofNode, _ := byMPS.NodeDaemon()
	for _, b := range []Backend{noLimits{name: mode.IsolationWholeGPU}, noLimits{name: mode.IsolationNone},
		noLimits{name: mode.IsolationMIG}, byMPS, ofNode, r.cgpu, r.byHAMi(), r.byKernel()} {
		if b.Name() == name {
			return b, nil
		}
	}
	return nil, fmt.Errorf("isolation %q is not known to this version of the driver", name)
}

// misconfigured is a back end that cannot limit anything, because a setting that
// it uses is wrong.
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
