// SPDX-License-Identifier: Apache-2.0

package held

import (
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func units(n int64) Taken { return Taken{Amount: gpu.Amount{Units: n, Shares: 1}} }

// What a pod holds of a GPU that is not known counts on each GPU, and the pods are in order. What others hold is added,
// and changes nothing for whoever has the sum from before.
func TestWhatIsHeldOfEachGPU(t *testing.T) {
	gpus := []gpu.GPU{{Index: 0, UUID: "GPU-0"}, {Index: 1, UUID: "GPU-1"}}
	pods := Of([]Pod{{Namespace: "ns", Name: "b", Shares: []Share{{GPU: 1, Taken: units(3)}}},
		{Namespace: "ns", Name: "a", Unknown: []Unknown{{Taken: units(2)}}}}, gpus)
	all := pods.Plus("GPU-0", "claim ns/gone", units(4)).OfDriver("GPU-1", "gpu.nvidia.com", []string{"ns/c"})
	two := Taken{Amount: gpu.Amount{Units: 5, Shares: 2}}
	six := Taken{Amount: gpu.Amount{Units: 6, Shares: 2}}
	for name, test := range map[string]struct {
		of   Reserved
		want map[string]GPU
	}{
		"pods": {pods, map[string]GPU{"GPU-0": {Taken: units(2), MemoryOnly: true, Pods: []string{"ns/a"}},
			"GPU-1": {Taken: two, MemoryOnly: true, Pods: []string{"ns/a", "ns/b"}}}},
		"all": {all, map[string]GPU{"GPU-0": {Taken: six, MemoryOnly: true, Pods: []string{"ns/a", "claim ns/gone"}},
			"GPU-1": {Taken: Taken{Amount: two.Amount, Whole: true}, MemoryOnly: true, Driver: "gpu.nvidia.com",
				Pods: []string{"ns/a", "ns/b", "ns/c"}}}},
		"nothing": {Of(nil, gpus), map[string]GPU{}},
	} {
		expect.Equal(t, test.want, test.of.gpus, "%s", name)
		expect.Equal(t, name == "nothing", test.of.IsEmpty(), "%s: empty", name)
	}
}

func TestWhatIsLeftOfAGPU(t *testing.T) {
	for name, test := range map[string]struct {
		taken Taken
		want  gpu.Amount
	}{
		"nothing taken": {Taken{}, gpu.Amount{Units: 15, Cores: 100, Shares: 20}},
		"some": {
			Taken{Amount: gpu.Amount{Units: 4, Cores: 30, Shares: 2}},
			gpu.Amount{Units: 11, Cores: 70, Shares: 18},
		},
		"too much": {Taken{Amount: gpu.Amount{Units: 3000, Cores: 200, Shares: 30}}, gpu.Amount{}},
		"all":      {Taken{Amount: gpu.Amount{Shares: 1}, Whole: true}, gpu.Amount{}},
	} {
		expect.Equal(t, test.want, (GPU{Taken: test.taken}).Left(15, 20), "%s", name)
	}
}

func TestModesThatAGPUIsClosedIn(t *testing.T) {
	memory := GPU{Taken: Taken{Amount: gpu.Amount{Units: 3, Shares: 1}}, MemoryOnly: true}
	compute := GPU{Taken: Taken{Amount: gpu.Amount{Units: 3, Cores: 20, Shares: 1}}}
	whole := GPU{Taken: Taken{Amount: gpu.Amount{Shares: 1}, Whole: true}}
	for m, want := range map[mode.Mode]string{
		mode.Share: "compute whole", mode.CGPU: "compute whole", mode.MPS: "compute whole", mode.CoreMem: "memory whole",
		mode.Exclusive: "memory compute whole", mode.Topology: "memory compute whole", mode.Dynamic: "memory compute whole",
	} {
		var closed []string
		for _, c := range []struct {
			name string
			gpu  GPU
		}{{"free", GPU{}}, {"memory", memory}, {"compute", compute}, {"whole", whole}} {
			if c.gpu.Closes(m) {
				closed = append(closed, c.name)
			}
		}
		expect.Equal(t, want, strings.Join(closed, " "), "in mode %s these are closed", m)
	}
}
