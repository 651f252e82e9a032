// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// step is one thing that is tried: a test, whose checks are rows of the report, in a namespace of its own.
type step struct {
	*testing.T
	ns *harness.Namespace
	// began is when what the next row is about began, if the report is to say how long that took.
	began time.Time
}

func row(t *testing.T, r report.Row) {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Attr(report.RowKey, string(text))
}

// check is a row that is right or wrong.
func (s *step) check(what, granted, observed string, ok bool) {
	s.Helper()
	result := report.Passed
	if !ok {
		result = report.Failed
	}
	s.row(what, granted, observed, result)
	if !ok {
		s.Errorf("%s: %s, want %s", what, observed, granted)
	}
}

// seen is a row that is neither.
func (s *step) seen(what, granted, observed string) {
	s.Helper()
	s.row(what, granted, observed, report.Seen)
}

// compare is a row of what is documented or assumed: it is right, or worth to know.
func (s *step) compare(what, expected, observed string) {
	s.Helper()
	result := report.Seen
	if expected == observed {
		result = report.Passed
	}
	s.row(what, expected, observed, result)
}

// clock has the next row say how long it took.
func (s *step) clock() { s.began = time.Now() }

func (s *step) row(what, granted, observed string, result report.Result) {
	s.Helper()
	r := report.Row{What: what, Granted: granted, Observed: observed, Result: result}
	if !s.began.IsZero() {
		r.Took, s.began = time.Since(s.began), time.Time{}
	}
	row(s.T, r)
}

// notRun ends a test that cannot be tried.
func notRun(t *testing.T, what, why string) {
	t.Helper()
	row(t, report.Row{What: what, Observed: why, Result: report.NotRun})
	t.Skip(why)
}

// need says why something cannot be tried on this machine; empty if it can.
type need func() string

func needsMPS() string {
	if here.driver.MPSControl == "" {
		return "the driver has no nvidia-cuda-mps-control"
	}
	return ""
}

func needsTwoGPUs() string {
	if len(here.machine.GPUs) < 2 {
		return "the machine has one GPU"
	}
	return ""
}

func needsGPU() string {
	if here.simulated != "" {
		return "the simulated driver does not know which programs run"
	}
	return ""
}

func needsRealSMI() string {
	if here.simulated != "" {
		return "the stand-in for nvidia-smi tells only which GPUs there are"
	}
	return needsSMI()
}

func needsSMI() string {
	if here.driver.SMI == "" {
		return "the driver has no nvidia-smi"
	}
	return ""
}

// trial is a step before it is tried.
type trial struct {
	name  string
	run   func(*step)
	needs []need
}

// group are the trials on the node in one mode: a table of the report.
type group struct {
	name string
	// label is the value of the node's label for the mode; empty where it does not matter.
	label  string
	needs  []need
	trials []trial
}

// ending is how long before the end of the tests' time nothing new begins.
const ending = 30 * time.Second

func unmet(t *testing.T, needs []need) string {
	if end, ends := t.Deadline(); ends && time.Until(end) < ending {
		return "the time of the run was over"
	}
	for _, need := range needs {
		if why := need(); why != "" {
			return why
		}
	}
	return ""
}

// try tries one thing, and reports whether what follows can be tried.
func try(t *testing.T, one trial) bool {
	ok := false
	t.Run(one.name, func(t *testing.T) {
		if why := unmet(t, one.needs); why != "" {
			notRun(t, one.name, why)
		}
		one.run(&step{T: t, ns: here.Namespace(t)})
		ok = !t.Failed()
	})
	return ok
}

// modeLabel is the label of nodes that sets their mode.
const modeLabel = "ack.node.gpu.schedule"

// TestHardware tries one mode after the other. What matters most comes first, should the time not be enough. Neither a
// trial that fails nor one that hangs is the end of the others.
func TestHardware(t *testing.T) {
	facts(t)
	label := here.Label(t, here.node, modeLabel)
	for _, g := range append(groups(label), migGroups(t, label)...) {
		t.Run(g.name, func(t *testing.T) {
			t.Attr(report.TableKey, g.name)
			if why := unmet(t, g.needs); why != "" {
				notRun(t, "all of "+g.name, why)
			}
			changed := g.label == "" || try(t, trial{name: "the node changes to this mode", run: func(s *step) {
				label(g.label)
				s.awaitMode(g.label)
			}})
			for _, one := range g.trials {
				if !changed {
					one.needs = []need{func() string { return "the node is not in this mode" }}
				}
				try(t, one)
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
			if m := ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, ""); !slices.Contains(found, m) {
				found = append(found, m)
			}
			if strings.HasPrefix(d.Name, "gpu-") {
				singles++
			}
		}
		slices.Sort(found)
		if want := offered[label]; !slices.Equal(found, want) || singles != len(here.machine.GPUs)*len(want) {
			return fmt.Errorf("there are %d devices, in the modes %q", len(devices), found)
		}
		return nil
	})
}
