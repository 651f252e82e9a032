// SPDX-License-Identifier: Apache-2.0

package nvmllib_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// a100 are the profiles of an A100 with 80 GB, as NVIDIA's MIG User Guide has them: what an instance of each is.
var a100 = map[string]gpu.Instance{
	"1g.10gb": {ProfileID: 19, Profile: "1g.10gb", Size: 1, MemoryMiB: 9728, SMCount: 14, CopyEngines: 1},
	"1g.10gb+me": {ProfileID: 20, Profile: "1g.10gb+me", Size: 1, MemoryMiB: 9728, SMCount: 14, CopyEngines: 1,
		Decoders: 1, JPEGs: 1, OFAs: 1},
	"2g.20gb": {ProfileID: 14, Profile: "2g.20gb", Size: 2, MemoryMiB: 19968, SMCount: 28, CopyEngines: 2, Decoders: 1},
	"3g.40gb": {ProfileID: 9, Profile: "3g.40gb", Size: 4, MemoryMiB: 40192, SMCount: 42, CopyEngines: 3, Decoders: 2},
	"7g.80gb": {ProfileID: 0, Profile: "7g.80gb", Size: 8, MemoryMiB: 80896, SMCount: 98, CopyEngines: 7, Decoders: 5,
		JPEGs: 1, OFAs: 1},
}

func instance(profile string, start, gi, ci int, leftOut string) gpu.Instance {
	i := a100[profile]
	i.Start, i.InstanceID, i.LeftOut = start, gpu.InstanceID{GI: gi, CI: ci}, leftOut
	return i
}

// doTo0 does what an administrator does to GPU 0.
func doTo0(t *testing.T, root string, what ...string) {
	t.Helper()
	change(t, root, func(s *sim.Spec) error {
		for _, w := range what {
			if err := s.Inject(0, w); err != nil {
				return err
			}
		}
		return nil
	})
}

// What pkg/gpu/nvml makes of GPUs that an administrator has cut.
func TestInstances(t *testing.T) {
	content := library(t)
	for name, tc := range map[string]struct {
		do   []string
		want []gpu.Instance
	}{
		"not cut": {[]string{"mig=clear"}, nil},
		"as the machine file says": {nil, []gpu.Instance{
			instance("3g.40gb", 0, 2, 0, ""), instance("2g.20gb", 4, 5, 0, ""), instance("1g.10gb", 6, 13, 0, ""),
		}},
		"ids by place": {[]string{"mig=clear", "mig=+3g.40gb@4", "mig=+1g.10gb+me@0", "mig=+1g.10gb@3"}, []gpu.Instance{
			instance("1g.10gb+me", 0, 7, 0, ""), instance("1g.10gb", 3, 10, 0, ""), instance("3g.40gb", 4, 1, 0, ""),
		}},
		"a GPU instance without a compute instance": {[]string{"mig=clear", "mig=+3g.40gb@4/none"}, []gpu.Instance{
			instance("3g.40gb", 4, 1, gpu.NoCI, "it has no compute instance: make one (nvidia-smi mig -i 0000:07:00.0 -gi 1 "+
				"-cci), or destroy it (nvidia-smi mig -i 0000:07:00.0 -gi 1 -dgi)"),
		}},
		"several compute instances": {[]string{"mig=clear", "mig=+3g.40gb@4/1,2"}, []gpu.Instance{
			instance("3g.40gb", 4, 1, gpu.NoCI, "it has 2 compute instances, which share its memory and its faults: give it "+
				"one that is as large as itself"),
		}},
		"a small compute instance": {[]string{"mig=clear", "mig=+3g.40gb@4/2"}, []gpu.Instance{
			instance("3g.40gb", 4, 1, gpu.NoCI,
				"its compute instance has 2 of its 3 slices: give it one that is as large as itself"),
		}},
		"the whole GPU": {[]string{"mig=clear", "mig=+7g.80gb@0"}, []gpu.Instance{instance("7g.80gb", 0, 0, 0, "")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := writeRoot(t, load(t, "migx4"), content)
			doTo0(t, root, tc.do...)
			m := startWorker(t, root).read()
			if len(m.Faults) > 0 || len(m.Partitioned) != 2 || len(m.GPUs) != 2 {
				t.Fatalf("faults %v, %d GPUs in MIG mode, %d others; want none, 2 and 2", m.Faults, len(m.Partitioned), len(m.GPUs))
			}
			got := m.Partitioned[0]
			cut := slices.Clone(got.Instances)
			for i := range cut {
				cut[i].UUID, cut[i].Recut = "", false
			}
			expect.Equal(t, tc.want, cut, "instances")
			for _, i := range got.Instances {
				if recut := strings.HasSuffix(i.LeftOut, "give it one that is as large as itself"); i.Recut != recut {
					t.Errorf("recut: %t of one that is left out because %q", i.Recut, i.LeftOut)
				}
				if strings.HasPrefix(i.UUID, "MIG-") != (i.LeftOut == "") {
					t.Errorf("UUID %q of one that is left out because %q", i.UUID, i.LeftOut)
				}
			}
			if got.Index != 0 || got.MIG != (gpu.MIGMode{Capable: true, Enabled: true, Pending: true}) {
				t.Errorf("parent %+v", got)
			}
			if whole := m.GPUs[0]; whole.Index != 2 || whole.MIG != (gpu.MIGMode{Capable: true}) {
				t.Errorf("a GPU beside: %+v", whole)
			}
		})
	}
}

// An instance that is made again in the same place has the ids of the one before, and another UUID. Nothing of one
// that is gone is left, as after a reset.
func TestInstancesComeAndGo(t *testing.T) {
	root := writeRoot(t, load(t, "migx4"), library(t))
	w := startWorker(t, root)
	first := w.read().Partitioned
	if expect.Diff(first, w.read().Partitioned) != nil {
		t.Error("a second reading gives others")
	}
	doTo0(t, root, "mig=-2g.20gb@4")
	if got := w.read().Partitioned[0].Instances; len(got) != 2 || got[1].Start != 6 {
		t.Errorf("after one is gone: %+v", got)
	}
	doTo0(t, root, "mig=+2g.20gb@4")
	again := w.read().Partitioned[0].Instances[1]
	before := first[0].Instances[1]
	if again.InstanceID != before.InstanceID || again.UUID == before.UUID {
		t.Errorf("made again: %+v, before %+v; want the same ids and another UUID", again, before)
	}
	doTo0(t, root, "mig=reset")
	if got := w.read().Partitioned; len(got) != 2 || len(got[0].Instances) != 0 || len(got[1].Instances) != 4 {
		t.Errorf("after a reset: %+v", got)
	}
	doTo0(t, root, "mig=off")
	if got := w.read().Partitioned[0].MIG; got != (gpu.MIGMode{Capable: true, Enabled: true}) {
		t.Errorf("switched off and not reset yet: %+v", got)
	}
	doTo0(t, root, "mig=reset")
	if m := w.read(); len(m.Partitioned) != 1 || len(m.GPUs) != 3 {
		t.Errorf("%d GPUs in MIG mode, %d others; want 1 and 3", len(m.Partitioned), len(m.GPUs))
	}
}

// Every set of instances that the table allows is read as it was made, on every kind of GPU.
func TestInstancesOfOtherModels(t *testing.T) {
	content := library(t)
	for _, table := range sim.MIGTables() {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			spec := load(t, "migx4")
			model := spec.Models["a100-80"]
			model.MIGProfiles = table
			spec.Models["a100-80"] = model
			for i := range spec.GPUs {
				spec.GPUs[i].MIG = sim.MIG{Enabled: i == 0}
			}
			root := writeRoot(t, spec, content)
			w := startWorker(t, root)
			for _, p := range sim.MIGTable(table) {
				for _, start := range p.Starts {
					doTo0(t, root, "mig=clear", fmt.Sprintf("mig=+%s@%d", p.Kind.Profile, start))
					want := []gpu.Instance{p.At(start)}
					got := w.read().Partitioned[0].Instances
					for i := range got {
						got[i].UUID, got[i].InstanceID = "", want[0].InstanceID
					}
					expect.Equal(t, want, got, "%s at %d", p.Kind.Profile, start)
				}
			}
		})
	}
}

// What old drivers lack: names are made, as their own tools make them, and what is not told is left out.
func TestInstancesOfOldDrivers(t *testing.T) {
	content := library(t)
	read := func(lacks ...string) *gpu.Machine {
		spec := load(t, "migx4")
		spec.Driver.Lacks = lacks
		return startWorker(t, writeRoot(t, spec, content)).read()
	}
	var names []string
	for _, i := range read("nvmlDeviceGetGpuInstanceProfileInfoV").Partitioned[1].Instances {
		names = append(names, i.Profile)
	}
	if want := []string{"1g.10gb", "1g.10gb+me", "2g.20gb", "3g.40gb"}; !slices.Equal(names, want) {
		t.Errorf("profiles %q, want %q", names, want)
	}
	m := read("nvmlDeviceGetGpuInstances")
	if len(m.GPUs) != 2 || len(m.Partitioned) != 0 || len(m.Faults) != 2 ||
		!strings.Contains(m.Faults[0].Message, "nvmlDeviceGetGpuInstances") {
		t.Errorf("GPUs %d, in MIG mode %d, faults %v; want those in MIG mode left out: their instances cannot be read",
			len(m.GPUs), len(m.Partitioned), m.Faults)
	}
}

// The driver's files follow what a GPU is cut into.
func TestCapabilityFiles(t *testing.T) {
	root := writeRoot(t, load(t, "migx4"), library(t))
	access := func() (paths []string) {
		t.Helper()
		base := filepath.Join(root, sim.ProcDir, "driver/nvidia/capabilities/gpu0/mig")
		err := filepath.WalkDir(base, func(p string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				paths = append(paths, strings.TrimPrefix(p, base+"/"))
			}
			return nil
		})
		expect.NoError(t, err)
		return paths
	}
	if got, want := access(), []string{"gi13/access", "gi13/ci0/access", "gi2/access", "gi2/ci0/access", "gi5/access",
		"gi5/ci0/access"}; !slices.Equal(got, want) {
		t.Errorf("capabilities %q, want %q", got, want)
	}
	content, err := os.ReadFile(filepath.Join(root, sim.ProcDir, "driver/nvidia/capabilities/gpu0/mig/gi13/ci0/access"))
	if err != nil || !strings.HasPrefix(string(content), "DeviceFileMinor: 121\n") {
		t.Errorf("%q, %v; want minor 3+9*13+1", content, err)
	}
	minors, err := os.ReadFile(filepath.Join(root, sim.ProcDir, "driver/nvidia-caps/mig-minors"))
	// Samples of the user guide and of NVIDIA's driver.
	for _, line := range []string{"config 1", "monitor 2", "gpu0/gi0/access 3", "gpu3/gi3/ci3/access 439",
		"gpu6/gi11/ci5/access 918", "gpu31/gi14/ci7/access 4322"} {
		if err != nil || !slices.Contains(strings.Split(string(minors), "\n"), line) {
			t.Errorf("mig-minors lack %q: %v", line, err)
		}
	}
	doTo0(t, root, "mig=clear", "mig=+3g.40gb@4/1,1,1")
	want := []string{"gi1/access", "gi1/ci0/access", "gi1/ci1/access", "gi1/ci2/access"}
	if got := access(); !slices.Equal(got, want) {
		t.Errorf("capabilities %q, want %q", got, want)
	}
	if _, err := os.Stat(filepath.Join(root, "dev/nvidia-caps/nvidia-cap121")); !os.IsNotExist(err) {
		t.Errorf("the device node of what is gone: %v", err)
	}
	info, err := os.Stat(filepath.Join(root, "dev/nvidia-caps/nvidia-cap12"))
	if err != nil || info.Mode()&fs.ModeCharDevice == 0 {
		t.Errorf("the device node of gi1: %v", err)
	}
	doTo0(t, root, "mig=nocaps")
	if got := access(); len(got) != 0 {
		t.Errorf("capabilities %q, want none", got)
	}
}

// Events are told of the GPU, with the ids of the instance.
func TestEventsOfInstances(t *testing.T) {
	root := writeRoot(t, load(t, "migx4"), library(t))
	w := startWorker(t, root)
	for index := range 2 {
		if a := w.ask(call{What: "register", GPU: index}); a.Return != nvml.SUCCESS {
			t.Fatal(a.Return)
		}
	}
	doTo0(t, root, "xid=94/5/0", "mig=-2g.20gb@4", "xid=79")
	var got [][]int64
	for range 3 {
		a := w.ask(call{What: "wait for instances", Value: int(hung.Milliseconds())})
		if a.Return != nvml.SUCCESS {
			t.Fatal(a.Return)
		}
		got = append(got, a.Numbers)
	}
	const none = 0xFFFFFFFF
	want := [][]int64{{0, nvml.EventTypeXidCriticalError, 94, 5, 0}, {0, nvml.EventMigConfigChange, 0, none, none},
		{0, nvml.EventTypeXidCriticalError, 79, none, none}}
	expect.Equal(t, want, got, "events")
}
