// SPDX-License-Identifier: Apache-2.0

package deviceclasses

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/topologytest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// nodeModes are those that a node can be in.
func nodeModes() []mode.Mode {
	return append(mode.Dynamic.ServedModes(), mode.Topology, mode.Dynamic)
}

// published is what a machine publishes in a mode.
func published(m *gpu.Machine, of mode.Mode) resourceslice.DriverResources {
	options := func(served mode.Mode) devices.Options {
		return devices.Options{Pool: "n1/gpu", Mode: served, Slots: 20, Isolation: "none", IsolationLevel: "card"}
	}
	if of != mode.Dynamic {
		return devices.Build(m, options(of))
	}
	var perMode []devices.Options
	for _, served := range of.ServedModes() {
		perMode = append(perMode, options(served))
	}
	return devices.BuildDynamic(m, perMode)
}

// eachMachine calls test with each machine file, in each mode.
func eachMachine(t *testing.T, test func(t *testing.T, m *gpu.Machine, of mode.Mode)) {
	t.Helper()
	files, err := filepath.Glob("../demo/machines/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("machine files: %v, %v", files, err)
	}
	for _, file := range files {
		_, ctx := ktesting.NewTestContext(t)
		machine, err := topologytest.Machine(ctx, file)
		expect.NoError(t, err)
		for _, of := range nodeModes() {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml")+" "+string(of), func(t *testing.T) { test(t, machine, of) })
		}
	}
}

// withModels are the installed classes and those of the machine's models.
func withModels(t *testing.T, m *gpu.Machine) []*resourceapi.DeviceClass {
	t.Helper()
	classes, err := All()
	expect.NoError(t, err)
	modes, err := ModesWithClass()
	expect.NoError(t, err)
	known := map[string]bool{}
	for _, g := range m.GPUs {
		if known[g.Model] {
			continue
		}
		known[g.Model] = true
		ofModel, err := Model(g.Model, modes)
		expect.NoError(t, err)
		classes = append(classes, ofModel...)
	}
	return classes
}

func devicesOf(resources resourceslice.DriverResources) []resourceapi.Device {
	var all []resourceapi.Device
	for _, slice := range resources.Pools["n1/gpu"].Slices {
		all = append(all, slice.Devices...)
	}
	return all
}

// The scheduler tries each device that a request matches, and what it tries multiplies over the devices of a pod. So of
// a GPU a class matches one device, and a linked set is told apart by its size.
func TestAClassSelectsOneDeviceOfAGPU(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpu.Machine, of mode.Mode) {
		for _, class := range withModels(t, m) {
			if strings.HasPrefix(class.Name, "topology.") || class.Name == "mig.gpu.aliyun.com" {
				continue
			}
			selects, found, sizes := compiled(t, class), map[int64][]string{}, map[int64]bool{}
			for _, d := range devicesOf(published(m, of)) {
				if !selects(v1alpha1.DriverName, d) {
					continue
				}
				if index := d.Attributes[v1alpha1.AttrIndex].IntValue; index != nil {
					found[*index] = append(found[*index], d.Name)
				}
				sizes[max(1, ptr.Deref(d.Attributes[v1alpha1.AttrGPUCount].IntValue, 1))] = true
			}
			for index, names := range found {
				if len(names) > 1 {
					t.Errorf("class %s selects of GPU %d %v", class.Name, index, names)
				}
			}
			if len(sizes) > 1 {
				t.Errorf("class %s selects devices of %d sizes", class.Name, len(sizes))
			}
		}
	})
}

// A monitor of a node sees each of its GPUs, whoever has it, and takes nothing.
func TestAMonitorRunsOnEachNode(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpu.Machine, of mode.Mode) {
		var want []int
		for _, g := range m.GPUs {
			if devices.Serves(of, g) {
				want = append(want, g.Index)
			}
		}
		slices.Sort(want)
		classes := withModels(t, m)
		for _, inUse := range []string{"", "one", "all", "linked set"} {
			n := allocatortest.NewNode("n1", v1alpha1.DriverName, published(m, of), classes)
			held := use(t, n, of, inUse, len(want))
			for _, which := range []string{"a", "a second"} {
				expect.Equal(t, want, seen(t, n), "in use %q (%s): %s monitor sees", inUse, held, which)
			}
			after := allocatortest.NewNode("n1", v1alpha1.DriverName, published(m, of), classes)
			use(t, after, of, inUse, len(want))
			expect.Equal(t, free(t, after, of), free(t, n, of), "in use %q: the node gives beside monitors", inUse)
		}
	})
}

// A machine with 45 linked sets has more devices than a claim can have: a monitor that asked for all of the mode's
// class would see nothing.
func TestAMonitorNeedsAClassOfItsOwn(t *testing.T) {
	dgx, err := topologytest.Machine(t.Context(), "../demo/machines/dgx1.yaml")
	expect.NoError(t, err)
	n := allocatortest.NewNode("n1", v1alpha1.DriverName, published(dgx, mode.Topology), withModels(t, dgx))
	if results, err := n.Allocate(t.Context(), monitoring("topology.gpu.aliyun.com")); err == nil {
		t.Errorf("all devices of the machine fit into a claim: %d", len(results))
	}
	expect.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, seen(t, n), "a monitor sees")
}

// use takes some of the node's GPUs in its mode, or what there is of a dynamic node in turns, and says what.
func use(t *testing.T, n *allocatortest.Node, of mode.Mode, what string, gpus int) (held string) {
	t.Helper()
	count := map[string]int{"one": 1, "all": gpus}[what]
	if what == "linked set" && of == mode.Topology {
		return n.Devices(t, asking("linked-2.topology.gpu.aliyun.com", nil))
	}
	for i := range count {
		held += n.Devices(t, some(of, i)) + " "
	}
	return held
}

// free takes what is left, and says what that was.
func free(t *testing.T, n *allocatortest.Node, of mode.Mode) (given string) {
	t.Helper()
	for i := range 12 {
		given += n.Devices(t, some(of, i)) + " "
	}
	return given
}

// some is the claim with a number: for a whole GPU, or most of its memory.
func some(of mode.Mode, number int) resourceapi.DeviceClaim {
	if of == mode.Dynamic {
		served := of.ServedModes()
		of = served[number%len(served)]
	}
	class := string(of) + ".gpu.aliyun.com"
	switch {
	case of == mode.Topology:
		return asking("single.topology.gpu.aliyun.com", nil)
	case of == mode.CoreMem:
		return asking(class, map[string]string{"memory": "12Gi", "cores": "60"})
	case of.Shared():
		return asking(class, map[string]string{"memory": "12Gi"})
	}
	return asking(class, nil)
}

// monitoring asks for all devices of a class, and takes nothing of them.
func monitoring(class string) resourceapi.DeviceClaim {
	monitor := asking(class, map[string]string{"memory": "0"})
	r := monitor.Requests[0].Exactly
	r.AllocationMode, r.Count, r.AdminAccess = resourceapi.DeviceAllocationModeAll, 0, ptr.To(true)
	r.Tolerations = []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
	return monitor
}

// seen are the GPUs that the documented claim of a monitor gets, nil where it gets none.
func seen(t *testing.T, n *allocatortest.Node) (gpus []int) {
	t.Helper()
	results, err := n.Allocate(t.Context(), monitoring("monitor.gpu.aliyun.com"))
	expect.NoError(t, err)
	for _, result := range results {
		indices, _, err := devices.ParseDeviceName(result.Device)
		expect.NoError(t, err)
		gpus = append(gpus, indices...)
	}
	slices.Sort(gpus)
	return gpus
}

// An administrator's class that selects all that the driver has gives no view of a GPU to claims for GPUs.
func TestABroadClassGivesNoMonitor(t *testing.T) {
	eachMachine(t, func(t *testing.T, m *gpu.Machine, of mode.Mode) {
		broad := &resourceapi.DeviceClass{Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.aliyun.com"`}}}}}
		broad.Name = "broad"
		n := allocatortest.NewNode("n1", v1alpha1.DriverName, published(m, of), []*resourceapi.DeviceClass{broad})
		for range 4 * len(m.GPUs) {
			if got := n.Devices(t, asking("broad", nil)); strings.HasSuffix(got, "-monitor") {
				t.Fatalf("the class got %q", got)
			}
		}
	})
}
