// SPDX-License-Identifier: Apache-2.0

package nvmllib_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// elsewhere is the number of a process that is in none of our PID namespaces: none has one so high. The
// driver does not tell of it, but has its memory in the sum.
const elsewhere = 1 << 22

// What pkg/gpu/nvml makes of what GPUs are used for.
func TestUses(t *testing.T) {
	spec := load(t, "a10x4")
	// NVML's order is another one than that of the indices.
	slices.Reverse(spec.GPUs)
	spec.GPUs[0].Fault.Errors = map[sim.Property]string{"processes": "NO_PERMISSION"} // index 3
	root := writeRoot(t, spec, library(t))
	percent, none := 40, 0
	// Processes come in the order of their numbers, and a number may be less than that of the parent.
	first, second, third := 1, min(os.Getppid(), os.Getpid()), max(os.Getppid(), os.Getpid())
	change(t, root, func(s *sim.Spec) error {
		s.GPUs[2].State.Processes = []sim.Process{ // index 1
			{PID: second, MemoryMiB: 66}, {PID: first, MemoryMiB: 2574, SMPercent: &percent, MPS: true},
			{PID: third, MemoryMiB: 100}, {PID: elsewhere, MemoryMiB: 10},
		}
		return nil
	})
	w := startWorker(t, root)
	machine := w.read()
	read := func(wantError string) []gpu.Use {
		t.Helper()
		a := w.ask(call{What: "uses"})
		if (wantError == "") != (a.Error == "") || !strings.Contains(a.Error, wantError) {
			t.Errorf("error %q, want %q", a.Error, wantError)
		}
		return a.Uses
	}
	want := make([]gpu.Use, 0, 4)
	for _, g := range machine.GPUs {
		want = append(want, gpu.Use{Index: g.Index, UUID: g.UUID, TotalMiB: 23028, SMPercent: &none})
	}
	want[1].UsedMiB, want[1].SMPercent, want[1].TellsMPS = 2750, &percent, true
	want[1].Processes = []gpu.Process{{PID: first, MemoryMiB: 2574, SMPercent: &percent, MPSClient: true},
		{PID: second, MemoryMiB: 66, SMPercent: &none}, {PID: third, MemoryMiB: 100, SMPercent: &none}}
	want[3].SMPercent = nil // the simulation sums up the processes, which are not told
	expect.Equal(t, want, read(""), "uses")

	// One that hangs, or is lost, keeps nothing from the others, and is asked again.
	change(t, root, func(s *sim.Spec) error {
		s.GPUs[0].Fault = sim.Fault{}
		s.GPUs[1].Fault.Hangs, s.GPUs[3].Fault.Lost = true, true // indices 2 and 0
		return nil
	})
	indices := func(uses []gpu.Use) (out []int) {
		for _, use := range uses {
			out = append(out, use.Index)
		}
		return out
	}
	if got := indices(read("GPU 2: listing the processes: no answer in time")); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("GPUs %v answer, want 1 and 3", got)
	}
	// The second time nothing waits for it: it says that it was not tried.
	if got := indices(read("not tried after")); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("GPUs %v answer, want 1 and 3", got)
	}
	change(t, root, func(s *sim.Spec) error {
		s.GPUs[1].Fault, s.GPUs[3].Fault = sim.Fault{}, sim.Fault{}
		return nil
	})
	deadline := time.Now().Add(30 * time.Second)
	for {
		got := indices(w.ask(call{What: "uses"}).Uses)
		if slices.Equal(got, []int{0, 1, 2, 3}) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("GPUs %v answer, want all of them again", got)
		}
	}
}

// Of a GPU in MIG mode its instances are read, each with its own processes.
func TestUsesWithMIG(t *testing.T) {
	root := writeRoot(t, load(t, "migx4"), library(t))
	w := startWorker(t, root)
	parents := w.read().Partitioned
	read := func() map[string]gpu.Use {
		t.Helper()
		a := w.ask(call{What: "uses"})
		if a.Error != "" {
			t.Fatal(a.Error)
		}
		byUUID := map[string]gpu.Use{}
		for _, u := range a.Uses {
			byUUID[u.UUID] = u
		}
		return byUUID
	}
	uses := read()
	if len(uses) != 3+4+2 {
		t.Errorf("%d uses, want those of 7 instances and of 2 whole GPUs: %+v", len(uses), uses)
	}
	for _, p := range parents {
		for _, i := range p.Instances {
			want := gpu.Use{Index: p.Index, UUID: i.UUID, Parent: p.UUID, TotalMiB: i.MemoryMiB}
			expect.Equal(t, want, uses[i.UUID], "%s", i.Place())
		}
	}
	first, second := parents[0].Instances[0], parents[0].Instances[1]
	change(t, root, func(s *sim.Spec) error {
		s.GPUs[0].State.Processes = []sim.Process{
			{PID: os.Getpid(), MemoryMiB: 2048, Instance: &first.Start},
			{PID: os.Getppid(), MemoryMiB: 100, Instance: &second.Start},
		}
		return nil
	})
	uses = read()
	for _, tc := range []struct {
		of   gpu.Instance
		pid  int
		used int64
	}{{first, os.Getpid(), 2048}, {second, os.Getppid(), 100}} {
		got := uses[tc.of.UUID]
		if len(got.Processes) != 1 || got.Processes[0].PID != tc.pid || got.Processes[0].MemoryMiB != tc.used ||
			got.UsedMiB != tc.used || got.SMPercent != nil {
			t.Errorf("%s: %+v; want process %d with %d MiB", tc.of.Place(), got, tc.pid, tc.used)
		}
	}
	// Another instance in the place of one: what is on it is not what was on that.
	change(t, root, func(s *sim.Spec) error {
		s.GPUs[0].State.Processes = s.GPUs[0].State.Processes[:1]
		if err := s.Inject(0, "mig=-2g.20gb@4"); err != nil {
			return err
		}
		err := s.Inject(0, "mig=+2g.20gb@4")
		s.GPUs[0].State.Processes = append(s.GPUs[0].State.Processes,
			sim.Process{PID: os.Getppid(), MemoryMiB: 100, Instance: &second.Start})
		return err
	})
	uses = read()
	if got, is := uses[second.UUID]; is {
		t.Errorf("an instance that is gone: %+v", got)
	}
	if got := uses[first.UUID]; len(got.Processes) != 1 {
		t.Errorf("the one beside: %+v", got)
	}
}
