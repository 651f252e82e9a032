// Package mode turns the scheduling labels of a node into the mode its cards
// are served in and the placement of claims on them, and decides when a node
// may change its mode. It decides; it reads and writes nothing.
package mode

import (
	"fmt"
	"slices"
	"strconv"
)

// Mode is how the cards of a node are handed out. Its value is what the
// device attribute "mode" shows and what the DeviceClass <mode>.gpu.aliyun.com
// selects.
type Mode string

// The modes.
const (
	Exclusive Mode = "exclusive" // one claim per card
	Share     Mode = "share"     // many claims per card, memory counted, nothing isolated
	CGPU      Mode = "cgpu"      // memory capped, compute shared
	CoreMem   Mode = "core-mem"  // memory and compute capped
	MPS       Mode = "mps"       // memory capped by NVIDIA MPS, compute shared
	Topology  Mode = "topology"  // whole cards, best linked set first
	Dynamic   Mode = "dynamic"   // decided per card by its first claim
)

// Shared says whether several claims can hold one card in this mode.
func (m Mode) Shared() bool {
	switch m {
	case Share, CGPU, CoreMem, MPS:
		return true
	default:
		return false
	}
}

// Personalities are the modes that a card is offered in on a node of this mode:
// the mode itself, or, of a Dynamic node, all those that its first claim can
// decide for, in this order.
func (m Mode) Personalities() []Mode {
	if m == Dynamic {
		return []Mode{Exclusive, Share, CGPU, CoreMem, MPS}
	}
	return []Mode{m}
}

// Serves says whether claims of the other mode can be prepared on a node whose
// devices are published in this one; "", which is that of a node that publishes
// none, serves no mode.
func (m Mode) Serves(other Mode) bool {
	return other != "" && slices.Contains(m.Personalities(), other)
}

// Placement is the order in which shares are put on a node's cards.
type Placement string

// The placements.
const (
	Binpack Placement = "binpack" // fill a card before the next
	Spread  Placement = "spread"  // the card with the least granted memory first
)

// Node labels that steer a node's cards; names and values are those of ACK.
const (
	ScheduleLabel  = "ack.node.gpu.schedule"
	PlacementLabel = "ack.node.gpu.placement"
	MaxPodLabel    = "ack.node.gpu.max-pod"
	// CGPULabel and GPUShareLabel are ScheduleLabel's predecessors, with the
	// values "true" and "false".
	CGPULabel     = "cgpu"
	GPUShareLabel = "gpushare"
	// DisableIsolationLabel, if "true", lifts the limits of all claims of the
	// node that are prepared from then on.
	DisableIsolationLabel = "cgpu.disable.isolation"
)

// Labels lists all labels that this package reads.
func Labels() []string {
	return []string{ScheduleLabel, PlacementLabel, MaxPodLabel, CGPULabel, GPUShareLabel, DisableIsolationLabel}
}

// DefaultSlots is how many shares a card takes unless MaxPodLabel says
// otherwise: the limit that ACK documents for one card.
const DefaultSlots = 20

// MaxSlots is how many shares MaxPodLabel can allow a card at most: no claim
// can be for less than one GiB unit, and no card has more of them.
const MaxSlots = 1024

// IsolationDisabled says whether the node's labels lift the limits of what is
// prepared from now on.
func IsolationDisabled(labels map[string]string) bool {
	return labels[DisableIsolationLabel] == "true"
}

// labelValues maps the values of ScheduleLabel to modes.
func labelValues() map[string]Mode {
	return map[string]Mode{
		"default":  Exclusive,
		"share":    Share,
		"cgpu":     CGPU,
		"core_mem": CoreMem,
		"mps":      MPS,
		"topology": Topology,
		"dynamic":  Dynamic,
	}
}

// FromLabels returns the mode that a node's labels ask for. last is the mode
// they asked for before, "" if none is known.
//
// ScheduleLabel wins over the older labels. Where no label asks for anything,
// the last mode stays: taking a label off does not give whole cards back, only
// the value "default" does (facts: ACK's rule for these labels). A node that
// never had a label is Exclusive. An unknown value keeps the last mode too, ""
// if there is none, with an error that names it.
func FromLabels(labels map[string]string, last Mode) (Mode, error) {
	if value, ok := labels[ScheduleLabel]; ok {
		m, known := labelValues()[value]
		if !known {
			return last, fmt.Errorf("node label %s=%q is not a known value: use one of default, share, cgpu, core_mem, mps, topology, dynamic", ScheduleLabel, value)
		}
		return m, nil
	}
	cgpu, cgpuErr := olderLabel(labels, CGPULabel)
	share, shareErr := olderLabel(labels, GPUShareLabel)
	switch {
	case cgpuErr != nil:
		return last, cgpuErr
	case shareErr != nil:
		return last, shareErr
	case cgpu == "true":
		return CGPU, nil
	case share == "true":
		return Share, nil
	case cgpu == "false" || share == "false" || last == "":
		return Exclusive, nil
	default:
		return last, nil
	}
}

func olderLabel(labels map[string]string, key string) (string, error) {
	switch value := labels[key]; value {
	case "", "true", "false":
		return value, nil
	default:
		return "", fmt.Errorf(`node label %s=%q is not a known value: use "true" or "false", or the label %s`, key, value, ScheduleLabel)
	}
}

// PlacementFromLabels returns the placement that a node's labels ask for:
// Binpack where PlacementLabel is absent, and, with an error that names the
// value, where it is not known.
func PlacementFromLabels(labels map[string]string) (Placement, error) {
	switch value, ok := labels[PlacementLabel]; {
	case !ok || value == string(Binpack):
		return Binpack, nil
	case value == string(Spread):
		return Spread, nil
	default:
		return Binpack, fmt.Errorf("node label %s=%q is not a known value: use %s or %s; shares are placed by %s", PlacementLabel, value, Binpack, Spread, Binpack)
	}
}

// SlotsFromLabels returns how many shares a card of the node takes, at most
// limit. Where MaxPodLabel is absent that is def; where it is not a whole
// number from 1 to limit, it is def too, with an error that names the value.
func SlotsFromLabels(labels map[string]string, def, limit int64) (int64, error) {
	value, ok := labels[MaxPodLabel]
	if !ok {
		return def, nil
	}
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < 1 || n > limit {
		return def, fmt.Errorf("node label %s=%q is not a whole number from 1 to %d: cards take the default of %d shares", MaxPodLabel, value, limit, def)
	}
	return n, nil
}
