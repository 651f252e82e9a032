// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// hung is what a test waits for a GPU that does not answer, on the clock of its synctest bubble: a slow machine is no
// hung GPU.
const hung = 500 * time.Millisecond

func load(t *testing.T, name string) *sim.Spec {
	t.Helper()
	spec, err := sim.Load(filepath.Join("..", "..", "..", "demo", "machines", name+".yaml"))
	expect.NoError(t, err)
	return spec
}

func read(t *testing.T, lib nvml.Interface, opts Options) *gpu.Machine {
	t.Helper()
	m, err := Read(t.Context(), lib, opts)
	expect.NoError(t, err)
	return m
}

// readBy reads the GPUs as the reader knows them.
func readBy(t *testing.T, r *Reader) *gpu.Machine {
	t.Helper()
	m, err := r.Read(t.Context())
	expect.NoError(t, err)
	return m
}

func TestReadShippedMachines(t *testing.T) {
	type gpu struct {
		Model  string
		MiB    int64
		Units  int64
		SMs    int
		CC     string
		Arch   string
		Brand  string
		Number int
	}
	v16 := gpu{"Tesla-V100-SXM2-16GB", 16130, 15, 80, "7.0", "Volta", "Tesla", 4}
	v32 := gpu{"Tesla-V100-SXM2-32GB", 32510, 31, 80, "7.0", "Volta", "Tesla", 8}
	a100 := gpu{"NVIDIA-A100-SXM4-80GB", 81920, 80, 108, "8.0", "Ampere", "Nvidia", 8}
	h200 := gpu{"NVIDIA-H200", 143771, 140, 132, "9.0", "Hopper", "Nvidia", 8}
	a10 := gpu{"NVIDIA-A10", 23028, 22, 72, "8.6", "Ampere", "Nvidia", 4}
	a10pair := gpu{"NVIDIA-A10", 23028, 22, 72, "8.6", "Ampere", "Nvidia", 2}
	t4 := gpu{"Tesla-T4", 15360, 15, 40, "7.5", "Turing", "Tesla", 1}
	t4pair := gpu{"Tesla-T4", 15360, 15, 40, "7.5", "Turing", "Tesla", 2}
	for name, want := range map[string][]gpu{
		"v100x4": {v16},
		"dgx1":   {v32},
		"a100x8": {a100},
		"h200x8": {h200},
		"a10x4":  {a10},
		"t4x1":   {t4},
		"mixed":  {a10pair, t4pair},
		"broken": {a10pair},
	} {
		t.Run(name, func(t *testing.T) {
			m := read(t, load(t, name).NVML(), Options{SysFS: t.TempDir()})
			if m.DriverVersion != "570.124.06" || m.CUDADriverVersion != "12.8" {
				t.Errorf("versions: driver %q, CUDA %q", m.DriverVersion, m.CUDADriverVersion)
			}
			var got []gpu
			for _, g := range m.GPUs {
				c := gpu{g.Model, g.MemoryMiB, g.MemoryUnits(), g.SMCount, g.ComputeCapability, g.Architecture, g.Brand, 1}
				if n := len(got); n > 0 && got[n-1].Model == c.Model {
					got[n-1].Number++
					continue
				}
				got = append(got, c)
			}
			expect.Equal(t, want, got, "models")
		})
	}
}

func TestReadWholeGPU(t *testing.T) {
	spec := load(t, "dgx1").ForNode("n1")
	dir := t.TempDir()
	writeRoot(t, spec, dir)
	m := read(t, spec.NVML(), Options{SysFS: filepath.Join(dir, sim.SysDir)})
	want := gpu.GPU{
		Index: 5, UUID: m.GPUs[5].UUID, Minor: 5,
		Model: "Tesla-V100-SXM2-32GB", ProductName: "Tesla V100-SXM2-32GB", Brand: "Tesla", Architecture: "Volta",
		ComputeCapability: "7.0", MemoryMiB: 32510, SMCount: 80,
		PCIBusID: "0000:86:00.0", PCIeRoot: "pci0000:80", NUMANode: new(1),
	}
	expect.Equal(t, want, m.GPUs[5], "GPU 5")
	again := read(t, spec.NVML(), Options{SysFS: filepath.Join(dir, sim.SysDir)})
	expect.Equal(t, m, again, "the machine of a second reading")
	if other := read(t, load(t, "dgx1").ForNode("n2").NVML(), Options{}); other.GPUs[5].UUID == m.GPUs[5].UUID {
		t.Error("two nodes have a GPU of the same UUID", other.GPUs[5].UUID)
	}
}

func TestReadFaults(t *testing.T) {
	answers := func(property sim.Property, answer string) sim.Fault {
		return sim.Fault{Errors: map[sim.Property]string{property: answer}}
	}
	const lost, unreadable = gpu.FaultLost, gpu.FaultUnreadable
	for _, tc := range []struct {
		name   string
		fault  sim.Fault
		reason gpu.FaultReason
		says   string
	}{
		{"lost", sim.Fault{Lost: true}, lost, "fallen off the bus"},
		{"no handle", answers("handle", "UNKNOWN"), unreadable, "opening GPU 1"},
		{"no handle, as it is lost", answers("handle", "GPU_IS_LOST"), lost, "opening GPU 1"},
		{"no PCI address", answers("pci", "UNKNOWN"), unreadable, "reading the PCI address"},
		{"no UUID", answers("uuid", "UNKNOWN"), unreadable, "reading the UUID"},
		{"no minor", answers("minor", "UNKNOWN"), unreadable, "reading the minor number"},
		{"no name", answers("name", "UNKNOWN"), unreadable, "reading the name"},
		{"no memory", answers("memory", "UNKNOWN"), unreadable, "at 0000:0b:00.0: reading the memory"},
		{"MIG mode unknown", answers("mig", "UNKNOWN"), unreadable, "reading the MIG mode"},
		{"hangs on its name", answers("name", "HANG"), unreadable, "reading the name: no answer in time from NVML"},
		{"hangs on its handle", answers("handle", "HANG"), unreadable, "no answer in time"},
		{"hangs on an optional property", answers("cores", "HANG"), unreadable, "reading the number of cores"},
		{"hangs on NVLink", answers("nvlink", "HANG"), unreadable, "reading NVLink 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { readsWithFault(t, tc.fault, tc.reason, tc.says) })
		})
	}
}

// readsWithFault reads eight GPUs of which GPU 1 has the fault.
func readsWithFault(t *testing.T, fault sim.Fault, reason gpu.FaultReason, says string) {
	t.Helper()
	defer time.Sleep(sim.Hangs)
	spec := load(t, "a100x8")
	sound := read(t, spec.NVML(), Options{})
	spec.GPUs[1].Fault = fault
	m := read(t, spec.NVML(), Options{CallTimeout: hung})
	if len(m.Faults) != 1 {
		t.Fatalf("%d faults, want 1: %v", len(m.Faults), m.Faults)
	}
	f := m.Faults[0]
	if f.Index != 1 || f.Reason != reason || !strings.Contains(f.Message, says) {
		t.Errorf("fault %v, want index 1, reason %s, message with %q", f, reason, says)
	}
	// The others are what they are without it, and keep their indices.
	want := append([]gpu.GPU{sound.GPUs[0]}, sound.GPUs[2:]...)
	expect.Equal(t, want, m.GPUs, "the other GPUs")
	for _, l := range m.Links {
		if l.A == 1 || l.B == 1 {
			t.Errorf("link %v to a GPU that is left out", l)
		}
	}
	expect.Equal(t, 21, len(m.Links), "links")
}

func TestReadUnsupportedEverywhere(t *testing.T) {
	spec := load(t, "h200x8")
	for i := range spec.GPUs {
		spec.GPUs[i].Fault.Errors = map[sim.Property]string{}
		for _, p := range []sim.Property{"reserved", "brand", "architecture", "computeCapability", "cores", "nvlink",
			"topology"} {
			spec.GPUs[i].Fault.Errors[p] = "NOT_SUPPORTED"
		}
	}
	m := read(t, spec.NVML(), Options{SysFS: t.TempDir()})
	if len(m.GPUs) != 8 || len(m.Faults) != 0 || len(m.Links) != 0 {
		t.Fatalf("%d GPUs, %v, %v; want 8 GPUs, no faults, no links", len(m.GPUs), m.Faults, m.Links)
	}
	want := gpu.GPU{
		UUID: m.GPUs[0].UUID, Model: "NVIDIA-H200", ProductName: "NVIDIA H200", MemoryMiB: 143771, PCIBusID: "0000:07:00.0",
		MIG: gpu.MIGMode{Capable: true},
	}
	expect.Equal(t, want, m.GPUs[0], "GPU 0")
}

// A GPU whose driver does not tell what it keeps is as good as any: its limits are parts of all
// of its memory. What was told once stays, so that limits do not depend on the moment.
func TestReadReservedMemory(t *testing.T) {
	for answer, want := range map[string]int64{"": 450, "NOT_SUPPORTED": 0, "UNKNOWN": 0, "INVALID_ARGUMENT": 0} {
		spec := load(t, "t4x1")
		if answer != "" {
			spec.GPUs[0].Fault.Errors = map[sim.Property]string{"reserved": answer}
		}
		lib := spec.NVML().(*server.Server)
		r := NewReader(lib, Options{})
		for _, reading := range []string{"first", "second"} {
			m := readBy(t, r)
			if len(m.GPUs) != 1 || m.GPUs[0].ReservedMiB != want || m.GPUs[0].MemoryMiB != 15360 {
				t.Errorf("%s reading of a GPU that answers %q: %+v, faults %v; want one with %d of 15360 MiB reserved",
					reading, answer, m.GPUs, m.Faults, want)
			}
			spec := load(t, "t4x1")
			spec.GPUs[0].Fault.Errors = map[sim.Property]string{"reserved": "UNKNOWN"}
			lib.Devices[0] = spec.NVML().(*server.Server).Devices[0]
		}
	}
}

// Selectors on what one GPU of several lacks are errors, which stop scheduling on
// all nodes. So a GPU is offered with all that its model has, or not.
func TestReadLeavesOutAGPUThatFailsToTellAProperty(t *testing.T) {
	for _, property := range []sim.Property{"brand", "architecture", "computeCapability", "cores"} {
		t.Run(string(property), func(t *testing.T) {
			spec := load(t, "v100x4")
			sound := read(t, spec.NVML(), Options{}).GPUs[3]
			spec.GPUs[3].Fault.Errors = map[sim.Property]string{property: "UNKNOWN"}
			lib := spec.NVML()
			r := NewReader(lib, Options{})
			m := readBy(t, r)
			if len(m.GPUs) != 3 || len(m.Faults) != 1 || m.Faults[0].Index != 3 || m.Faults[0].Reason != gpu.FaultUnreadable {
				t.Fatalf("GPUs %+v, faults %v; want GPU 3 left out", m.GPUs, m.Faults)
			}

			// Once it has told, it is the same for good.
			told := load(t, "v100x4").NVML().(*server.Server)
			faulty := lib.(*server.Server).Devices[3]
			lib.(*server.Server).Devices[3] = told.Devices[3]
			for _, told := range []string{"now", "before"} {
				m := readBy(t, r)
				expect.Equal(t, 0, len(m.Faults), "told %s: faults %v", told, m.Faults)
				expect.Equal(t, sound, m.GPUs[3], "told %s: GPU 3", told)
				lib.(*server.Server).Devices[3] = faulty
			}
		})
	}
}

// A DGX Station has a fifth GPU for the screen alone. Nobody asks for it, and all others keep their numbers.
func TestReadLeavesOutTheGPUOfADisplay(t *testing.T) {
	for _, name := range []string{"DGX Display", "NVIDIA DGX Display"} {
		t.Run(name, func(t *testing.T) {
			spec := load(t, "v100x4")
			display := spec.Models[spec.GPUs[1].Model]
			display.ProductName, display.MemoryMiB = name, 4096
			spec.Models["display"], spec.GPUs[1].Model = display, "display"
			r := NewReader(spec.NVML(), Options{})
			r.tellsFields = false
			m := readBy(t, r)
			var indices, checked []int
			for _, g := range m.GPUs {
				indices = append(indices, g.Index)
			}
			for _, c := range r.Check(t.Context()) {
				checked = append(checked, c.Index)
			}
			expect.Equal(t, []int{0, 2, 3}, indices, "GPUs that can be handed out")
			expect.Equal(t, []int{0, 2, 3}, checked, "GPUs whose health counts")
			expect.Equal(t, 0, len(m.Faults), "faults %v", m.Faults)
			expect.Equal(t, false, slices.ContainsFunc(m.Links, func(l gpu.Link) bool { return l.A == 1 || l.B == 1 }),
				"a link to it")
		})
	}
}

// A GPU that hangs keeps one thread, and its place and name.
func TestReadDoesNotAskAGPUAgainThatHangs(t *testing.T) {
	for _, property := range []string{"handle", "name", "nvlink"} {
		t.Run(property, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { readsAroundAHangingGPU(t, property) })
		})
	}
}

// readsAroundAHangingGPU reads again and again while a call on one GPU hangs, and once it has returned.
func readsAroundAHangingGPU(t *testing.T, property string) {
	t.Helper()
	spec := load(t, "a100x8")
	// NVML's order is against the PCI order.
	slices.Reverse(spec.GPUs)
	sound := spec.NVML().(*server.Server)
	release := make(chan struct{})
	var made atomic.Int32
	hang := func() { made.Add(1); <-release }
	lib := spec.NVML().(*server.Server)
	hanging := lib.Devices[1].(*server.Device)
	r := NewReader(lib, Options{CallTimeout: hung})
	whole := readBy(t, r)
	name, state, byIndex := hanging.GetNameFunc, hanging.GetNvLinkStateFunc, lib.DeviceGetHandleByIndexFunc
	switch property {
	case "handle":
		lib.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
			if i == 1 {
				hang()
			}
			return byIndex(i)
		}
	case "name":
		hanging.GetNameFunc = func() (string, nvml.Return) { hang(); return name() }
	case "nvlink":
		hanging.GetNvLinkStateFunc = func(i int) (nvml.EnableState, nvml.Return) { hang(); return state(i) }
	}
	first := readBy(t, r)
	for range 4 {
		expect.Equal(t, first, readBy(t, r), "the machine of another reading")
	}
	if !r.Hung() || made.Load() != 1 {
		t.Errorf("%d calls were made, hung %v; want 1 that hangs", made.Load(), r.Hung())
	}
	if len(first.Faults) != 1 || first.Faults[0].Index != 6 || first.Faults[0].UUID != whole.GPUs[6].UUID {
		t.Errorf("faults %v, want one of GPU 6", first.Faults)
	}
	expect.Equal(t, slices.Delete(slices.Clone(whole.GPUs), 6, 7), first.GPUs, "the other GPUs")

	lib.DeviceGetHandleByIndexFunc, lib.Devices[1] = byIndex, sound.Devices[1]
	close(release)
	synctest.Wait()
	expect.Equal(t, whole, readBy(t, r), "the machine after the call has returned")
}
