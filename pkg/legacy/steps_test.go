// SPDX-License-Identifier: Apache-2.0

package legacy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// wholeNode offers whole GPUs that are linked alike, or those of a DGX-1.
func wholeNode(t *testing.T, m mode.Mode, gpus int) *allocatortest.Node {
	t.Helper()
	machine := alike(max(gpus, 0), "NVIDIA-H200", 143771)
	if gpus == dgx1 {
		machine = aDGX1(t)
	}
	return publishing(t, devices.Build(machine, devices.Options{Pool: "n1/gpu", Mode: m, Isolation: "whole-card"}))
}

// dgx1 is instead of a number of GPUs.
const dgx1 = -8

// containers is the template of containers that ask for so many GPUs.
func containers(kind string, counts ...int) string {
	name := "gpushare." + kind
	for i, count := range counts {
		name += fmt.Sprintf(".c%d.%d", i, count)
	}
	return name
}

func repeated(count, times int) []int { return slices.Repeat([]int{count}, times) }

// Containers that ask for GPUs of their own cost the scheduler little, also where one GPU is missing: it tries the GPUs
// of a node in one order, and not in each.
func TestContainersWithGPUsOfTheirOwn(t *testing.T) {
	for _, test := range []struct {
		gpus   int
		counts []int
		most   int64
	}{
		{8, repeated(2, 4), 60}, {8, repeated(1, 8), 60}, {8, repeated(4, 2), 60}, {8, []int{1, 2, 5}, 60},
		{16, repeated(8, 2), 600}, {16, repeated(4, 4), 600}, {16, repeated(2, 8), 600}, {16, repeated(1, 16), 600},
		{16, []int{9, 3, 4}, 600}, {dgx1, repeated(2, 4), 4000}, {dgx1, repeated(1, 8), 60}, {dgx1, repeated(4, 2), 300},
		// Four GPUs more than are needed: which of them are left is still tried. 1000 steps take about 2 ms.
		{16, repeated(4, 3), 40_000},
	} {
		for _, kind := range []string{"gpu", "nvidia"} {
			m := mode.Topology
			if kind == "nvidia" {
				m = mode.Exclusive
			}
			if kind == "nvidia" && test.gpus == dgx1 {
				continue
			}
			name := containers(kind, test.counts...)
			t.Run(fmt.Sprintf("%s of %d", name, test.gpus), func(t *testing.T) {
				sum := 0
				for _, count := range test.counts {
					sum += count
				}
				free, short := wholeNode(t, m, test.gpus), wholeNode(t, m, test.gpus)
				if got := allocate(t, free, name, false); got == "" {
					t.Errorf("it does not fit on a free node")
				}
				if steps := free.Steps(); steps > test.most {
					t.Errorf("%d steps on a free node, at most %d", steps, test.most)
				}
				t.Logf("free: %d steps", free.Steps())
				all := max(test.gpus, -test.gpus)
				if held := all - sum + 1; allocate(t, short, containers(kind, repeated(1, held)...), false) == "" {
					t.Fatalf("%d others get no GPU", held)
				}
				if got := allocate(t, short, name, false); got != "" {
					t.Errorf("it got %q of too few", got)
				}
				if steps := short.Steps(); steps > test.most {
					t.Errorf("%d steps where one GPU is missing, at most %d", steps, test.most)
				}
				t.Logf("one missing: %d steps", short.Steps())
			})
		}
	}
}

// Whatever is free: containers get their GPUs if there are enough, and each GPU once.
func TestContainersGetWhatIsThere(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	for range 100 {
		gpus := []int{8, 16, dgx1}[random.IntN(3)]
		n, all := wholeNode(t, mode.Topology, gpus), max(gpus, -gpus)
		held := random.Perm(all)[:random.IntN(all)]
		for _, index := range held {
			if got := n.Devices(t, theGPU(index)); got != devices.DeviceName(index, mode.Topology) {
				t.Fatalf("GPU %d: got %q", index, got)
			}
		}
		var counts []int
		sum := 0
		for len(counts) < 2 || sum < all-len(held) && len(counts) < 6 {
			counts = append(counts, 1+random.IntN(4))
			sum += counts[len(counts)-1]
		}
		name := containers("gpu", counts...)
		got := allocate(t, n, name, false)
		if fits := sum <= all-len(held); (got != "") != fits {
			t.Fatalf("%s beside %v of %d got %q", name, held, all, got)
		}
		has, taken := make([]int, len(counts)), slices.Clone(held)
		for result := range strings.SplitSeq(got, ", ") {
			request, device, _ := strings.Cut(result, " ")
			container, _, _ := strings.Cut(request, "/")
			indices, _, err := devices.ParseDeviceName(device)
			if got != "" && err != nil {
				t.Fatal(err)
			}
			for i := range counts {
				if container == fmt.Sprintf("c%d", i) {
					has[i] += len(indices)
				}
			}
			for _, index := range indices {
				if slices.Contains(taken, index) {
					t.Fatalf("%s beside %v got %s: GPU %d twice", name, held, got, index)
				}
				taken = append(taken, index)
			}
		}
		if got != "" && !slices.Equal(has, counts) {
			t.Fatalf("%s beside %v got %s", name, held, got)
		}
	}
}

// theGPU is a claim for the single GPU with the index.
func theGPU(index int) resourceapi.DeviceClaim {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: "single.topology.gpu.aliyun.com",
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.attributes["gpu.aliyun.com"].?index.orValue(-1) == %d`, index)}}}}
	return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: exactly}}}
}
