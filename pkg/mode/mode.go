// SPDX-License-Identifier: Apache-2.0

// Package mode turns the scheduling labels of a node into the mode its GPUs
// are served in and the placement of claims on them, and decides when a node
// may change its mode. It decides; it reads and writes nothing.
package mode

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Mode is how the GPUs of a node are handed out. Its value is what the
// device attribute "mode" shows and what the DeviceClass <mode>.gpu.aliyun.com
// selects.
type Mode string

// The modes.
const (
	Exclusive Mode = "exclusive" // one claim per GPU
	Share     Mode = "share"     // many claims per GPU, memory counted, nothing isolated
	CGPU      Mode = "cgpu"      // memory capped, compute shared
	CoreMem   Mode = "core-mem"  // memory and compute capped
	MPS       Mode = "mps"       // memory capped by NVIDIA MPS, compute shared
	Topology  Mode = "topology"  // whole GPUs, best linked set first
	Dynamic   Mode = "dynamic"   // decided per GPU by its first claim
	// MIG is one claim per GPU instance of a GPU in MIG mode. It is the mode of devices and never
	// of a node: see Serves.
	MIG Mode = "mig"
	// Monitor is an administrator's view of a GPU, where the scheduler would not let one see a GPU in use by the devices
	// of other modes. It, too, is the mode of devices and never of a node.
	Monitor Mode = "monitor"
)

// OfNode reports whether devices of the mode are there because of their node's mode.
func (m Mode) OfNode() bool { return m != MIG && m != Monitor }

// Shared reports whether several claims can hold one GPU in this mode.
func (m Mode) Shared() bool {
	switch m {
	case Share, CGPU, CoreMem, MPS:
		return true
	default:
		return false
	}
}

// CountsCores reports whether a share of this mode also takes percent of its GPU's compute.
func (m Mode) CountsCores() bool { return m == CoreMem }

// ServedModes are the modes that a GPU is offered in on a node of this mode:
// the mode itself, or, of a Dynamic node, all those that its first claim can
// decide for, in this order.
func (m Mode) ServedModes() []Mode {
	if m == Dynamic {
		return []Mode{Exclusive, Share, CGPU, CoreMem, MPS}
	}
	return []Mode{m}
}

// Serves reports whether claims of the other mode can be prepared on a node whose
// devices are published in this one; "", which is that of a node that publishes
// none, serves no mode.
//
// All others serve MIG. Whether a GPU is in MIG mode is its own state, which an administrator
// switches GPU by GPU, and then it can be used by its instances alone: a node's mode says what
// becomes of its other GPUs, and the two can never be promised the same one.
func (m Mode) Serves(other Mode) bool {
	if other == MIG {
		return m != ""
	}
	return other != "" && slices.Contains(m.ServedModes(), other)
}

// Placement is the order in which shares are put on a node's GPUs.
type Placement string

// The placements.
const (
	Binpack Placement = "binpack" // fill a GPU before the next
	Spread  Placement = "spread"  // the GPU with the least granted memory first
)

// Labels lists all labels that this package reads.
func Labels() []string {
	return []string{ack.NodeLabelSchedule, ack.NodeLabelPlacement, ack.NodeLabelMaxPod, ack.NodeLabelCGPU,
		ack.NodeLabelGPUShare, ack.NodeLabelDisableIsolation}
}

// DefaultSlots is how many shares a GPU takes unless MaxPodLabel says
// otherwise: the limit that ACK documents for one GPU.
const DefaultSlots = 20

// MaxSlots is how many shares MaxPodLabel can allow a GPU at most: no claim
// can be for less than one GiB unit, and no GPU has more of them.
const MaxSlots = 1024

// IsolationDisabled reports whether the node's labels lift the limits of what is
// prepared from now on.
func IsolationDisabled(labels map[string]string) bool {
	return labels[ack.NodeLabelDisableIsolation] == "true"
}

// TakesTurns reports whether the processes on a GPU of this mode take turns, with nothing between them: then a time
// slice decides how fair that is.
func (m Mode) TakesTurns() bool { return m == Exclusive || m == Topology || m == Share }

// TimeSliceFromLabels is what the node's label asks for; a value that is none comes to the default, with an error.
func TimeSliceFromLabels(labels map[string]string) (v1alpha1.TimeSlice, error) {
	slice, err := v1alpha1.ParseTimeSlice(labels[v1alpha1.LabelTimeSlice])
	if err != nil {
		return v1alpha1.TimeSliceDefault, fmt.Errorf("node label %s: %w, or remove it", v1alpha1.LabelTimeSlice, err)
	}
	return slice, nil
}

// labelValues maps the values of ScheduleLabel to modes.
func labelValues() map[string]Mode {
	return map[string]Mode{
		"default":  Exclusive,
		"mig":      Exclusive, // what is not cut is handed out whole; see Serves
		"share":    Share,
		"cgpu":     CGPU,
		"core_mem": CoreMem,
		"mps":      MPS,
		"topology": Topology,
		"dynamic":  Dynamic,
	}
}

// LabelDisabled is the value of ScheduleLabel that keeps a node's GPUs for others: nothing of it is offered.
const LabelDisabled = "disabled"

// Asked is what a node's labels came to, to be remembered until the next time.
type Asked struct {
	// Mode is the mode that they asked for last, "" if none is known.
	Mode Mode
	// Overruled are the older labels, with their values, that stood beside
	// ScheduleLabel when it set the mode, and are there unchanged. Nil for none.
	Overruled map[string]string
}

// FromLabels returns what a node's labels ask for, given what they came to
// before.
//
// ScheduleLabel wins over the older labels, for good: one that stood beside it
// does not count when ScheduleLabel is gone either, until somebody changes it.
// Where no label asks for anything, the last mode stays: taking a label off does
// not give whole GPUs back, only the value "default" does (source: ACK's rule for
// these labels). A node that never had a label is Exclusive. An unknown value
// keeps the last mode too, "" if there is none, with an error that names it.
// LabelDisabled gives the mode "", with an error that says so.
func FromLabels(labels map[string]string, last Asked) (Asked, error) {
	if value, ok := labels[ack.NodeLabelSchedule]; ok {
		if value == LabelDisabled {
			return Asked{}, fmt.Errorf("node label %s=%s keeps the node's GPUs for others: to have them offered set it to a "+
				"mode, or remove it", ack.NodeLabelSchedule, value)
		}
		m, known := labelValues()[value]
		if !known {
			return last.unchanged(labels),
				fmt.Errorf("node label %s=%q is not a known value: use one of default, mig, share, cgpu, core_mem, mps, "+
					"topology, dynamic", ack.NodeLabelSchedule, value)
		}
		return Asked{Mode: m, Overruled: olderLabels(labels)}, nil
	}
	next := last.unchanged(labels)
	cgpu, cgpuErr := next.olderLabel(labels, ack.NodeLabelCGPU)
	share, shareErr := next.olderLabel(labels, ack.NodeLabelGPUShare)
	switch {
	case cgpuErr != nil:
		return next, cgpuErr
	case shareErr != nil:
		return next, shareErr
	case cgpu == "true":
		next.Mode = CGPU
	case share == "true":
		next.Mode = Share
	case cgpu == "false" || share == "false" || next.Mode == "":
		next.Mode = Exclusive
	}
	return next, nil
}

// Labelled reports whether any of a node's labels is one that asks for a mode.
func Labelled(labels map[string]string) bool {
	_, scheduled := labels[ack.NodeLabelSchedule]
	return scheduled || len(olderLabels(labels)) > 0
}

// olderLabels are those of a node's labels that are ScheduleLabel's predecessors,
// nil if there are none.
func olderLabels(labels map[string]string) map[string]string {
	var older map[string]string
	for _, key := range []string{ack.NodeLabelCGPU, ack.NodeLabelGPUShare} {
		if value, ok := labels[key]; ok {
			if older == nil {
				older = map[string]string{}
			}
			older[key] = value
		}
	}
	return older
}

// unchanged is a, less what was overruled and is no longer on the node as it was.
func (a Asked) unchanged(labels map[string]string) Asked {
	older := olderLabels(labels)
	maps.DeleteFunc(older, func(key, value string) bool {
		overruled, ok := a.Overruled[key]
		return !ok || overruled != value
	})
	if len(older) == 0 {
		older = nil
	}
	return Asked{Mode: a.Mode, Overruled: older}
}

// olderLabel is the value of a label that counts, "" if it does not.
func (a Asked) olderLabel(labels map[string]string, key string) (string, error) {
	if _, overruled := a.Overruled[key]; overruled {
		return "", nil
	}
	switch value := labels[key]; value {
	case "", "true", "false":
		return value, nil
	default:
		return "", fmt.Errorf(`node label %s=%q is not a known value: use "true" or "false", or the label %s`, key, value,
			ack.NodeLabelSchedule)
	}
}

// PlacementFromLabels returns the placement that a node's labels ask for:
// Binpack where PlacementLabel is absent, and, with an error that names the
// value, where it is not known.
func PlacementFromLabels(labels map[string]string) (Placement, error) {
	switch value, ok := labels[ack.NodeLabelPlacement]; {
	case !ok || value == string(Binpack):
		return Binpack, nil
	case value == string(Spread):
		return Spread, nil
	default:
		return Binpack, fmt.Errorf("node label %s=%q is not a known value: use %s or %s; shares are placed by %s",
			ack.NodeLabelPlacement, value, Binpack, Spread, Binpack)
	}
}

// SlotLimits are how many shares a GPU takes by default, and at most, where so many are kept apart, 0 for any number.
func SlotLimits(apart int64) (def, limit int64) {
	if apart > 0 {
		return apart, apart
	}
	return DefaultSlots, MaxSlots
}

// SlotsFromLabels returns how many shares a GPU of the node takes, at most
// limit. Where MaxPodLabel is absent that is def; where it is not a whole
// number from 1 to limit, it is def too, with an error that names the value.
func SlotsFromLabels(labels map[string]string, def, limit int64) (int64, error) {
	value, ok := labels[ack.NodeLabelMaxPod]
	if !ok {
		return def, nil
	}
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < 1 || n > limit {
		return def, fmt.Errorf("node label %s=%q is not a whole number from 1 to %d: GPUs take the default of %d shares",
			ack.NodeLabelMaxPod, value, limit, def)
	}
	return n, nil
}
