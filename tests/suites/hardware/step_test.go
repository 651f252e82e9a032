// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// step is one thing that is tried: a test, in a namespace of its own. Each check of it is a row of the report.
type step struct {
	*testing.T
	ns *harness.Namespace
	// mode is the table of its rows.
	mode string
	// began is when what the next check is about began, if it is to tell how long that took.
	began time.Time
	// rows is how many it has so far.
	rows int
}

// row tells what was observed and, where it is something else, what was wanted.
func (s *step) row(what, want, observed string, result report.Result) {
	s.Helper()
	if want != "" && want != observed {
		observed += "; wanted: " + want
	}
	row := report.Row{What: what, Observed: observed, Result: result}
	if !s.began.IsZero() {
		row.Took, s.began = time.Since(s.began), time.Time{}
	}
	if result == report.Failed {
		s.Errorf("%s: %s", what, observed)
	}
	s.rows++
	s.must(here.tell(s.mode, row))
}

// check is a row of what is right or wrong.
func (s *step) check(what, want, observed string, ok bool) {
	s.Helper()
	result := report.Failed
	if ok {
		result = report.Passed
	}
	s.row(what, want, observed, result)
}

// same is a check of what has to be like that.
func (s *step) same(what, want, got string) {
	s.check(what, want, got, got == want)
}

// came is a check of what was waited for.
func (s *step) came(what, is string) {
	s.same(what, is, is)
}

// seen is a row of what is neither right nor wrong.
func (s *step) seen(what, expected, observed string) {
	s.Helper()
	s.row(what, expected, observed, report.Seen)
}

// clock has the next check tell how long it took.
func (s *step) clock() { s.began = time.Now() }

func (s *step) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// need says why something cannot be tried on this machine; empty if it can.
type need func() string

func needIf(lacks func() bool, why string) need {
	return func() string {
		if lacks() {
			return why
		}
		return ""
	}
}

var (
	needsMPS = needIf(func() bool { return here.driver.MPSControl == "" },
		"the driver has no nvidia-cuda-mps-control")
	needsTwoGPUs = needIf(func() bool { return len(here.machine.GPUs) < 2 }, "the machine has one GPU")
	needsGPU     = needIf(func() bool { return here.simulated != "" },
		"the simulated driver knows no programs, and its nvidia-smi only which GPUs there are")
	needsSMI      = needIf(func() bool { return here.driver.SMI == "" }, "the driver has no nvidia-smi")
	needsEnforced = needIf(func() bool { return !here.mps().DriverEnforced(here.gpu().UUID) },
		"the driver lets nobody here set the compute mode")
)

// trial is a step before it is tried.
type trial struct {
	name  string
	run   func(*step)
	needs []need
}

// group are the trials on the node in one mode, a table of the report.
type group struct {
	name string
	// label is the value of the node's label for the mode; empty where it does not matter.
	label  string
	needs  []need
	trials []trial
}

// ending is how long before the end of the tests' time nothing new begins.
const ending = 30 * time.Second

// skipWithout skips what cannot be tried, and has a row that tells why.
func skipWithout(t *testing.T, mode, what string, needs []need) {
	t.Helper()
	why := ""
	if end, ends := t.Deadline(); ends && time.Until(end) < ending {
		why = "the time of the run was over"
	}
	for _, need := range needs {
		why = cmp.Or(why, need())
	}
	if why != "" {
		expect.NoError(t, here.tell(mode, report.Row{What: what, Observed: why, Result: report.NotRun}))
		t.Skip(why)
	}
}

// try tries one thing, and reports whether it has not failed. It has a row of what has none, and of what failed beside
// its checks.
func try(t *testing.T, mode string, one trial) bool {
	return t.Run(one.name, func(t *testing.T) {
		skipWithout(t, mode, one.name, one.needs)
		fmt.Fprintf(os.Stderr, "  %s: %s\n", mode, one.name)
		began, failed := time.Now(), here.told.Count(report.Failed)
		here.told.Trying = mode + ": " + one.name
		expect.NoError(t, here.store())
		s := &step{T: t, mode: mode}
		t.Cleanup(func() {
			here.told.Trying = ""
			row := report.Row{What: one.name, Result: report.Passed, Took: time.Since(began)}
			if t.Failed() {
				fmt.Fprintln(os.Stderr, "    FAILED")
				row.Observed, row.Result = "see Failures", report.Failed
			}
			if s.rows == 0 || t.Failed() && here.told.Count(report.Failed) == failed {
				here.told.Add(mode, row)
			}
			expect.NoError(t, here.store())
		})
		s.ns = here.Namespace(t)
		one.run(s)
	})
}

// TestHardware tries one mode after the other. What matters most comes first, should the time not be enough. Neither a
// trial that fails nor one that hangs is the end of the others.
func TestHardware(t *testing.T) {
	here.setMode = here.Label(t, here.node, ack.NodeLabelSchedule)
	for _, g := range append(groups(), migGroups(t)...) {
		t.Run(g.name, func(t *testing.T) {
			skipWithout(t, g.name, g.name, g.needs)
			changed := g.label == "" || try(t, g.name, trial{name: "the node changes to this mode", run: func(s *step) {
				here.setMode(g.label)
				s.awaitMode(g.label)
			}})
			for _, one := range g.trials {
				if !changed {
					one.needs = []need{func() string { return "the node is not in this mode" }}
				}
				try(t, g.name, one)
			}
		})
	}
}

// offered are the modes of devices that a node with a label's value offers.
var offered = map[string][]string{
	"default": {"exclusive"}, "share": {"share"}, "mps": {"mps"}, "cgpu": {"cgpu"}, "core_mem": {"core-mem"},
	"topology": {"topology"}, "dynamic": {"cgpu", "core-mem", "exclusive", "mps", "share"},
}

func (s *step) awaitMode(label string) {
	s.Helper()
	here.Devices(s.T, here.node, "are offered in mode "+label, func(devices []resourceapi.Device) error {
		var found []string
		singles := 0
		for _, d := range devices {
			if len(d.Taints) > 0 {
				return fmt.Errorf("device %s has the taint %s", d.Name, d.Taints[0].Key)
			}
			found = append(found, ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, ""))
			if strings.HasPrefix(d.Name, "gpu-") {
				singles++
			}
		}
		slices.Sort(found)
		found = slices.Compact(found)
		if want := offered[label]; !slices.Equal(found, want) || singles != len(here.machine.GPUs)*len(want) {
			return fmt.Errorf("there are %d devices, in the modes %q", len(devices), found)
		}
		return nil
	})
}
