// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Faults describes what Inject takes.
const Faults = `lost | hang | xid=N | recovery=N | ecc=N | limits-refused | limits-ignored | heal | ` + MIGFaults

// ofApplications are XIDs that a program brings about: the driver wants nothing done.
var ofApplications = []uint64{11, 13, 14, 25, 31, 32, 37, 43, 45, 68, 69, 80, 109, 137}

// Inject breaks a GPU, or heals it:
//
//	lost         it has fallen off the bus
//	hang         no call on it returns
//	xid=N        the event; unless N is one that applications bring about, the driver
//	             wants the GPU reset
//	recovery=N   the recovery action that the driver wants, as NVML's number
//	ecc=N        N more uncorrectable memory errors, and their event
//	limits-refused, limits-ignored
//	             the driver refuses to limit its memory by control group, or says that it does
//	             and does not
//	heal         nothing is wrong with it
//	mig=…        what an administrator does with it in MIG mode: see injectMIG
//	xid=N/GI/CI  an XID of a part of a GPU in MIG mode
func (s *Spec) Inject(g int, fault string) error {
	c := &s.GPUs[g]
	name, value, _ := strings.Cut(fault, "=")
	if name == "mig" {
		return s.injectMIG(g, value)
	}
	var number uint64
	var part string
	if slices.Contains([]string{"xid", "recovery", "ecc"}, name) {
		var err error
		value, part, _ = strings.Cut(value, "/")
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
		if part != "" {
			return s.tellOf(g, number, part)
		}
		s.tell(g, "xid", number)
		if !slices.Contains(ofApplications, number) {
			s.want(g, int(nvml.GPU_RECOVERY_ACTION_GPU_RESET))
		}
	case "recovery":
		s.want(g, int(number))
	case "ecc":
		c.State.Uncorrected += int64(number)
		s.tell(g, "doubleBitECC", 0)
	case "limits-refused":
		c.Fault.Errors = maps.Clone(c.Fault.Errors)
		if c.Fault.Errors == nil {
			c.Fault.Errors = map[Property]string{}
		}
		c.Fault.Errors[propertySetMemoryLimits] = "NO_PERMISSION"
	case "limits-ignored":
		c.Fault.IgnoresMemoryLimits = true
	case "heal":
		c.Fault = Fault{}
		c.State.Uncorrected, c.State.RemappedRows = 0, RemappedRows{}
		s.want(g, int(nvml.GPU_RECOVERY_ACTION_NONE))
	default:
		return fmt.Errorf("unknown fault %q: want %s", fault, Faults)
	}
	return nil
}

// want changes the recovery action, which is an event.
func (s *Spec) want(g, action int) {
	if c := &s.GPUs[g]; c.State.RecoveryAction != action {
		c.State.RecoveryAction = action
		s.tell(g, "recoveryAction", 0)
	}
}

// tell adds an event. Its number is larger than that of any before, also of those that
// are no longer in the file.
func (s *Spec) tell(g int, kind string, data uint64) {
	next := uint64(time.Now().UnixNano())
	if n := len(s.Events); n > 0 {
		next = max(next, s.Events[n-1].Number+1)
	}
	s.Events = append(s.Events, Event{Number: next, GPU: g, Type: kind, Data: data})
}

// tellOf adds an XID of an instance, "GI/CI". It is nobody else's matter: the driver wants nothing done.
func (s *Spec) tellOf(g int, xid uint64, part string) error {
	var gi, ci int
	if _, err := fmt.Sscanf(part, "%d/%d", &gi, &ci); err != nil {
		return fmt.Errorf("instance %q: want GI/CI: %w", part, err)
	}
	s.tell(g, "xid", xid)
	s.Events[len(s.Events)-1].Instance = []int{gi, ci}
	return nil
}

// Find finds a GPU by its index, alone or as in the name of its device: "2", "gpu-2".
// Indices count in the order of PCI addresses.
func (s *Spec) Find(name string) (int, error) {
	index, err := strconv.Atoi(strings.TrimPrefix(name, "gpu-"))
	if err != nil || index < 0 || index >= len(s.GPUs) {
		return 0, fmt.Errorf("no GPU %q: want gpu-0 to gpu-%d", name, len(s.GPUs)-1)
	}
	order := make([]int, len(s.GPUs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(s.GPUs[a].BusID, s.GPUs[b].BusID) })
	return order[index], nil
}
