// SPDX-License-Identifier: Apache-2.0

package nvmllib_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	slices.Reverse(spec.Cards)
	spec.Cards[0].Fault.Errors = map[sim.Property]string{"processes": "NO_PERMISSION"} // index 3
	root := writeRoot(t, spec, library(t))
	percent, none := 40, 0
	// Processes come in the order of their numbers, and a number may be less than that of the parent.
	first, second, third := 1, min(os.Getppid(), os.Getpid()), max(os.Getppid(), os.Getpid())
	change(t, root, func(s *sim.Spec) error {
		s.Cards[2].State.Processes = []sim.Process{ // index 1
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
	if diff := cmp.Diff(want, read("")); diff != "" {
		t.Errorf("uses (-want +got):\n%s", diff)
	}

	// One that hangs, or is lost, keeps nothing from the others, and is asked again.
	change(t, root, func(s *sim.Spec) error {
		s.Cards[0].Fault = sim.Fault{}
		s.Cards[1].Fault.Hangs, s.Cards[3].Fault.Lost = true, true // indices 2 and 0
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
		s.Cards[1].Fault, s.Cards[3].Fault = sim.Fault{}, sim.Fault{}
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

// What is on the parts of a GPU in MIG mode is not told by GPU.
func TestUsesWithMIG(t *testing.T) {
	spec := load(t, "a100x8")
	spec.Cards[3].Fault.MIGEnabled = true
	root := writeRoot(t, spec, library(t))
	a := startWorker(t, root).ask(call{What: "uses"})
	if a.Error != "" || len(a.Uses) != 7 || slices.ContainsFunc(a.Uses, func(u gpu.Use) bool { return u.Index == 3 }) {
		t.Errorf("uses %+v, error %q; want those of 7 GPUs", a.Uses, a.Error)
	}
}
