// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// A pod whose GPU is not there any more gets nowhere by itself, and is told what helps. A GPU that cannot be read may
// be the one, and come back.
func TestGPUThatIsGone(t *testing.T) {
	const gone = "GPU 3 (GPU-3) is not there any more: delete the pod, so that it is placed again"
	without := func(faults ...gpu.Fault) *gpu.Machine {
		m := machine()
		m.GPUs, m.Faults = m.GPUs[:3], faults
		return m
	}
	inMIGMode := without()
	inMIGMode.Partitioned = []gpu.Partitioned{{GPU: gpu.GPU{Index: 3, UUID: "GPU-3"}}}
	for name, tc := range map[string]struct {
		machine *gpu.Machine
		want    string
	}{
		"gone":                          {without(), gone},
		"gone, beside one that is lost": {without(gpu.Fault{Index: 1, UUID: "GPU-1"}), gone},
		"lost":                          {without(gpu.Fault{Index: 3, UUID: "GPU-3"}), "GPU GPU-3 is unknown"},
		"one that nobody can read":      {without(gpu.Fault{Index: 2}), "GPU GPU-3 is unknown"},
		"in MIG mode":                   {inMIGMode, "GPU GPU-3 is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			c := reservedFor(wholeGPUs("u0", 3), "p0")
			n.prepared(t, c)
			n.restart(t)
			n.options.BootID = "boot-2"
			missing := map[string]error{"GPU-3": fmt.Errorf("GPU GPU-3 is unknown")}
			n.SetInventory(&Inventory{Machine: tc.machine, Base: fakeBase{missing: missing, of: tc.machine}})
			expect.Error(t, n.Recover(t.Context()), tc.want)
			err := n.refuses(t, c, tc.want)
			expect.Equal(t, ReasonNotStartable, ReasonOf(err), "reason")
		})
	}
}

// Minor numbers are given again when the NVIDIA driver is loaded. The kubelet starts a container again without asking:
// it must not start with the GPU that another claim has.
func TestSpecOfAGPUThatIsGone(t *testing.T) {
	full := cut(at(0, "MIG-a"), at(1, "MIG-b"))
	without := func(uuid string) *gpu.Machine {
		m := cut(slices.Clone(full.Partitioned[0].Instances)...)
		m.GPUs = slices.DeleteFunc(m.GPUs, func(g gpu.GPU) bool { return g.UUID == uuid })
		m.Partitioned[0].Instances = slices.DeleteFunc(m.Partitioned[0].Instances,
			func(i gpu.Instance) bool { return i.UUID == uuid })
		return m
	}
	before := map[string]string{"GPU-1": "/dev/nvidia1", "GPU-2": "/dev/nvidia2", "MIG-a": "/dev/nvidia4",
		"MIG-b": "/dev/nvidia4"}
	loadedAnew := map[string]string{"GPU-2": "/dev/nvidia1", "MIG-a": "/dev/nvidia3"}
	lost := without("GPU-1")
	lost.Faults = []gpu.Fault{{Index: 1, UUID: "GPU-1"}}
	for name, tc := range map[string]struct {
		device string
		after  *gpu.Machine
		paths  map[string]string
		stays  bool
	}{
		"gone":                         {"gpu-1", without("GPU-1"), before, true},
		"gone, the driver reloaded":    {"gpu-1", without("GPU-1"), loadedAnew, false},
		"lost, the driver reloaded":    {"gpu-1", lost, loadedAnew, false},
		"its node an instance's GPU's": {"gpu-1", without("GPU-1"), map[string]string{"MIG-a": "/dev/nvidia1"}, false},
		"an instance":                  {"gpu-4-mig-1g-10gb-1", without("MIG-b"), before, true},
		"an instance, its node a GPU's": {"gpu-4-mig-1g-10gb-1", without("MIG-b"), map[string]string{"GPU-2": "/dev/nvidia4"},
			false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.SetInventory(&Inventory{Machine: full, Base: fakeBase{of: full, paths: before}})
			n.prepared(t, instanceClaim("u0", tc.device), instanceClaim("u2", "gpu-2"))
			n.restart(t)
			n.SetInventory(&Inventory{Machine: tc.after, Base: fakeBase{of: tc.after, paths: tc.paths}})
			for range 2 {
				if err := n.Recover(t.Context()); err == nil {
					t.Error("a claim is recovered without what it was granted")
				}
				if err := n.repairer().Repair(t.Context()); (err == nil) != tc.stays {
					t.Errorf("repaired: %v", err)
				}
			}
			if brings, err := n.options.Specs.Nodes(cdi.SpecName("u0")); (len(brings) > 0) != tc.stays || err != nil {
				t.Errorf("it brings %v, %v", brings, err)
			}
			want := []string{cmp.Or(tc.paths["GPU-2"], "/dev/GPU-2")}
			if brings, err := n.options.Specs.Nodes(cdi.SpecName("u2")); !slices.Equal(brings, want) || err != nil {
				t.Errorf("the other claim's brings %v, %v, want %v", brings, err, want)
			}
			// What comes back is the claim's again.
			n.SetInventory(&Inventory{Machine: full, Base: fakeBase{of: full, paths: before}})
			expect.NoError(t, n.repairer().Repair(t.Context()))
			want = []string{before[n.recordOf(t, "u0").Grants[0].GPU.UUID]}
			if brings, err := n.options.Specs.Nodes(cdi.SpecName("u0")); !slices.Equal(brings, want) || err != nil {
				t.Errorf("when it is back it brings %v, %v, want %v", brings, err, want)
			}
		})
	}
}
