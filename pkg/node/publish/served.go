// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// servedMode is how the node's GPUs are offered in one mode. A dynamic node has
// several, any other one.
type servedMode struct {
	mode    mode.Mode
	backend isolation.Backend
	// slots is how many shares a GPU takes.
	slots int64
	// notIsolated says why a GPU takes no new users, by UUID: they would not be kept apart now, or it has no shares.
	notIsolated map[string]string
	// beside says why no GPU takes new users while others hold some; empty where they may. Those who are there are kept
	// apart all the same.
	beside string
	// levels are the isolation levels of GPUs where it is another than the back end's, by
	// UUID.
	levels map[string]string
	// limits says who counts the memory of GPUs on which the kernel limits it, by UUID.
	limits map[string]string
}

// servedModes finds what serves a node's offer, with the number of shares that
// the back ends take by default. Isolation that the offer does not name is chosen.
func servedModes(o mode.Offer, backends isolation.Backends) ([]servedMode, error) {
	var out []servedMode
	for _, served := range o.Mode.ServedModes() {
		backend, err := isolation.Find(backends, o.Isolation[served], served)
		if err != nil {
			return nil, err
		}
		slots, _ := mode.SlotLimits(mode.IsolationNamed(backend.Name()).Shares)
		out = append(out, servedMode{mode: served, backend: backend, slots: slots})
	}
	return out, nil
}

// useNodeDaemon has one MPS daemon serve all GPUs, as the node's label asks for, instead
// of one for each. An error says why the label does not come to that.
func useNodeDaemon(served []servedMode, m mode.Mode, label string) error {
	switch {
	case label != v1alpha1.MPSDaemonNode:
		return fmt.Errorf("label %s=%s is not understood: use %s, or remove it", v1alpha1.LabelMPSDaemon, label,
			v1alpha1.MPSDaemonNode)
	case m == mode.Dynamic:
		return fmt.Errorf("label %s is without effect in mode %s, in which each GPU is given to MPS by itself",
			v1alpha1.LabelMPSDaemon, m)
	}
	for i := range served {
		if backend, is := served[i].backend.NodeDaemon(); is {
			served[i].backend = backend
		}
	}
	return nil
}

// setSlots uses the node's labels for how many shares a GPU takes. An error
// names a label that is not understood.
func setSlots(served []servedMode, labels map[string]string) error {
	var wrong error
	for i := range served {
		def, limit := mode.SlotLimits(served[i].isolation().Shares)
		slots, err := mode.SlotsFromLabels(labels, def, limit)
		served[i].slots = slots
		// One label, one complaint.
		if wrong == nil {
			wrong = err
		}
	}
	return wrong
}

// apart is how a back end keeps the users of a GPU apart: at which level, and why not; empty if it
// does.
type apart struct {
	level  mode.Level
	whyNot string
}

// checkIsolation notes in the modes on which GPUs users would not be kept apart now, at which level they are, and
// where the kernel limits memory. It looks once for all modes that have the same back end.
func checkIsolation(m *gpu.Machine, modes ...[]servedMode) {
	seen := map[string]map[string]apart{}
	for _, served := range modes {
		for i, s := range served {
			name := s.backend.Name()
			if seen[name] == nil {
				seen[name] = look(m, s.backend)
			}
			notIsolated, levels, limits := map[string]string{}, map[string]string{}, map[string]string{}
			for _, g := range m.GPUs {
				now := seen[name][g.UUID]
				if now.level != s.isolation().Level {
					levels[g.UUID] = string(now.level)
				}
				byKernel, kind := s.backend.KernelMemory(s.mode, g.UUID)
				if kind != "" {
					limits[g.UUID] = string(kind)
				}
				switch unlimited := s.backend.Unlimited(g); {
				case !devices.Serves(s.mode, g):
					notIsolated[g.UUID] = whyWhole(g) + ", and is offered in modes for whole GPUs only"
				case unlimited != "":
					notIsolated[g.UUID] = unlimited
				case now.whyNot != "":
					notIsolated[g.UUID] = now.whyNot
				case byKernel && kind == "":
					// A claim is to have that, and would be refused.
					if err := s.backend.CheckMemory(g.UUID); err != nil {
						notIsolated[g.UUID] = err.Error()
					}
				}
			}
			served[i].notIsolated, served[i].levels, served[i].limits = notIsolated, levels, limits
		}
	}
}

// whyWhole is why a GPU is not shared.
func whyWhole(g gpu.GPU) string {
	if g.HostMemory {
		return "it has no memory of its own, but uses the host's"
	}
	return fmt.Sprintf("it has %d MiB of memory, less than a share of 1 GiB", g.MemoryMiB)
}

// besideOthers are the servings on a node where others hold those GPUs, by UUID. One MPS daemon for all GPUs keeps
// every program but its clients from each of them, so no GPU takes claims by it.
func besideOthers(served []servedMode, m *gpu.Machine, others map[string]bool) []servedMode {
	var indices []int
	for _, g := range m.Unpartitioned() {
		if others[g.UUID] {
			indices = append(indices, g.Index)
		}
	}
	slices.Sort(indices)
	var held []string
	for _, index := range indices {
		held = append(held, strconv.Itoa(index))
	}
	out := slices.Clone(served)
	for i, s := range out {
		if s.byNodeDaemon() {
			out[i].beside = fmt.Sprintf("one MPS control daemon is to have all GPUs of the node, and GPU %s is held by pods "+
				"of a device plugin, or by another DRA driver, whose programs it would keep off: wait until they have ended, "+
				"or remove the node's label %s", text.List(held, mostNamed), v1alpha1.LabelMPSDaemon)
		}
	}
	return out
}

// look sees how the back end keeps the users of GPUs apart now, by UUID.
func look(m *gpu.Machine, b isolation.Backend) map[string]apart {
	seen := map[string]apart{}
	for _, g := range m.GPUs {
		k := apart{level: isolation.LevelOn(b, g.UUID)}
		if err := b.Check(g.UUID); err != nil {
			k.whyNot = err.Error()
		}
		seen[g.UUID] = k
	}
	return seen
}

// isolationChanged reports whether a pass would see the users of GPUs kept apart otherwise than the
// last one did.
func (p *Publisher) isolationChanged() bool {
	now, m := slices.Clone(p.watched), p.inputs().machine
	checkIsolation(m, now)
	return !slices.EqualFunc(p.watched, now, servedMode.keptAs)
}

func (s servedMode) keptAs(other servedMode) bool {
	return maps.Equal(s.notIsolated, other.notIsolated) && maps.Equal(s.levels, other.levels)
}

// canFail reports whether what keeps the users of a GPU apart can go away by itself, without that the
// machine is read again.
func canFail(served []servedMode) bool {
	for _, s := range served {
		if level := s.isolation().Level; level != mode.LevelNone && level != mode.LevelGPU &&
			level != mode.LevelDeviceMemory {
			return true
		}
	}
	return false
}

// unavailable says why no GPU could be offered in any of the modes, nil if one
// could.
func unavailable(served []servedMode, m *gpu.Machine) error {
	var out []error
	for _, s := range served {
		if len(m.GPUs) == 0 || len(s.notIsolated) < len(m.GPUs) {
			return nil
		}
		out = append(out, fmt.Errorf("mode %s needs isolation %s, which is not available: %s", s.mode, s.backend.Name(),
			s.notIsolated[m.GPUs[0].UUID]))
	}
	return errors.Join(out...)
}

// problems lists the GPUs that are closed to new claims, in the machine's
// order. On a dynamic node it says in which modes.
func problems(served []servedMode, m *gpu.Machine) error {
	var out []error
	for _, g := range m.GPUs {
		var reasons []string
		modes := map[string][]string{}
		for _, s := range served {
			why := s.whyClosed(g.UUID)
			if why == "" {
				continue
			}
			if modes[why] == nil {
				reasons = append(reasons, why)
			}
			modes[why] = append(modes[why], string(s.mode))
		}
		for _, reason := range reasons {
			if len(served) == 1 {
				out = append(out, fmt.Errorf("GPU %d is closed to new claims: %s", g.Index, reason))
			} else {
				out = append(out, fmt.Errorf("GPU %d is closed to new claims of mode %s: %s", g.Index,
					strings.Join(modes[reason], ", "), reason))
			}
		}
	}
	return errors.Join(out...)
}

// left is what pods without a claim leave of the GPUs to this serving of a node in
// the mode: the room on each GPU that they have some of, and the GPUs, in the
// machine's order, that are closed because of them.
func (s servedMode) left(m *gpu.Machine, nodeMode mode.Mode, t held.Reserved) (room map[string]gpu.Amount,
	closed []string) {
	room = map[string]gpu.Amount{}
	free := usage.Of(nil, t.GPU)
	for _, g := range m.GPUs {
		u := free.GPU(g.UUID)
		if len(u.Reserved.Pods) == 0 && u.Reserved.Driver == "" {
			continue
		}
		room[g.UUID] = u.Free(g.MemoryUnits(), s.slots)
		if !u.Takes(s.mode, nodeMode, g.MemoryUnits(), s.slots) {
			closed = append(closed, g.UUID)
		}
	}
	return room, closed
}

// buildPool puts the devices together that a node of this mode publishes.
func buildPool(m *gpu.Machine, nodeMode mode.Mode, served []servedMode, t held.Reserved,
	limits map[mode.Mode]map[string]gpu.Amount, common devices.Options) resourceslice.DriverResources {
	options := make([]devices.Options, 0, len(served))
	for _, s := range served {
		o := common
		o.Mode, o.Slots, o.Limits = s.mode, s.slots, limits[s.mode]
		o.Isolation, o.IsolationLevel = s.backend.Name(), string(s.isolation().Level)
		o.GPULevels, o.MemoryLimits = s.levels, s.limits
		var full []string
		if !t.IsEmpty() {
			o.Room, full = s.left(m, nodeMode, t)
		}
		if s.closesGPUs() || len(full) > 0 {
			o.GPUTaints = s.gpuTaints(m, common.GPUTaints, full, t)
		}
		options = append(options, o)
	}
	if nodeMode == mode.Dynamic {
		return devices.BuildDynamic(m, options)
	}
	return devices.Build(m, options[0])
}

// whyClosed says why the GPU is closed to new claims of the mode; empty if it is not.
func (s servedMode) whyClosed(uuid string) string { return cmp.Or(s.notIsolated[uuid], s.beside) }

// closesGPUs reports whether GPUs are closed to new claims of the mode: their users would not be kept apart, or
// others be kept off.
func (s servedMode) closesGPUs() bool { return len(s.notIsolated) > 0 || s.beside != "" }

func (s servedMode) isolation() mode.Isolation { return mode.IsolationNamed(s.backend.Name()) }

func (s servedMode) byMPS() bool { return s.isolation().Daemon != mode.NoDaemon }

func (s servedMode) byNodeDaemon() bool { return s.isolation().Daemon == mode.DaemonOfNode }

// besideValue is the value of the taint TaintNotIsolated on GPUs that take no claims because others hold some. The
// users that they have are kept apart.
const besideValue = "others-hold-gpus"

// gpuTaints adds to the taints by UUID those of the GPUs on which shares could not be
// enforced at the moment, and of those that pods without a claim, or other drivers, leave
// nothing of.
func (s servedMode) gpuTaints(m *gpu.Machine, common taints, full []string, t held.Reserved) taints {
	out := common.clone()
	for _, g := range m.GPUs {
		switch {
		case s.notIsolated[g.UUID] != "":
			out.add(g.UUID, closing(v1alpha1.TaintNotIsolated, ""))
		case s.beside != "":
			out.add(g.UUID, closing(v1alpha1.TaintNotIsolated, besideValue))
		}
	}
	for _, uuid := range full {
		out.addHeld(uuid, t.GPU(uuid).Driver)
	}
	return out
}
