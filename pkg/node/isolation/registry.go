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
	// CGPU and CoreMem choose the back end of the mode: Auto (or empty), or a
	// back end's name. Auto is Alibaba's module where it is loaded, and MPS
	// elsewhere.
	CGPU, CoreMem string
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
	// that changed by itself would mix two kinds of isolation on a card. Should
	// the module go away, cards are closed.
	moduleLoaded bool
	cgpu         cgpuBackend
	mps, mpsNode mpsBackend
	hami         hamiBackend
}

// NewRegistry never fails: what is wrong with a setting concerns the modes that go
// by it. The back end of such a mode says so in its Check, for every card.
func NewRegistry(c Config) *Registry {
	r := &Registry{
		config: c,
		cgpu:   cgpuBackend{proc: c.CGPUProc, keep: c.KeepLimits},
		mps: mpsBackend{name: NameMPS, dir: mps.Dir(c.MPSDir), overheadMiB: c.MPSOverheadMiB, check: c.MPSCheck,
			containers: c.ContainersPerShare},
		mpsNode: mpsBackend{name: NameMPSNode, dir: mps.Dir(c.MPSDir).OfNode(), overheadMiB: c.MPSOverheadMiB,
			check: c.MPSCheck, containers: c.ContainersPerShare},
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
		return wholeCard{}, nil
	case mode.Share:
		return none{}, nil
	case mode.CGPU:
		return r.chosen("ISOLATION_CGPU", r.config.CGPU), nil
	case mode.CoreMem:
		return r.chosen("ISOLATION_CORE_MEM", r.config.CoreMem), nil
	case mode.MPS:
		return r.byMPS(r.mps), nil
	default:
		return nil, fmt.Errorf("mode %q is not served by this version of the driver", m)
	}
}

// chosen is the back end that the setting chooses.
func (r *Registry) chosen(setting, choice string) Backend {
	switch choice {
	case "", Auto:
		return r.auto()
	case NameCGPU:
		return r.cgpu
	case NameMPS:
		return r.byMPS(r.mps)
	case NameHAMi:
		return r.byHAMi()
	default:
		return misconfigured{r.auto(), fmt.Errorf("the setting %s is %q: use %s, %s, %s or %s",
			setting, choice, Auto, NameCGPU, NameMPS, NameHAMi)}
	}
}

func (r *Registry) auto() Backend {
	if r.moduleLoaded {
		return r.cgpu
	}
	return r.byMPS(r.mps)
}

func (r *Registry) byMPS(b mpsBackend) Backend {
	if r.config.MPSOverheadMiB < 0 {
		return misconfigured{b,
			fmt.Errorf("the setting MPS_MEMORY_OVERHEAD_MIB, which is added to each memory limit, is %d: use 0 or more",
				r.config.MPSOverheadMiB)}
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
	for _, b := range []Backend{wholeCard{}, none{}, r.byMPS(r.mps), r.byMPS(r.mpsNode), r.cgpu, r.byHAMi()} {
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

// unwrapped is the back end itself, whatever is wrong with its settings.
func unwrapped(b Backend) Backend {
	if m, ok := b.(misconfigured); ok {
		return m.Backend
	}
	return b
}

func (b misconfigured) Check(string) error { return b.reason }

// Edits without limits do not depend on the setting.
func (b misconfigured) Edits(r Group) (*specs.ContainerEdits, error) {
	if limited(r.Grants[0]) {
		return nil, b.reason
	}
	return b.Backend.Edits(r)
}
