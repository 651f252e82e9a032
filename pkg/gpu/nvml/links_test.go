// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

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
			nv(1, 5, 2, 2, 50), nv(2, 6, 1, 2, 25), nv(3, 7, 1, 2, 25), nv(4, 7, 2, 2, 50), nv(5, 6, 2, 2, 50),
			nv(6, 7, 2, 2, 50),
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
			expect.Equal(t, tc.links, len(m.Links), "links")
			got := map[[2]int]gpu.Link{}
			for _, l := range m.Links {
				got[[2]int{l.A, l.B}] = l
			}
			for _, want := range tc.some {
				expect.Equal(t, want, got[[2]int{want.A, want.B}], "the link")
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
	// GPU 3's lanes are to 0, 0, 1, 2, 2: one to GPU 0 and one to GPU 2 are down.
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
	expect.Equal(t, want, got, "links")
	wantFaults := []gpu.LinkFault{{A: 0, B: 3, LanesOfA: 2, LanesOfB: 1}, {A: 1, B: 3, LanesOfA: 1, LanesOfB: 0},
		{A: 2, B: 3, LanesOfA: 2, LanesOfB: 1}}
	expect.Equal(t, wantFaults, m.LinkFaults, "link faults")
}

func TestReadSwitchLanesThatAreDown(t *testing.T) {
	spec := load(t, "h200x8")
	some, none := 17, 0
	spec.GPUs[3].NVSwitchLanes, spec.GPUs[6].NVSwitchLanes = &some, &none
	m := read(t, spec.NVML(), Options{})
	expect.Equal(t, []gpu.LaneFault{{Index: 3, Lanes: 17, Most: 18}, {Index: 6, Lanes: 0, Most: 18}},
		m.LaneFaults, "lane faults")
	for _, l := range m.Links {
		want := gpu.Link{A: l.A, B: l.B, Kind: gpu.LinkNVLink, Lanes: 18, Generation: 4, Switched: true, GBps: 450}
		switch {
		case l.A == 6 || l.B == 6:
			continue
		case l.A == 3 || l.B == 3:
			want.Lanes, want.GBps = 17, 425
		}
		expect.Equal(t, want, l, "the link")
	}
}

// GPUs of another model need not have as many lanes.
func TestSwitchLanesOfTwoModels(t *testing.T) {
	spec := load(t, "h200x8")
	other := spec.Models["h200"]
	other.ProductName = "NVIDIA H100 NVL"
	spec.Models["other"] = other
	none := 0
	spec.GPUs[7].Model, spec.GPUs[7].NVSwitchLanes = "other", &none
	if m := read(t, spec.NVML(), Options{}); len(m.LaneFaults) > 0 {
		t.Errorf("lane faults %v", m.LaneFaults)
	}
}

func TestReadLinkThatOneGPUDoesNotSee(t *testing.T) {
	spec := load(t, "v100x4")
	spec.NVLinks[0].LanesBack = new(int) // 0–1
	m := read(t, spec.NVML(), Options{})
	if l := m.Links[0]; l.A != 0 || l.B != 1 || l.Kind != gpu.LinkPHB {
		t.Errorf("the link between 0 and 1 is %+v, want that by PCIe", l)
	}
	expect.Equal(t, []gpu.LinkFault{{A: 0, B: 1, LanesOfA: 1}}, m.LinkFaults, "link faults")
}
