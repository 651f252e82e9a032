// Package mode turns the scheduling labels of a node into the mode its cards
// are served in. It decides; it reads and writes nothing.
package mode

import (
	"fmt"
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

// Node labels that steer a node's cards; names and values are those of ACK.
const (
	ScheduleLabel = "ack.node.gpu.schedule"
	MaxPodLabel   = "ack.node.gpu.max-pod"
)

// DefaultSlots is how many shares a card takes unless MaxPodLabel says
// otherwise: the limit that ACK documents for one card.
const DefaultSlots = 20

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

// FromLabels returns the mode that a node's labels ask for: Exclusive when
// ScheduleLabel is absent. An unknown value is an error that names it.
func FromLabels(labels map[string]string) (Mode, error) {
	value, ok := labels[ScheduleLabel]
	if !ok {
		return Exclusive, nil
	}
	m, ok := labelValues()[value]
	if !ok {
		return "", fmt.Errorf("node label %s=%q is not a known value: use one of default, share, cgpu, core_mem, mps, topology, dynamic", ScheduleLabel, value)
	}
	return m, nil
}

// SlotsFromLabels returns how many shares a card of the node takes. Where
// MaxPodLabel is absent that is DefaultSlots; where it is not a whole number
// of at least 1, it is DefaultSlots too, with an error that names the value.
func SlotsFromLabels(labels map[string]string) (int64, error) {
	value, ok := labels[MaxPodLabel]
	if !ok {
		return DefaultSlots, nil
	}
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < 1 {
		return DefaultSlots, fmt.Errorf("node label %s=%q is not a whole number of at least 1: cards take the default of %d shares", MaxPodLabel, value, DefaultSlots)
	}
	return n, nil
}
