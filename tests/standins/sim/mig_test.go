// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func cutMachine(t *testing.T, table string) *Spec {
	t.Helper()
	s, err := Load("../../../demo/machines/migx4.yaml")
	expect.NoError(t, err)
	model := s.Models["a100-80"]
	model.MIGProfiles = table
	s.Models["a100-80"] = model
	s.GPUs[0].MIG.Instances = nil
	return s
}

// What a GPU of the seven-slice family can hold: 77 sets of profiles, leaving out the one with media engines, by a
// count of its own that takes memory slices alone. No two instances have one id.
func TestWhatAGPUHolds(t *testing.T) {
	s := cutMachine(t, "a100-80")
	table := MIGTable("a100-80")
	sets := map[string]bool{}
	var fill func(instances []MIGInstance, names []string)
	fill = func(instances []MIGInstance, names []string) {
		ids := map[int]bool{}
		s.GPUs[0].MIG.Instances = instances
		for _, id := range s.gpuInstanceIDs(0) {
			if ids[id] || id > 14 {
				t.Fatalf("%v: id %d", instances, id)
			}
			ids[id] = true
		}
		sorted := slices.Sorted(slices.Values(names))
		sets[strings.Join(sorted, " ")] = true
		for _, p := range table {
			for _, start := range p.Starts {
				next := MIGInstance{Profile: p.Kind.Profile, Start: start}
				if len(instances) > 0 && start <= instances[len(instances)-1].Start || p.Kind.Profile == "1g.10gb+me" {
					continue
				}
				free := true
				for _, i := range instances {
					q, _ := s.profile(0, i.Profile)
					free = free && (start >= i.Start+q.size || i.Start >= start+p.Kind.Size)
				}
				err := s.fits(0, instances, next)
				if (err == nil) != free {
					t.Fatalf("%s at %d beside %v: %v, by memory slices %v", p.Kind.Profile, start, instances, err, free)
				}
				if free {
					fill(append(slices.Clone(instances), next), append(slices.Clone(names), p.Kind.Profile))
				}
			}
		}
	}
	fill(nil, nil)
	// The set of nothing is none of the 77.
	if got := len(sets) - 1; got != 77 {
		t.Errorf("%d sets of profiles, want 77", got)
	}
}

func TestAdministratorsCommands(t *testing.T) {
	start := 4
	for name, tc := range map[string]struct {
		table string
		do    []string
		fails string
	}{
		"a place that is taken":    {"a100-80", []string{"+3g.40gb@4", "+1g.10gb@6"}, "insufficient resources"},
		"no such place":            {"a100-80", []string{"+2g.20gb@6"}, "cannot begin at slice 6, only at [0 2 4]"},
		"no such profile":          {"a100-80", []string{"+3g.71gb@4"}, `no profile "3g.71gb"`},
		"a second with engines":    {"a100-80", []string{"+1g.10gb+me@0", "+1g.10gb+me@1"}, "1 of 1g.10gb+me at most"},
		"beside all engines":       {"rtx-pro-6000", []string{"+1g.24gb+me.all@0", "+1g.24gb@3"}, "has all engines"},
		"beside all, without any":  {"rtx-pro-6000", []string{"+1g.24gb+me.all@0", "+1g.24gb-me@3"}, ""},
		"not there":                {"a100-80", []string{"-1g.10gb@0"}, "no 1g.10gb at slice 0"},
		"in use":                   {"a100-80", []string{"+3g.40gb@4", "use", "-3g.40gb@4"}, "in use"},
		"in use, all of them":      {"a100-80", []string{"+3g.40gb@4", "use", "clear"}, "in use"},
		"in use, another one":      {"a100-80", []string{"+3g.40gb@4", "+1g.10gb@0", "use", "-1g.10gb@0"}, ""},
		"in use, and reset":        {"a100-80", []string{"+3g.40gb@4", "reset", "+3g.40gb@4"}, ""},
		"off, and cut before":      {"a100-80", []string{"off", "+3g.40gb@4"}, ""},
		"off and reset":            {"a100-80", []string{"off", "reset", "+3g.40gb@4"}, "not in MIG mode"},
		"compute instances":        {"a100-80", []string{"+3g.40gb@4/1,2"}, ""},
		"too many of them":         {"a100-80", []string{"+3g.40gb@4/2,2"}, "have 4 slices, it has 3"},
		"a compute instance of 5":  {"a100-80", []string{"+7g.80gb@0/5"}, "no compute instances of 5 slices"},
		"no number":                {"a100-80", []string{"+3g.40gb@four"}, "want PROFILE@START"},
		"nothing that is known":    {"a100-80", []string{"halve"}, "unknown change"},
		"a model that is not told": {"", []string{"+1g.10gb@0"}, "no profile"},
	} {
		t.Run(name, func(t *testing.T) {
			s := cutMachine(t, tc.table)
			s.GPUs[1].MIG = MIG{}
			var err error
			for _, what := range tc.do {
				if what == "use" {
					s.GPUs[0].State.Processes = []Process{{PID: 1, MemoryMiB: 1, Instance: &start}}
					continue
				}
				err = s.Inject(0, "mig="+what)
			}
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("the last answers %v, want %q", err, tc.fails)
			}
			if err := s.validate(); err != nil {
				t.Errorf("the machine is not valid any more: %v", err)
			}
		})
	}
}

// A machine file cannot say what no GPU is.
func TestMachineFilesWithMIG(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Spec)
		says   string
	}{
		"two in one place": {func(s *Spec) {
			s.GPUs[0].MIG.Instances = []MIGInstance{{Profile: "3g.40gb", Start: 4}, {Profile: "1g.10gb", Start: 6}}
		}, "cards[0].mig.instances[1]"},
		"cut and not in MIG mode": {func(s *Spec) {
			s.GPUs[0].MIG = MIG{Instances: []MIGInstance{{Profile: "3g.40gb", Start: 4}}}
		}, "cards[0].mig.instances"},
		"no such table": {func(s *Spec) {
			m := s.Models["a100-80"]
			m.MIGProfiles = "v100"
			s.Models["a100-80"] = m
		}, "models[a100-80].migProfiles"},
	} {
		t.Run(name, func(t *testing.T) {
			s := cutMachine(t, "a100-80")
			tc.change(s)
			if err := s.validate(); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one with %q", err, tc.says)
			}
		})
	}
}

// Two instances that were made one after the other in one place have different UUIDs, as all others have.
func TestUUIDsOfInstances(t *testing.T) {
	s := cutMachine(t, "a100-80")
	uuids := map[string]string{}
	for range 20 {
		for _, what := range []string{"mig=+3g.40gb@4/1,2", "mig=+1g.10gb@0"} {
			expect.NoError(t, s.Inject(0, what))
		}
		for _, d := range s.migDevices(0) {
			uuids[d.uuid] = fmt.Sprint(d.gi, d.ci)
		}
		expect.NoError(t, s.Inject(0, "mig=clear"))
	}
	for _, d := range s.migDevices(1) {
		uuids[d.uuid] = ""
	}
	for _, d := range s.ForNode("another").migDevices(1) {
		uuids[d.uuid] = ""
	}
	if len(uuids) != 20*3+4+4 {
		t.Errorf("%d UUIDs of 68 instances: %v", len(uuids), slices.Sorted(maps.Values(uuids)))
	}
}
