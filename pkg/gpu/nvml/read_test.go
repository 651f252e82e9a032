package nvml

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/sim"
)

// hung is long enough for a simulated card to answer under the race detector,
// and what a test waits for one that does not.
const hung = 500 * time.Millisecond

func load(t *testing.T, name string) *sim.Spec {
	t.Helper()
	spec, err := sim.Load(filepath.Join("..", "..", "..", "demo", "machines", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func read(t *testing.T, lib nvml.Interface, opts Options) *gpu.Machine {
	t.Helper()
	m, err := Read(t.Context(), lib, opts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestReadShippedMachines(t *testing.T) {
	type card struct {
		Model  string
		MiB    int64
		Units  int64
		SMs    int
		CC     string
		Arch   string
		Brand  string
		Number int
	}
	v16 := card{"Tesla-V100-SXM2-16GB", 16130, 15, 80, "7.0", "Volta", "Tesla", 4}
	v32 := card{"Tesla-V100-SXM2-32GB", 32510, 31, 80, "7.0", "Volta", "Tesla", 8}
	a100 := card{"NVIDIA-A100-SXM4-80GB", 81920, 80, 108, "8.0", "Ampere", "Nvidia", 8}
	h200 := card{"NVIDIA-H200", 143771, 140, 132, "9.0", "Hopper", "Nvidia", 8}
	a10 := card{"NVIDIA-A10", 23028, 22, 72, "8.6", "Ampere", "Nvidia", 4}
	a10pair := card{"NVIDIA-A10", 23028, 22, 72, "8.6", "Ampere", "Nvidia", 2}
	t4 := card{"Tesla-T4", 15360, 15, 40, "7.5", "Turing", "Tesla", 1}
	t4pair := card{"Tesla-T4", 15360, 15, 40, "7.5", "Turing", "Tesla", 2}
	for name, want := range map[string][]card{
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
			var got []card
			for _, g := range m.GPUs {
				c := card{g.Model, g.MemoryMiB, g.MemoryUnits(), g.SMCount, g.ComputeCapability, g.Architecture, g.Brand, 1}
				if n := len(got); n > 0 && got[n-1].Model == c.Model {
					got[n-1].Number++
					continue
				}
				got = append(got, c)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReadWholeCard(t *testing.T) {
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
	if diff := cmp.Diff(want, m.GPUs[5]); diff != "" {
		t.Error(diff)
	}
	if again := read(t, spec.NVML(), Options{SysFS: filepath.Join(dir, sim.SysDir)}); !cmp.Equal(m, again) {
		t.Error("a second reading gives another machine:", cmp.Diff(m, again))
	}
	if other := read(t, load(t, "dgx1").ForNode("n2").NVML(), Options{}); other.GPUs[5].UUID == m.GPUs[5].UUID {
		t.Error("two nodes have a card of the same UUID", other.GPUs[5].UUID)
	}
}

func TestReadLinks(t *testing.T) {
	nv := func(a, b, lanes, generation, gbps int) gpu.Link {
		return gpu.Link{A: a, B: b, Kind: gpu.LinkNVLink, Lanes: lanes, Generation: generation, GBps: gbps}
	}
	switched := func(a, b, lanes, generation, gbps int) gpu.Link {
		l := nv(a, b, lanes, generation, gbps)
		l.Switched = true
		return l
	}
	for _, tc := range []struct {
		machine string
		links   int
		some    []gpu.Link
	}{
		{"v100x4", 6, []gpu.Link{nv(0, 1, 1, 2, 25), nv(0, 3, 2, 2, 50), nv(2, 3, 2, 2, 50)}},
		{"dgx1", 28, []gpu.Link{
			nv(0, 1, 1, 2, 25), nv(0, 2, 1, 2, 25), nv(0, 3, 2, 2, 50), nv(0, 4, 2, 2, 50),
			nv(1, 5, 2, 2, 50), nv(2, 6, 1, 2, 25), nv(3, 7, 1, 2, 25), nv(4, 7, 2, 2, 50), nv(5, 6, 2, 2, 50), nv(6, 7, 2, 2, 50),
			{A: 0, B: 5, Kind: gpu.LinkSystem, GBps: 6}, {A: 3, B: 4, Kind: gpu.LinkSystem, GBps: 6},
		}},
		{"a100x8", 28, []gpu.Link{switched(0, 1, 12, 3, 300), switched(6, 7, 12, 3, 300), switched(0, 7, 12, 3, 300)}},
		{"h200x8", 28, []gpu.Link{switched(0, 1, 18, 4, 450), switched(3, 4, 18, 4, 450)}},
		{"a10x4", 6, []gpu.Link{{A: 0, B: 1, Kind: gpu.LinkNode, GBps: 8}, {A: 1, B: 2, Kind: gpu.LinkSystem, GBps: 6}}},
		{"t4x1", 0, nil},
		{"broken", 1, []gpu.Link{{A: 0, B: 3, Kind: gpu.LinkSystem, GBps: 6}}},
	} {
		t.Run(tc.machine, func(t *testing.T) {
			m := read(t, load(t, tc.machine).NVML(), Options{})
			if len(m.Links) != tc.links {
				t.Errorf("%d links, want %d", len(m.Links), tc.links)
			}
			got := map[[2]int]gpu.Link{}
			for _, l := range m.Links {
				got[[2]int{l.A, l.B}] = l
			}
			for _, want := range tc.some {
				if diff := cmp.Diff(want, got[[2]int{want.A, want.B}]); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestReadPCIeLevels(t *testing.T) {
	// Without NVLink, what is left of a DGX-1 is its PCIe tree.
	spec := load(t, "dgx1")
	spec.NVLinks = nil
	want := map[int]gpu.LinkKind{1: gpu.LinkPIX, 2: gpu.LinkPHB, 3: gpu.LinkPHB, 4: gpu.LinkSystem}
	for _, l := range read(t, spec.NVML(), Options{}).Links {
		if l.A == 0 && want[l.B] != "" && l.Kind != want[l.B] {
			t.Errorf("0–%d: %s, want %s", l.B, l.Kind, want[l.B])
		}
	}
}

func TestReadDisagreeingLinks(t *testing.T) {
	lib := load(t, "v100x4").NVML()
	d, _ := lib.DeviceGetHandleByIndex(3)
	state := d.(*server.Device).GetNvLinkStateFunc
	// Card 3's lanes are to 0, 0, 1, 2, 2: one to card 0 and one to card 2 are down.
	d.(*server.Device).GetNvLinkStateFunc = func(lane int) (nvml.EnableState, nvml.Return) {
		if lane == 0 || lane == 4 || lane == 2 {
			return nvml.FEATURE_DISABLED, nvml.SUCCESS
		}
		return state(lane)
	}
	m := read(t, lib, Options{})
	got := map[int]string{}
	for _, l := range m.Links {
		if l.B == 3 {
			got[l.A] = string(l.Kind) + strings.Repeat("+", l.Lanes)
		}
	}
	want := map[int]string{0: "NV+", 1: "PHB", 2: "NV+"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	wantFaults := []gpu.LinkFault{{A: 0, B: 3, LanesOfA: 2, LanesOfB: 1}, {A: 1, B: 3, LanesOfA: 1, LanesOfB: 0}, {A: 2, B: 3, LanesOfA: 2, LanesOfB: 1}}
	if diff := cmp.Diff(wantFaults, m.LinkFaults); diff != "" {
		t.Errorf("link faults (-want +got):\n%s", diff)
	}
}

func TestReadSwitchLanesThatAreDown(t *testing.T) {
	spec := load(t, "h200x8")
	some, none := 17, 0
	spec.Cards[3].NVSwitchLanes, spec.Cards[6].NVSwitchLanes = &some, &none
	m := read(t, spec.NVML(), Options{})
	if diff := cmp.Diff([]gpu.LaneFault{{Index: 3, Lanes: 17, Most: 18}, {Index: 6, Lanes: 0, Most: 18}}, m.LaneFaults); diff != "" {
		t.Errorf("lane faults (-want +got):\n%s", diff)
	}
	for _, l := range m.Links {
		want := gpu.Link{A: l.A, B: l.B, Kind: gpu.LinkNVLink, Lanes: 18, Generation: 4, Switched: true, GBps: 450}
		switch {
		case l.A == 6 || l.B == 6:
			continue
		case l.A == 3 || l.B == 3:
			want.Lanes, want.GBps = 17, 425
		}
		if diff := cmp.Diff(want, l); diff != "" {
			t.Error(diff)
		}
	}
}

// Cards of another model need not have as many lanes.
func TestSwitchLanesOfTwoModels(t *testing.T) {
	spec := load(t, "h200x8")
	other := spec.Models["h200"]
	other.ProductName = "NVIDIA H100 NVL"
	spec.Models["other"] = other
	none := 0
	spec.Cards[7].Model, spec.Cards[7].NVSwitchLanes = "other", &none
	if m := read(t, spec.NVML(), Options{}); len(m.LaneFaults) > 0 {
		t.Errorf("lane faults %v", m.LaneFaults)
	}
}

func TestReadLinkThatOneCardDoesNotSee(t *testing.T) {
	spec := load(t, "v100x4")
	spec.NVLinks[0].LanesBack = new(int) // 0–1
	m := read(t, spec.NVML(), Options{})
	if l := m.Links[0]; l.A != 0 || l.B != 1 || l.Kind != gpu.LinkPHB {
		t.Errorf("the link between 0 and 1 is %+v, want that by PCIe", l)
	}
	if diff := cmp.Diff([]gpu.LinkFault{{A: 0, B: 1, LanesOfA: 1}}, m.LinkFaults); diff != "" {
		t.Errorf("link faults (-want +got):\n%s", diff)
	}
}

func TestReadFaults(t *testing.T) {
	for _, tc := range []struct {
		name   string
		fault  sim.Fault
		reason gpu.FaultReason
		says   string
	}{
		{"lost", sim.Fault{Lost: true}, gpu.FaultLost, "fallen off the bus"},
		{"in MIG mode", sim.Fault{MIGEnabled: true}, gpu.FaultMIGEnabled, "nvidia-smi -i 0000:0b:00.0 -mig 0"},
		{"no handle", sim.Fault{Errors: map[sim.Property]string{"handle": "UNKNOWN"}}, gpu.FaultUnreadable, "opening card 1"},
		{"no handle, as it is lost", sim.Fault{Errors: map[sim.Property]string{"handle": "GPU_IS_LOST"}}, gpu.FaultLost, "opening card 1"},
		{"no PCI address", sim.Fault{Errors: map[sim.Property]string{"pci": "UNKNOWN"}}, gpu.FaultUnreadable, "reading the PCI address"},
		{"no UUID", sim.Fault{Errors: map[sim.Property]string{"uuid": "UNKNOWN"}}, gpu.FaultUnreadable, "reading the UUID"},
		{"no minor", sim.Fault{Errors: map[sim.Property]string{"minor": "NOT_SUPPORTED"}}, gpu.FaultUnreadable, "reading the minor number"},
		{"no name", sim.Fault{Errors: map[sim.Property]string{"name": "UNKNOWN"}}, gpu.FaultUnreadable, "reading the name"},
		{"no memory", sim.Fault{Errors: map[sim.Property]string{"memory": "UNKNOWN"}}, gpu.FaultUnreadable, "at 0000:0b:00.0: reading the memory"},
		{"MIG mode unknown", sim.Fault{Errors: map[sim.Property]string{"mig": "UNKNOWN"}}, gpu.FaultUnreadable, "reading the MIG mode"},
		{"hangs on its name", sim.Fault{Errors: map[sim.Property]string{"name": "HANG"}}, gpu.FaultUnreadable, "reading the name: NVML did not answer in time"},
		{"hangs on its handle", sim.Fault{Errors: map[sim.Property]string{"handle": "HANG"}}, gpu.FaultUnreadable, "did not answer in time"},
		{"hangs on an optional property", sim.Fault{Errors: map[sim.Property]string{"cores": "HANG"}}, gpu.FaultUnreadable, "reading the number of cores"},
		{"hangs on NVLink", sim.Fault{Errors: map[sim.Property]string{"nvlink": "HANG"}}, gpu.FaultUnreadable, "reading NVLink 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			spec := load(t, "a100x8")
			sound := read(t, spec.NVML(), Options{})
			spec.Cards[1].Fault = tc.fault
			m := read(t, spec.NVML(), Options{CallTimeout: hung})
			if len(m.Faults) != 1 {
				t.Fatalf("%d faults, want 1: %v", len(m.Faults), m.Faults)
			}
			f := m.Faults[0]
			if f.Index != 1 || f.Reason != tc.reason || !strings.Contains(f.Message, tc.says) {
				t.Errorf("fault %v, want index 1, reason %s, message with %q", f, tc.reason, tc.says)
			}
			if tc.reason == gpu.FaultMIGEnabled && f.UUID != sound.GPUs[1].UUID {
				t.Errorf("fault has UUID %q, want %q", f.UUID, sound.GPUs[1].UUID)
			}
			// The others are what they are without it, and keep their indices.
			want := append([]gpu.GPU{sound.GPUs[0]}, sound.GPUs[2:]...)
			if diff := cmp.Diff(want, m.GPUs); diff != "" {
				t.Error(diff)
			}
			for _, l := range m.Links {
				if l.A == 1 || l.B == 1 {
					t.Errorf("link %v to a card that is left out", l)
				}
			}
			if len(m.Links) != 21 {
				t.Errorf("%d links, want 21", len(m.Links))
			}
		})
	}
}

func TestReadUnsupportedEverywhere(t *testing.T) {
	for _, answer := range []string{"NOT_SUPPORTED", "UNKNOWN"} {
		t.Run(answer, func(t *testing.T) {
			spec := load(t, "h200x8")
			for i := range spec.Cards {
				spec.Cards[i].Fault.Errors = map[sim.Property]string{
					"brand": answer, "architecture": answer, "computeCapability": answer, "cores": answer, "nvlink": answer, "topology": answer,
				}
			}
			m := read(t, spec.NVML(), Options{SysFS: t.TempDir()})
			if len(m.GPUs) != 8 || len(m.Faults) != 0 || len(m.Links) != 0 {
				t.Fatalf("%d cards, %v, %v; want 8 cards, no faults, no links", len(m.GPUs), m.Faults, m.Links)
			}
			want := gpu.GPU{
				UUID: m.GPUs[0].UUID, Model: "NVIDIA-H200", ProductName: "NVIDIA H200", MemoryMiB: 143771, PCIBusID: "0000:07:00.0",
			}
			if diff := cmp.Diff(want, m.GPUs[0]); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestReadWithAnOldLibrary(t *testing.T) {
	lib := load(t, "v100x4").NVML().(*server.Server)
	missing := func(string) error { return errors.New("undefined symbol") }
	lib.LookupSymbolFunc = missing
	m := read(t, lib, Options{})
	if len(m.GPUs) != 4 || m.GPUs[0].Architecture != "" || m.GPUs[0].SMCount != 0 {
		t.Errorf("cards %+v, want 4 without architecture and SM count", m.GPUs)
	}
	// The lanes' peers are found by address, the generation by version.
	want := gpu.Link{A: 0, B: 3, Kind: gpu.LinkNVLink, Lanes: 2, Generation: 2, GBps: 50}
	if diff := cmp.Diff(want, m.Links[2]); diff != "" {
		t.Error(diff)
	}
}

func TestReadNumbersByPCIAddress(t *testing.T) {
	spec := load(t, "a10x4")
	// NVML's order is against the PCI order, and minors are another thing yet.
	c := spec.Cards
	c[0], c[1], c[2], c[3] = c[3], c[2], c[1], c[0]
	c[0].Minor, c[1].Minor, c[2].Minor, c[3].Minor = new(1), new(0), new(3), new(2)
	m := read(t, spec.NVML(), Options{})
	var got []string
	for i, g := range m.GPUs {
		if g.Index != i {
			t.Errorf("card %d has index %d", i, g.Index)
		}
		got = append(got, g.PCIBusID)
	}
	if diff := cmp.Diff([]string{"0000:17:00.0", "0000:31:00.0", "0000:b1:00.0", "0000:ca:00.0"}, got); diff != "" {
		t.Error(diff)
	}
	if m.GPUs[0].Minor != 2 || m.GPUs[3].Minor != 1 {
		t.Errorf("minors %d, %d, want 2, 1", m.GPUs[0].Minor, m.GPUs[3].Minor)
	}
}

func TestReadFailsAsAWhole(t *testing.T) {
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	for _, tc := range []struct {
		name    string
		prepare func(*server.Server)
		says    string
	}{
		{"no driver version", func(s *server.Server) {
			s.SystemGetDriverVersionFunc = func() (string, nvml.Return) { return "", nvml.ERROR_UNINITIALIZED }
		}, "reading the driver version"},
		{"no count", func(s *server.Server) {
			s.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
		}, "counting the cards"},
		{"count hangs", func(s *server.Server) {
			s.DeviceGetCountFunc = func() (int, nvml.Return) { <-block; return 0, nvml.SUCCESS }
		}, "counting the cards: NVML did not answer in time"},
		{"CUDA version hangs", func(s *server.Server) {
			s.SystemGetCudaDriverVersionFunc = func() (int, nvml.Return) { <-block; return 0, nvml.SUCCESS }
		}, "reading the CUDA version: NVML did not answer in time"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lib := load(t, "t4x1").NVML().(*server.Server)
			tc.prepare(lib)
			_, err := Read(t.Context(), lib, Options{CallTimeout: hung})
			if err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "nvidia-smi") {
				t.Errorf("error %v, want one with %q and what to do", err, tc.says)
			}
		})
	}
}

func TestReadWithoutCUDAVersion(t *testing.T) {
	lib := load(t, "t4x1").NVML().(*server.Server)
	lib.SystemGetCudaDriverVersionFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	if m := read(t, lib, Options{}); len(m.GPUs) != 1 || m.CUDADriverVersion != "" {
		t.Errorf("got %+v, want one card and no CUDA version", m)
	}
}

func TestReadStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	lib := load(t, "t4x1").NVML().(*server.Server)
	lib.DeviceGetCountFunc = func() (int, nvml.Return) { cancel(); return 1, nvml.SUCCESS }
	if _, err := Read(ctx, lib, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}
