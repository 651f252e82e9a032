package plugin

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/prepare"
)

const (
	reasonCardsUnavailable = "GPUDriverUnavailable"
	reasonCardLeftOut      = "GPULeftOut"
	reasonLinksDisagree    = "GPULinksInconsistent"
	reasonLanesMissing     = "GPUNVLinkDegraded"

	// unavailableInterval is how often the cards are tried again while they
	// cannot be read at all, faultInterval while single ones are left out or
	// their links contradict each other or are not all there.
	unavailableInterval = 10 * time.Second
	faultInterval       = time.Minute
)

// inventory keeps the agent's picture of the cards up to date. Cards that were
// read without a fault are not read again: their properties do not change.
type inventory struct {
	reader    *cardReader
	events    nodeEvents
	preparer  *prepare.Preparer
	publisher *publisher

	// next is how long the last reading is good for; 0 for good.
	next    time.Duration
	current *gpu.Machine
}

func (i *inventory) run(ctx context.Context) {
	for i.next != 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(i.next):
			i.refresh(ctx)
		}
	}
}

// refresh reads the cards once. What was read before stays in force if they
// cannot be read now.
func (i *inventory) refresh(ctx context.Context) {
	logger := klog.FromContext(ctx)
	found, err := i.reader.read(ctx)
	if err != nil {
		i.next = unavailableInterval
		if i.current == nil {
			logger.Error(err, "The node's GPUs cannot be read, will try again", "after", i.next)
			i.events.warn(reasonCardsUnavailable, "No GPUs are offered on this node: "+err.Error())
		} else {
			logger.Error(err, "The node's GPUs cannot be read again, will go on with what was read before and try again", "after", i.next)
		}
		return
	}
	i.events.clear(reasonCardsUnavailable)
	i.reportFaults(ctx, found.Machine)
	i.next = 0
	if len(found.Machine.Faults)+len(found.Machine.LinkFaults)+len(found.Machine.LaneFaults) > 0 {
		i.next = faultInterval
	}
	if i.current != nil && reflect.DeepEqual(i.current, found.Machine) {
		return
	}
	i.current = found.Machine
	i.preparer.SetInventory(found)
	i.publisher.SetMachine(found.Machine)
	logger.Info("Read the node's GPUs", "usable", len(found.Machine.GPUs), "leftOut", len(found.Machine.Faults),
		"driverVersion", found.Machine.DriverVersion, "cudaDriverVersion", found.Machine.CUDADriverVersion)
}

func (i *inventory) reportFaults(ctx context.Context, m *gpu.Machine) {
	logger := klog.FromContext(ctx)
	for _, f := range m.Faults {
		logger.Info("A GPU is left out", "index", f.Index, "uuid", f.UUID, "reason", f.Reason, "message", f.Message)
	}
	for _, f := range m.LinkFaults {
		logger.Info("Two GPUs disagree about the NVLink lanes between them, counting the smaller number",
			"a", f.A, "b", f.B, "lanesOfA", f.LanesOfA, "lanesOfB", f.LanesOfB)
	}
	for _, f := range m.LaneFaults {
		logger.Info("A GPU has fewer NVLink lanes to NVSwitches than others of its model", "index", f.Index, "lanes", f.Lanes, "most", f.Most)
	}
	tell(i.events, reasonCardLeftOut, "Not offered: ", m.Faults)
	tell(i.events, reasonLinksDisagree, "Counting the smaller number of lanes, see whether \"nvidia-smi nvlink --status\" shows links that are down: ", m.LinkFaults)
	tell(i.events, reasonLanesMissing, "Offered after the others in mode topology, see which links are down with \"nvidia-smi nvlink --status\": ", m.LaneFaults)
}

// tell reports the faults in one Event, or that there are none.
func tell[F fmt.Stringer](events nodeEvents, reason, prefix string, faults []F) {
	if len(faults) == 0 {
		events.clear(reason)
		return
	}
	lines := make([]string, 0, len(faults))
	for _, f := range faults {
		lines = append(lines, f.String())
	}
	events.warn(reason, prefix+strings.Join(lines, "; "))
}
