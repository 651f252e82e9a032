// SPDX-License-Identifier: Apache-2.0

// Package inventory reads the node's GPUs and their base CDI edits, and again when
// something changed.
package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/beat"
	"github.com/gpushare/dra-driver-gpushare/internal/news"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const (
	// DefaultReadInterval is how often the GPUs are read, retryReadInterval how often at
	// least while they cannot be, or one of them fails for a reason that may be gone at
	// any time. A reading makes some twenty NVML calls for each GPU, and three for each of
	// its NVLinks.
	DefaultReadInterval = time.Minute
	retryReadInterval   = 10 * time.Second
	// checkInterval is how often each GPU is asked whether it is well, by one NVML call or two.
	checkInterval = time.Second
	// looksEvery is after how many checks the driver's files are looked at, which takes
	// microseconds. What they have changed to is acted on when they were the same at
	// three looks: an installation writes them one after the other.
	looksEvery   = 2
	lookInterval = looksEvery * checkInterval
	// cutSettles is how long after the driver told that a GPU is cut otherwise it is read: an administrator's tool makes
	// one instance after the other.
	cutSettles = time.Second
)

// KeeperOptions are what a Keeper works with.
type KeeperOptions struct {
	Reader reader
	Events report.NodeEvents
	// Found gets each inventory that is another one than before, and nil first where the GPUs cannot be read at once. It
	// has room for one: a newer one replaces one that nobody has received, and the GPUs are looked at meanwhile.
	Found chan *prepare.Inventory
	// Health is told each second what the GPUs answer.
	Health interface {
		Observe(ctx context.Context, conditions []gpu.Condition)
	}
	// Fail ends the process for what only another one can do.
	Fail  context.CancelCauseFunc
	Clock clock.Clock
	// Rescan has the GPUs read at once.
	Rescan <-chan struct{}
	// ReadInterval is how often the GPUs are read; 0 is DefaultReadInterval.
	ReadInterval time.Duration
}

// Keeper keeps the agent's picture of the GPUs up to date.
type Keeper struct {
	KeeperOptions

	current *prepare.Inventory
	// failed are the GPUs that did not answer when they were asked last, by UUID.
	failed map[string]bool
	// allFailed says that none of them answered.
	allFailed bool
	// news tells what was not logged yet.
	news news.Teller
	// cut is told that a GPU is cut into other MIG instances.
	cut chan struct{}
}

// New returns a Keeper, which has to Run.
func New(o KeeperOptions) *Keeper {
	o.ReadInterval = cmp.Or(o.ReadInterval, DefaultReadInterval)
	return &Keeper{KeeperOptions: o, cut: make(chan struct{}, 1)}
}

// Cut says that a GPU was cut into other MIG instances, or its MIG mode was switched: the GPUs are read soon. It may be
// called beside Run.
func (i *Keeper) Cut() { signal.Send(i.cut) }

// reader is a *Reader.
type reader interface {
	// Check asks the GPUs of the last reading whether they are well; false if they cannot
	// be asked before the next one.
	Check(ctx context.Context) ([]gpu.Condition, bool)
	Read(ctx context.Context) (*prepare.Inventory, error)
	Replaced(ctx context.Context) error
}

// Run reads the GPUs at once, and again whenever it is time.
func (i *Keeper) Run(ctx context.Context) {
	next := i.refresh(ctx)
	if i.current == nil {
		i.hand(nil)
	}
	read, check := i.Clock.After(next), beat.After(i.Clock, checkInterval)
	var settled <-chan time.Time
	var replaced error
	var same int // how often in a row
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-read:
			// A GPU that hangs is found sooner by this than by reading it.
			i.check(ctx)
			read = i.Clock.After(i.refresh(ctx))
			continue
		case <-i.Rescan:
			read = i.Clock.After(i.refresh(ctx))
			continue
		case <-i.cut:
			if settled == nil {
				settled = i.Clock.After(cutSettles)
			}
			continue
		case <-settled:
			settled = nil
			read = i.Clock.After(i.refresh(ctx))
			continue
		case <-check:
		}
		if i.check(ctx) {
			read = i.Clock.After(i.refresh(ctx))
		}
		check = beat.After(i.Clock, checkInterval)
		if n++; n%looksEvery != 0 {
			continue
		}
		err := i.replaced(ctx)
		if err == nil || replaced == nil || err.Error() != replaced.Error() {
			same = 0
		}
		replaced = err
		if same++; err != nil && same == 3 {
			i.Events.Normal(v1alpha1.ReasonDriverReplaced, "The plugin restarts: "+err.Error())
			i.Fail(fmt.Errorf("restart: %w", err))
			return
		}
	}
}

// replaced is an error where the driver was replaced. That nobody can tell, as where its files
// do not answer, is none: another process would know as little.
func (i *Keeper) replaced(ctx context.Context) error {
	err := i.Reader.Replaced(ctx)
	if err == nil || errors.Is(err, nvml.ErrReplaced) {
		i.news.Is("replaced", "")
		return err
	}
	if i.news.Is("replaced", err.Error()) && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "It is not known whether the driver was replaced, will look again", "every",
			lookInterval)
	}
	return nil
}

// refresh reads the GPUs once, and says after how long to do so again. What was
// read before stays in force if they cannot be read now.
func (i *Keeper) refresh(ctx context.Context) time.Duration {
	logger := klog.FromContext(ctx)
	found, err := i.Reader.Read(ctx)
	if errors.Is(err, nvml.ErrReplaced) || ctx.Err() != nil {
		return i.retryInterval() // Run is about to end
	}
	if err != nil {
		if i.news.Is("unreadable", err.Error()) {
			logger.Error(err, "The node's GPUs cannot be read, will try again", "every", i.retryInterval(), "readBefore",
				i.current != nil)
		}
		if i.current == nil {
			i.Events.Warn(v1alpha1.ReasonDriverUnavailable, "No GPUs are offered on this node: "+err.Error())
		}
		return i.retryInterval()
	}
	i.news.Is("unreadable", "")
	i.Events.Clear(v1alpha1.ReasonDriverUnavailable)
	i.reportFaults(ctx, found.Machine)
	if !i.isCurrent(found) {
		i.current = found
		i.hand(found)
		logger.Info("Read the node's GPUs", "usable", len(found.Machine.GPUs), "inMIGMode", len(found.Machine.Partitioned),
			"leftOut", len(found.Machine.Faults),
			"driverVersion", found.Machine.DriverVersion, "cudaDriverVersion", found.Machine.CUDADriverVersion)
	}
	if i.allFailed || slices.ContainsFunc(found.Machine.Faults,
		func(f gpu.Fault) bool { return f.Reason == gpu.FaultUnreadable }) {
		return i.retryInterval()
	}
	return i.ReadInterval
}

// hand hands an inventory on, in place of one that nobody has received. It does not block.
func (i *Keeper) hand(found *prepare.Inventory) {
	select {
	case <-i.Found:
	default:
	}
	i.Found <- found
}

func (i *Keeper) retryInterval() time.Duration { return min(i.ReadInterval, retryReadInterval) }

// check tells how the GPUs are, and reports whether to read them again: one that was left out
// answers, or none does any more, as after the driver was reloaded.
func (i *Keeper) check(ctx context.Context) (again bool) {
	if i.current == nil {
		return false
	}
	machine := i.current.Machine
	conditions, asked := i.Reader.Check(ctx)
	if ctx.Err() != nil {
		return false // the end of the process cut the GPUs' answers off
	}
	if !asked {
		conditions = nil
		for _, g := range machine.All() {
			conditions = append(conditions, gpu.Condition{Index: g.Index, UUID: g.UUID, Failure: gpu.FailureDriver,
				Message: "the NVIDIA driver does not answer: see the node's other Events"})
		}
	}
	i.Health.Observe(ctx, conditions)
	failed, all := map[string]bool{}, asked && len(conditions) > 0
	for _, c := range conditions {
		failed[c.UUID] = c.Failure != ""
		// What hangs is not asked again.
		all = all && c.Failure != "" && c.Failure != gpu.FailureNoAnswer
		leftOut := slices.ContainsFunc(machine.Faults, func(f gpu.Fault) bool { return f.UUID == c.UUID })
		again = again || c.Failure == "" && i.failed[c.UUID] && leftOut
	}
	i.failed = failed
	again = again || all && !i.allFailed
	i.allFailed = all
	return again
}

// isCurrent reports whether the inventory is what is in force. The machine may be the
// same and the driver's files other ones.
func (i *Keeper) isCurrent(found *prepare.Inventory) bool {
	return i.current != nil && reflect.DeepEqual(i.current.Machine, found.Machine) &&
		reflect.DeepEqual(i.current.Base, found.Base)
}

// reportFaults logs what has changed, and tells in Events what there is.
func (i *Keeper) reportFaults(ctx context.Context, m *gpu.Machine) {
	logger := klog.FromContext(ctx)
	for _, f := range m.Faults {
		if i.news.Is(fmt.Sprint("left out ", f.Index), f.String()) {
			logger.Info("A GPU is left out", "index", f.Index, "uuid", f.UUID, "reason", f.Reason, "message", f.Message)
		}
	}
	for _, g := range m.GPUs {
		i.news.Is(fmt.Sprint("left out ", g.Index), "")
	}
	for _, p := range m.Partitioned {
		i.news.Is(fmt.Sprint("left out ", p.Index), "")
	}
	if i.news.Is("links", fmt.Sprint(m.LinkFaults)) && len(m.LinkFaults) > 0 {
		logger.Info("GPUs disagree about the NVLink lanes between them, counting the smaller number", "faults", m.LinkFaults)
	}
	if i.news.Is("lanes", fmt.Sprint(m.LaneFaults)) && len(m.LaneFaults) > 0 {
		logger.Info("GPUs have fewer NVLink lanes to NVSwitches than others of their model", "faults", m.LaneFaults)
	}
	if i.news.Is("fabric", fmt.Sprint(m.FabricFaults)) && len(m.FabricFaults) > 0 {
		logger.Info("NVIDIA's fabric manager has not connected GPUs", "faults", m.FabricFaults)
	}
	tell(i.Events, v1alpha1.ReasonLeftOut, "Not offered: ", m.Faults)
	tell(i.Events, v1alpha1.ReasonFabricNotReady, "NVIDIA's fabric manager has not connected these GPUs to NVSwitches, "+
		"and programs may fail with CUDA's error 802 (system not yet initialized): see what \"systemctl status "+
		"nvidia-fabricmanager\" says on the node: ", m.FabricFaults)
	tell(i.Events, v1alpha1.ReasonLinksInconsistent, "Counting the smaller number of lanes, see whether \"nvidia-smi "+
		"nvlink --status\" shows links that are down: ", m.LinkFaults)
	tell(i.Events, v1alpha1.ReasonNVLinkDegraded, "Offered after the others in mode topology, see which links are down "+
		"with \"nvidia-smi nvlink --status\": ", m.LaneFaults)
}

// tell reports the faults in one Event, or that there are none.
func tell[F fmt.Stringer](events report.NodeEvents, reason, prefix string, faults []F) {
	if len(faults) == 0 {
		events.Clear(reason)
		return
	}
	lines := make([]string, 0, len(faults))
	for _, f := range faults {
		lines = append(lines, f.String())
	}
	events.Warn(reason, prefix+strings.Join(lines, "; "))
}
