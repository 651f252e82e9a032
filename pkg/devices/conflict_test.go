// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// holds enters devices as claims of others: whatever the node offers.
func holds(n *allocatortest.Node, pool string, names ...string) map[string]bool {
	allocated := map[string]bool{}
	for _, name := range names {
		allocated[name] = true
		n.Hold([]resourceapi.DeviceRequestAllocationResult{{Driver: v1alpha1.DriverName, Pool: pool, Device: name}})
	}
	return allocated
}

// closedBy are the devices with the taint of a conflict.
func closedBy(built resourceslice.DriverResources, pool string) []string {
	var names []string
	for _, slice := range built.Pools[pool].Slices {
		for _, d := range slice.Devices {
			if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == v1alpha1.TaintConflict }) {
				names = append(names, d.Name)
			}
		}
	}
	return names
}

// The scheduler gives nothing that is counted where any counter of the pool is below zero. So claims that were given
// what cannot be had together close what they have, and nothing else.
func TestConflictsCloseTheirGPUsAlone(t *testing.T) {
	classes, dgx1 := append(modeClasses(t), migClass()), machine(t, "dgx1")
	dynamic := func(allocated map[string]bool) resourceslice.DriverResources {
		var options []devices.Options
		for _, served := range mode.Dynamic.ServedModes() {
			options = append(options, devices.Options{Pool: "p", Mode: served, Slots: dynamicSlots, Isolation: "none",
				Allocated: allocated})
		}
		return devices.BuildDynamic(plainGPUs(3), options)
	}
	topology := func(allocated map[string]bool) resourceslice.DriverResources {
		return devices.Build(dgx1, devices.Options{Pool: "p", Mode: mode.Topology, Isolation: "none", Allocated: allocated})
	}
	onDemandMIG := func(allocated map[string]bool) resourceslice.DriverResources {
		o := migOptions(mode.Exclusive)
		o.Allocated = allocated
		return devices.Build(onDemand(2), o)
	}
	for name, tc := range map[string]struct {
		build func(allocated map[string]bool) resourceslice.DriverResources
		held  []string
		ask   resourceapi.DeviceClaim
		want  string
		// closed is a part of the name of each device that is closed.
		closed string
	}{
		"a whole GPU beside a share": {dynamic, []string{"gpu-0-mps", "gpu-0"}, claimOf(request("r", mode.Exclusive, nil)),
			"gpu-1", "gpu-0"},
		"three modes": {dynamic, []string{"gpu-1-mps", "gpu-1", "gpu-1-core-mem"}, claimOf(request("r", mode.Share,
			amounts{"memory": "1Gi"})), "gpu-0-share", "gpu-1"},
		"two GPUs": {dynamic, []string{"gpu-0-mps", "gpu-0", "gpu-2", "gpu-2-share"}, claimOf(request("r", mode.Exclusive,
			nil)), "gpu-1", "gpu-"},
		"a GPU beside its set": {topology, []string{"gpu-0-topology", "gpus-0-1"}, claimOf(request("r", mode.Topology, nil)),
			"gpu-2-topology", "0"},
		"places that overlap": {onDemandMIG, []string{"gpu-0-mig-1g-10gb-0", "gpu-0-mig-7g-80gb-0"},
			withProfile("7g.80gb"), "gpu-1-mig-7g-80gb-0", "gpu-0"},
	} {
		t.Run(name, func(t *testing.T) {
			n := allocatortest.NewNode("n1", v1alpha1.DriverName, tc.build(nil), classes)
			allocated := holds(n, "p", tc.held...)
			if got := n.Devices(t, tc.ask); got != "" {
				t.Fatalf("%s is allocated while the conflict is not known: this tests nothing", got)
			}
			built := tc.build(allocated)
			closed := closedBy(built, "p")
			if len(closed) == 0 {
				t.Error("nothing is closed")
			}
			for _, device := range closed {
				expect.Says(t, device, tc.closed)
			}
			n.Publish(built)
			expect.Equal(t, tc.want, n.Devices(t, tc.ask), "allocated")
			// What one of them gives back nobody gets before it is published again.
			n = allocatortest.NewNode("n1", v1alpha1.DriverName, built, classes)
			holds(n, "p", tc.held[1:]...)
			for range 100 {
				got := n.Devices(t, tc.ask)
				if got == "" {
					break
				}
				if slices.Contains(closed, got) {
					t.Errorf("%s is allocated though it is closed", got)
				}
			}
		})
	}
}

// Until the plugin knows of a conflict the node is closed, however its counters are published: conflict.go has why.
// Where one of these fails, the scheduler's allocator has changed, and there is a way.
func TestNoWayToPublishBoundsAConflictBeforeItIsKnown(t *testing.T) {
	classes := modeClasses(t)
	of := func(pool string, m *gpu.Machine, order ...int) resourceslice.Pool {
		var options []devices.Options
		for _, served := range mode.Dynamic.ServedModes() {
			options = append(options, devices.Options{Pool: pool, Mode: served, Slots: dynamicSlots, Isolation: "none",
				Order: order})
		}
		return devices.BuildDynamic(m, options).Pools[pool]
	}
	whole := claimOf(request("r", mode.Exclusive, nil))
	share := claimOf(request("r", mode.Share, amounts{"memory": "1Gi"}))

	t.Run("a counter set for each GPU", func(t *testing.T) {
		pool := of("p", plainGPUs(3))
		for _, slice := range pool.Slices {
			for i := range slice.Devices {
				// All but the monitors consume one counter.
				for j, of := range slice.Devices[i].ConsumesCounters {
					for name := range of.Counters {
						slice.Devices[i].ConsumesCounters[j].CounterSet = name
					}
				}
			}
		}
		last := &pool.Slices[len(pool.Slices)-1]
		var sets []resourceapi.CounterSet
		for name, c := range last.SharedCounters[0].Counters {
			sets = append(sets, resourceapi.CounterSet{Name: name, Counters: map[string]resourceapi.Counter{name: c}})
		}
		last.SharedCounters = sets
		n := allocatortest.NewNode("n1", v1alpha1.DriverName,
			resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"p": pool}}, classes)
		expect.Equal(t, "gpu-0-share", n.Devices(t, share), "allocated first")
		holds(n, "p", "gpu-0")
		expect.Equal(t, "", n.Devices(t, whole), "allocated beside the conflict")
	})

	t.Run("a pool for each GPU", func(t *testing.T) {
		pools := map[string]resourceslice.Pool{}
		for _, g := range plainGPUs(3).GPUs {
			name := fmt.Sprintf("p/gpu-%d", g.Index)
			pools[name] = of(name, &gpu.Machine{GPUs: []gpu.GPU{g}})
		}
		n := allocatortest.NewNode("n1", v1alpha1.DriverName, resourceslice.DriverResources{Pools: pools}, classes)
		holds(n, "p/gpu-0", "gpu-0", "gpu-0-mps")
		expect.Equal(t, "gpu-1", n.Devices(t, whole), "allocated")
		// But no order can be published.
		n = allocatortest.NewNode("n1", v1alpha1.DriverName, resourceslice.DriverResources{Pools: pools}, classes)
		expect.Equal(t, "gpu-0-share", n.Devices(t, share), "allocated")
		n = allocatortest.NewNode("n1", v1alpha1.DriverName, resourceslice.DriverResources{
			Pools: map[string]resourceslice.Pool{"p": of("p", plainGPUs(3), 2, 0, 1)}}, classes)
		expect.Equal(t, "gpu-2-share", n.Devices(t, share), "of one pool is allocated")
	})
}

// What fits beside each other is published as if nobody had it: a pool that changes is passed over for a moment.
func TestAllocatedDevicesChangeNothing(t *testing.T) {
	o := migOptions(mode.Exclusive)
	before := devices.Build(onDemand(1), o)
	o.Allocated = map[string]bool{"gpu-0-mig-1g-10gb-0": true, "gpu-0-mig-3g-40gb-4": true, "gpu-9": true}
	if !apiequality.Semantic.DeepEqual(before, devices.Build(onDemand(1), o)) {
		t.Error("the pool changes with what is allocated of it")
	}
}

// An administrator destroyed an instance that was made for a claim, and cut another one that has engines it counts.
func TestForeignInstanceBesideAMadeOne(t *testing.T) {
	o := migOptions(mode.Exclusive)
	n := allocatortest.NewNode("n1", v1alpha1.DriverName, devices.Build(onDemand(2), o),
		[]*resourceapi.DeviceClass{migClass()})
	made := n.Devices(t, withProfile("1g.10gb+me"))
	o.MIG.Made = map[string]map[string]bool{"GPU-0": {made: true}}
	foreign := small
	foreign.UUID, foreign.Start = "MIG-foreign", 0
	m := onDemand(2)
	m.Partitioned[0].Instances = []gpu.Instance{foreign}
	n.Publish(devices.Build(m, o))
	for profile, want := range map[string]string{"7g.80gb": "gpu-1-mig-7g-80gb-0", "1g.10gb": "gpu-0-mig-1g-10gb-4"} {
		if made == want {
			t.Fatalf("%s is held", want)
		}
		expect.Equal(t, want, n.Devices(t, withProfile(profile)), "%s: allocated", profile)
	}
}

func migClass() *resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{}
	class.Name = "mig.gpu.aliyun.com"
	return class
}

func withProfile(profile string) resourceapi.DeviceClaim {
	r := request("r", mode.MIG, nil)
	r.Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.driver == "gpu.aliyun.com" && device.attributes["gpu.aliyun.com"].profile == "` + profile + `"`}}}
	return claimOf(r)
}
