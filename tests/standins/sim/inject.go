// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Faults describes what Inject takes.
const Faults = `lost | hang | xid=N | recovery=N | ecc=N | heal`

// ofApplications are XIDs that a program brings about: the driver wants nothing done.
var ofApplications = []uint64{11, 13, 14, 25, 31, 32, 37, 43, 45, 68, 69, 80, 109, 137}

// Inject breaks a card, or heals it:
//
//	lost         it has fallen off the bus
//	hang         no call on it returns
//	xid=N        the event; unless N is one that applications bring about, the driver
//	             wants the card reset
//	recovery=N   the recovery action that the driver wants, as NVML's number
//	ecc=N        N more uncorrectable memory errors, and their event
//	heal         nothing is wrong with it
func (s *Spec) Inject(card int, fault string) error {
	c := &s.Cards[card]
	name, value, _ := strings.Cut(fault, "=")
	var number uint64
	if slices.Contains([]string{"xid", "recovery", "ecc"}, name) {
		var err error
		if number, err = strconv.ParseUint(value, 10, 31); err != nil {
			return fmt.Errorf("fault %q: %s= takes a number: %w", fault, name, err)
		}
		fault = name
	}
	switch fault {
	case "lost":
		c.Fault.Lost = true
	case "hang":
		c.Fault.Hangs = true
	case "xid":
		s.tell(card, "xid", number)
		if !slices.Contains(ofApplications, number) {
			s.want(card, int(nvml.GPU_RECOVERY_ACTION_GPU_RESET))
		}
	case "recovery":
		s.want(card, int(number))
	case "ecc":
		c.State.Uncorrected += int64(number)
		s.tell(card, "doubleBitECC", 0)
	case "heal":
		c.Fault = Fault{}
		c.State.Uncorrected, c.State.RemappedRows = 0, RemappedRows{}
		s.want(card, int(nvml.GPU_RECOVERY_ACTION_NONE))
	default:
		return fmt.Errorf("unknown fault %q: want %s", fault, Faults)
	}
	return nil
}

// want changes the recovery action, which is an event.
func (s *Spec) want(card, action int) {
	if c := &s.Cards[card]; c.State.RecoveryAction != action {
		c.State.RecoveryAction = action
		s.tell(card, "recoveryAction", 0)
	}
}

// tell adds an event. Its number is larger than that of any before, also of those that
// are no longer in the file.
func (s *Spec) tell(card int, kind string, data uint64) {
	next := uint64(time.Now().UnixNano())
	if n := len(s.Events); n > 0 {
		next = max(next, s.Events[n-1].Number+1)
	}
	s.Events = append(s.Events, Event{Number: next, Card: card, Type: kind, Data: data})
}

// Find finds a card by its index, alone or as in the name of its device: "2", "gpu-2".
// Indices count in the order of PCI addresses.
func (s *Spec) Find(name string) (int, error) {
	index, err := strconv.Atoi(strings.TrimPrefix(name, "gpu-"))
	if err != nil || index < 0 || index >= len(s.Cards) {
		return 0, fmt.Errorf("no GPU %q: want gpu-0 to gpu-%d", name, len(s.Cards)-1)
	}
	order := make([]int, len(s.Cards))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(s.Cards[a].BusID, s.Cards[b].BusID) })
	return order[index], nil
}
