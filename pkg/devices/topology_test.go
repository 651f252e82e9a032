// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/topologytest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

func machine(t testing.TB, name string) *gpu.Machine {
	t.Helper()
	m, err := topologytest.Machine(quiet(t), filepath.Join("..", "..", "demo", "machines", name+".yaml"))
	expect.NoError(t, err)
	return m
}

// changed is a shipped machine with a change.
func changed(t testing.TB, name string, change func(*sim.Spec)) *gpu.Machine {
	t.Helper()
	spec, err := sim.Load(filepath.Join("..", "..", "demo", "machines", name+".yaml"))
	expect.NoError(t, err)
	change(spec)
	m, err := topologytest.Read(quiet(t), spec)
	expect.NoError(t, err)
	return m
}

func topologyPool(m *gpu.Machine, retained ...[]int) resourceslice.DriverResources {
	return devices.Build(m, devices.Options{Pool: "n1/gpu", Mode: mode.Topology, Isolation: "whole-card",
		IsolationLevel: "card", Retained: retained})
}

func topologyNode(t testing.TB, m *gpu.Machine) *allocatortest.Node {
	t.Helper()
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	return allocatortest.NewNode("n1", v1alpha1.DriverName, topologyPool(m), classes)
}

// quiet is a context without the allocator's log, of which there would be much.
func quiet(t testing.TB) context.Context { return klog.NewContext(t.Context(), logr.Discard()) }

// GPUs is what demo/topology says: a linked set of k, or any k single GPUs. For
// one GPU that is the same.
func newGPUs(k int) resourceapi.DeviceClaim {
	sub := func(name, class string, count int) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{
			Name: name, DeviceClassName: class + ".topology.gpu.aliyun.com",
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(count),
		}
	}
	alternatives := []resourceapi.DeviceSubRequest{sub("any", "single", k)}
	if k > 1 {
		alternatives = append([]resourceapi.DeviceSubRequest{sub("linked", fmt.Sprintf("linked-%d", k), 1)}, alternatives...)
	}
	return claimOf(resourceapi.DeviceRequest{Name: "cards", FirstAvailable: alternatives})
}

// members are the indices of the allocated GPUs, ascending.
func members(t testing.TB, results []resourceapi.DeviceRequestAllocationResult) []int {
	t.Helper()
	var out []int
	for _, r := range results {
		indices, _, err := devices.ParseDeviceName(r.Device)
		expect.NoError(t, err)
		out = append(out, indices...)
	}
	slices.Sort(out)
	return out
}

// Whatever is taken and given back before, a claim gets the best of the free
// GPUs, with the scheduler's own allocator.
func TestClaimsGetTheBestFreeGPUs(t *testing.T) {
	m := machine(t, "dgx1")
	w := &walk{machine: m, node: topologyNode(t, m), answers: map[string][]resourceapi.DeviceRequestAllocationResult{}}
	for sequence := range uint64(2000) {
		w.allocateAtRandom(t, rand.New(rand.NewPCG(sequence, 8)))
	}
}

// walk allocates from a node.
type walk struct {
	machine *gpu.Machine
	node    *allocatortest.Node
	// answers are what claims were allocated before, by what was asked for and taken: that is all that the allocator
	// sees, and sequences come by the same again and again.
	answers map[string][]resourceapi.DeviceRequestAllocationResult
}

// allocateAtRandom begins with a node of which nothing is taken, and leaves it so.
func (w *walk) allocateAtRandom(t *testing.T, random *rand.Rand) {
	t.Helper()
	free := devices.IndexOrder(w.machine)
	var held [][]resourceapi.DeviceRequestAllocationResult
	var history []string
	for range 8 {
		if len(held) > 0 && random.IntN(3) == 0 {
			i := random.IntN(len(held))
			w.node.Release(held[i])
			free = append(free, members(t, held[i])...)
			slices.Sort(free)
			history = append(history, fmt.Sprintf("release %v", members(t, held[i])))
			held = slices.Delete(held, i, i+1)
			continue
		}
		k := []int{1, 1, 2, 2, 4, 4, 8}[random.IntN(7)]
		results := w.allocate(t, held, free, k, history)
		got := members(t, results)
		history = append(history, fmt.Sprintf("%d of %v: %v", k, free, got))
		free = slices.DeleteFunc(free, func(g int) bool { return slices.Contains(got, g) })
		if results != nil {
			held = append(held, results)
		}
	}
	for _, results := range held {
		w.node.Release(results)
	}
}

// allocate allocates k of the free GPUs, and checks that they are the best.
func (w *walk) allocate(t *testing.T, held [][]resourceapi.DeviceRequestAllocationResult, free []int, k int,
	history []string) []resourceapi.DeviceRequestAllocationResult {
	t.Helper()
	var taken []string
	for _, result := range slices.Concat(held...) {
		taken = append(taken, result.Device)
	}
	slices.Sort(taken)
	asked := fmt.Sprintf("%d beside %s", k, strings.Join(taken, ", "))
	if results, before := w.answers[asked]; before {
		w.node.Hold(results)
		return results
	}
	results, err := w.node.Allocate(quiet(t), newGPUs(k))
	expect.NoError(t, err)
	want := topologytest.Best(w.machine, free, k)
	expect.Equal(t, want, members(t, results), "%s; %s", strings.Join(history, "; "), asked)
	w.answers[asked] = results
	return results
}

// The same for each of the 256 combinations of free GPUs and each size: what
// random sequences may not come by. (GPUs without NVLink come one after the
// other: pkg/topology has their order.)
func TestEveryCombinationOfBusyGPUs(t *testing.T) {
	ctx := quiet(t)
	for _, name := range []string{"dgx1", "v100x4", "a100x8"} {
		m := machine(t, name)
		n := topologyNode(t, m)
		for mask := range 1 << len(m.GPUs) {
			var busy [][]resourceapi.DeviceRequestAllocationResult
			var free []int
			for i, g := range m.GPUs {
				if mask&(1<<i) != 0 {
					free = append(free, g.Index)
					continue
				}
				busy = append(busy, []resourceapi.DeviceRequestAllocationResult{
					{Driver: v1alpha1.DriverName, Pool: "n1/gpu", Device: devices.DeviceName(g.Index, mode.Topology)}})
			}
			for _, b := range busy {
				n.Hold(b)
			}
			for _, k := range []int{1, 2, 4, 8} {
				results, err := n.Allocate(ctx, newGPUs(k))
				expect.NoError(t, err)
				expect.Equal(t, topologytest.Best(m, free, k), members(t, results), "%s: %d of the free GPUs %v", name, k, free)
				n.Release(results)
			}
			for _, b := range busy {
				n.Release(b)
			}
		}
	}
}

func TestSizeOfATopologyPool(t *testing.T) {
	pcie := changed(t, "dgx1", func(s *sim.Spec) { s.NVLinks = nil })
	weak := changed(t, "h200x8", func(s *sim.Spec) { s.GPUs[3].NVSwitchLanes = ptr.To(17) })
	for _, tc := range []struct {
		name            string
		machine         *gpu.Machine
		devices, slices int
		counters        bool
	}{
		{"dgx1", machine(t, "dgx1"), 53 + 8, 2, true},
		{"v100x4", machine(t, "v100x4"), 11 + 4, 2, true},
		{"a100x8", machine(t, "a100x8"), 8, 1, false},
		{"h200x8", machine(t, "h200x8"), 8, 1, false},
		{"h200x8 with a lane down", weak, 8, 1, false},
		{"t4x1", machine(t, "t4x1"), 1, 1, false},
		{"eight GPUs on PIX, PHB and SYS", pcie, 8, 1, false},
		{"a10x4", machine(t, "a10x4"), 4, 1, false},
		{"mixed", machine(t, "mixed"), 4, 1, false},
	} {
		pool := topologyPool(tc.machine).Pools["n1/gpu"]
		devices, bytes, counters := 0, 0, false
		for _, s := range pool.Slices {
			devices += len(s.Devices)
			counters = counters || len(s.SharedCounters) > 0
			slice := resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: s.Devices,
				SharedCounters: s.SharedCounters}}
			text, err := json.Marshal(slice)
			expect.NoError(t, err)
			t.Logf("%s: %d devices, %d bytes as JSON, %d as protobuf", tc.name, len(s.Devices), len(text), slice.Size())
			bytes += len(text)
		}
		if devices != tc.devices || len(pool.Slices) != tc.slices || counters != tc.counters {
			t.Errorf("%s: %d devices in %d slices, with counters: %v; want %d in %d, %v", tc.name, devices, len(pool.Slices),
				counters, tc.devices, tc.slices, tc.counters)
		}
	}
}

// An allocated set without one of its GPUs keeps the others from being given
// to somebody else, and is not given again.
func TestRetainedSetKeepsItsGPUs(t *testing.T) {
	ctx := quiet(t)
	m := machine(t, "dgx1")
	n := topologyNode(t, m)
	held, err := n.Allocate(ctx, newGPUs(4))
	if err != nil || fmt.Sprint(members(t, held)) != "[0 1 2 3]" {
		t.Fatalf("%v, %v", held, err)
	}
	sick := *m
	sick.GPUs = slices.DeleteFunc(slices.Clone(m.GPUs), func(g gpu.GPU) bool { return g.Index == 2 })
	sick.Links = slices.DeleteFunc(slices.Clone(m.Links), func(l gpu.Link) bool { return l.A == 2 || l.B == 2 })
	n.Publish(topologyPool(&sick, []int{0, 1, 2, 3}))
	for range 4 {
		results, err := n.Allocate(ctx, newGPUs(1))
		if got := members(t, results); err != nil || len(got) != 1 || got[0] < 4 {
			t.Errorf("got %v, %v: want one of the other four", got, err)
		}
	}
	expect.Equal(t, "", n.Devices(t, newGPUs(1)), "while every GPU is taken or sick")
	n.Release(held)
	expect.Equal(t, "", n.Devices(t, newGPUs(4)), "with one of them sick")
	expect.Equal(t, "gpus-0-3", n.Devices(t, newGPUs(2)), "two of them")
}

// A claim that does not say how many GPUs a device is to have gets single ones.
func TestCountWithoutASize(t *testing.T) {
	n := topologyNode(t, machine(t, "dgx1"))
	two := request("r", mode.Topology, nil)
	two.Exactly.Count = 2
	for _, want := range []string{"gpu-0-topology gpu-1-topology", "gpu-2-topology gpu-3-topology"} {
		expect.Equal(t, want, n.Devices(t, claimOf(two)), "devices")
	}
}

// The scheduler counts the GPUs of administrators' claims too: by the devices that others get they see what is free
// alone.
func TestAdminClaimAmongCountedGPUs(t *testing.T) {
	n := topologyNode(t, machine(t, "dgx1"))
	expect.Equal(t, "gpus-0-1-2-3", n.Devices(t, newGPUs(4)), "taken")
	for _, tc := range []struct {
		gpu  int
		want string
	}{{0, ""}, {4, "gpu-4-topology"}} {
		admin := request("monitor", mode.Topology, nil)
		admin.Exactly.AdminAccess = ptr.To(true)
		admin.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.attributes["gpu.aliyun.com"].gpuCount == 1 && `+
				`device.attributes["gpu.aliyun.com"].index == %d`, tc.gpu),
		}}}
		expect.Equal(t, tc.want, n.Devices(t, claimOf(admin)), "an administrator who asks for GPU %d gets", tc.gpu)
	}
}

// BenchmarkAllocate measures the allocator on one node, for the sizes of claims
// and for one that nothing fits.
func BenchmarkAllocate(b *testing.B) {
	ctx := quiet(b)
	m := machine(b, "dgx1")
	for _, k := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprint(k), func(b *testing.B) {
			n := topologyNode(b, m)
			for b.Loop() {
				results, err := n.Allocate(ctx, newGPUs(k))
				if err != nil || results == nil {
					b.Fatal(results, err)
				}
				n.Release(results)
			}
		})
	}
	b.Run("4-of-3", func(b *testing.B) {
		n := topologyNode(b, m)
		for _, k := range []int{4, 1} {
			if _, err := n.Allocate(ctx, newGPUs(k)); err != nil {
				b.Fatal(err)
			}
		}
		for b.Loop() {
			if results, err := n.Allocate(ctx, newGPUs(4)); err != nil || results != nil {
				b.Fatal(results, err)
			}
		}
	})
}

// BenchmarkBuild measures what each look of the publisher costs.
func BenchmarkBuild(b *testing.B) {
	m := machine(b, "dgx1")
	for b.Loop() {
		topologyPool(m)
	}
}
