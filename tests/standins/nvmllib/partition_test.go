// SPDX-License-Identifier: Apache-2.0

package nvmllib_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// partition makes the calls of gpunvml.Partitions, in the worker.
func partition(ctx context.Context, p *gpunvml.Partitions, c call) (a answer) {
	var err error
	switch what := strings.TrimPrefix(c.What, "partition "); what {
	case "instances":
		a.Instances, err = p.Instances(ctx, c.UUID)
	case "make-gi":
		var gi int
		gi, err = p.MakeGPUInstance(ctx, c.UUID, c.Place)
		a.Numbers = []int64{int64(gi)}
	case "make-ci":
		var made gpu.Instance
		made, err = p.MakeComputeInstance(ctx, c.UUID, c.Value)
		a.Instances = []gpu.Instance{made}
	case "destroy":
		err = p.Destroy(ctx, c.UUID, c.Value)
	default:
		err = fmt.Errorf("unknown call %q", what)
	}
	if err != nil {
		a.Error, a.Taken, a.InUse = err.Error(), errors.Is(err, gpu.ErrPlaceTaken), errors.Is(err, gpu.ErrInstanceInUse)
	}
	return a
}

// serve answers for the kernel module until the test ends.
func serve(t *testing.T, root string, p sim.Partitioning) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.ServeMIG(ctx, root) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// What pkg/gpu/nvml does to make and to destroy an instance, and what the driver says.
func TestPartitions(t *testing.T) {
	root := writeRoot(t, load(t, "migx4"), library(t))
	var fails sync.Map // calls
	serve(t, root, sim.Partitioning{Fails: func(_ int, call string) (nvml.Return, bool) {
		if _, fail := fails.Load(call); fail {
			return nvml.ERROR_UNKNOWN, false
		}
		return nvml.SUCCESS, true
	}})
	doTo0(t, root, "mig=clear")
	w := startWorker(t, root)
	parent := w.ask(call{What: "read profiles"}).Machine.Partitioned[0]
	if len(parent.Profiles) != 7 || !slices.Equal(parent.Profiles[0].Starts, []int{0, 1, 2, 3, 4, 5, 6}) ||
		parent.Profiles[2].Kind.Size != 4 || parent.Profiles[2].Count != 2 {
		t.Errorf("profiles %+v", parent.Profiles)
	}
	do := func(what string, value int, place gpu.Place) answer {
		t.Helper()
		return w.ask(call{What: "partition " + what, UUID: parent.UUID, Value: value, Place: place})
	}
	must := func(a answer) answer {
		t.Helper()
		if a.Error != "" {
			t.Fatal(a.Error)
		}
		return a
	}
	half := gpu.Place{ProfileID: 9, Start: 4, Size: 4}
	gi := int(must(do("make-gi", 0, half)).Numbers[0])
	if got := must(do("instances", 0, half)).Instances; gi != 1 || len(got) != 1 || got[0].PlaceOf() != half ||
		got[0].CI != gpu.NoCI ||
		!strings.HasPrefix(got[0].LeftOut, "it has no compute instance") {
		t.Errorf("GPU instance %d: %+v", gi, got)
	}
	made := must(do("make-ci", gi, half)).Instances[0]
	if made.UUID == "" || made.LeftOut != "" || made.Profile != "3g.40gb" || made.GI != gi || made.CI != 0 {
		t.Errorf("made: %+v", made)
	}
	expect.Equal(t, []gpu.Instance{made}, w.read().Partitioned[0].Instances, "what was made is read as")
	// What is in the way, on either side.
	for _, place := range []gpu.Place{half, {ProfileID: 0, Start: 0, Size: 8}, {ProfileID: 19, Start: 6, Size: 1}} {
		if a := do("make-gi", 0, place); !a.Taken {
			t.Errorf("a second one at %+v: %q", place, a.Error)
		}
	}
	if a := do("make-gi", 0, gpu.Place{ProfileID: 77, Start: 0, Size: 1}); !strings.Contains(a.Error, "MIG profile 77") {
		t.Errorf("a profile that there is not: %q", a.Error)
	}
	// A program has it open.
	start := 4
	process := func(processes ...sim.Process) {
		t.Helper()
		change(t, root, func(s *sim.Spec) error {
			s.GPUs[0].State.Processes = processes
			return nil
		})
	}
	process(sim.Process{PID: 1, MemoryMiB: 10, Instance: &start})
	if a := do("destroy", gi, half); !a.InUse {
		t.Errorf("in use: %q", a.Error)
	}
	process()
	must(do("destroy", gi, half))
	if got := must(do("instances", 0, half)).Instances; len(got) > 0 {
		t.Errorf("destroyed: %+v", got)
	}
	must(do("destroy", gi, half)) // it is not there
	// The same place again: the same ids, another UUID.
	must(do("make-gi", 0, half))
	if again := must(do("make-ci", gi, half)).Instances[0]; again.UUID == made.UUID ||
		again.InstanceID != made.InstanceID {
		t.Errorf("again: %+v, before %+v", again, made)
	}
	fails.Store("destroy-gi", true)
	if a := do("destroy", gi, half); a.Error == "" || a.InUse {
		t.Errorf("a driver that fails: %q", a.Error)
	}
	fails.Delete("destroy-gi")
	must(do("destroy", gi, half))
	fails.Store("make-ci", true)
	must(do("make-gi", 0, half))
	if a := do("make-ci", gi, half); a.Error == "" {
		t.Error("a compute instance that the driver did not make is not missed")
	}
	must(do("destroy", gi, half))
	// Nothing has become of the other GPU, and a GPU that is not there has no instances.
	if got := w.read().Partitioned[1].Instances; len(got) != 4 {
		t.Errorf("the other GPU: %+v", got)
	}
	if a := w.ask(call{What: "partition instances", UUID: "GPU-gone"}); a.Error != "" || len(a.Instances) > 0 {
		t.Errorf("a GPU that is not there: %+v", a)
	}
}

// Where a driver says that an instance is destroyed, and it is not.
func TestPartitionThatIsNotDestroyed(t *testing.T) {
	root := writeRoot(t, load(t, "migx4"), library(t))
	w := startWorker(t, root)
	m := w.read()
	serve(t, root, sim.Partitioning{Fails: func(_ int, call string) (nvml.Return, bool) {
		return nvml.SUCCESS, call != "destroy-gi"
	}})
	a := w.ask(call{What: "partition destroy", UUID: m.Partitioned[0].UUID, Value: m.Partitioned[0].Instances[0].GI})
	if !strings.Contains(a.Error, "is still there, although the driver said that it is destroyed") {
		t.Errorf("it says %q", a.Error)
	}
}

// A plugin that starts while one GPU is lost makes and destroys instances of the others. NVML itself finds none of them
// by its UUID then.
func TestPartitionsBesideALostGPU(t *testing.T) {
	root := writeRoot(t, load(t, "migx4"), library(t))
	serve(t, root, sim.Partitioning{})
	parents := startWorker(t, root).read().Partitioned
	inject(t, root, "lost")
	w := startWorker(t, root)
	sound := parents[0]
	if a := w.ask(call{What: "partition instances", UUID: sound.UUID}); len(a.Instances) != len(sound.Instances) {
		t.Fatalf("%d instances, want %d: %s", len(a.Instances), len(sound.Instances), a.Error)
	}
	free := sound.Instances[0]
	if a := w.ask(call{What: "partition destroy", UUID: sound.UUID, Value: free.GI}); a.Error != "" {
		t.Fatal(a.Error)
	}
	a := w.ask(call{What: "partition make-gi", UUID: sound.UUID, Place: free.PlaceOf()})
	if a.Error != "" {
		t.Fatal(a.Error)
	}
	// The lost one has none any more, and takes none.
	lost := parents[1].UUID
	if a := w.ask(call{What: "partition instances", UUID: lost}); a.Error != "" || len(a.Instances) > 0 {
		t.Errorf("the lost GPU: %+v", a)
	}
	if a := w.ask(call{What: "partition make-gi", UUID: lost}); !strings.Contains(a.Error, "GPU is lost") {
		t.Errorf("making an instance of the lost GPU: %q", a.Error)
	}
}
