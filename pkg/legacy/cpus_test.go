// SPDX-License-Identifier: Apache-2.0

package legacy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// classOfCPUs is the DeviceClass of dra-driver-cpu.
var classOfCPUs = &resourceapi.DeviceClass{
	ObjectMeta: metav1.ObjectMeta{Name: legacy.ClassCPUs},
	Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
		{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "dra.cpu"`}}}},
}

// withoutNUMANode marks a GPU or CPUs that publish no NUMA node.
const withoutNUMANode = -1

// cpuDevices are what dra-driver-cpu publishes in its default mode: so many CPUs of each
// NUMA node; of a socket, where that is how it groups them.
func cpuDevices(amounts ...int64) resourceslice.DriverResources {
	var slice resourceslice.Slice
	for numa, amount := range amounts {
		attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"resource.kubernetes.io/numaNode": {IntValue: ptr.To(int64(numa))},
			"dra.cpu/numaNodeID":              {IntValue: ptr.To(int64(numa))},
			"dra.net/numaNode":                {IntValue: ptr.To(int64(numa))},
			"dra.cpu/socketID":                {IntValue: ptr.To(int64(0))},
			"dra.cpu/numCPUs":                 {IntValue: &amount},
			"dra.cpu/smtEnabled":              {BoolValue: ptr.To(true)},
		}
		slice.Devices = append(slice.Devices, resourceapi.Device{
			Name: fmt.Sprintf("cpudevnuma%03d", numa), AllowMultipleAllocations: ptr.To(true), Attributes: attributes,
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"dra.cpu/cpu": {Value: *resource.NewQuantity(amount, resource.DecimalSI)}},
		})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		"n1": {Slices: []resourceslice.Slice{slice}}}}
}

// bySocket is what the driver publishes where it groups CPUs by socket.
func bySocket(published resourceslice.DriverResources) resourceslice.DriverResources {
	for _, pool := range published.Pools {
		for i := range pool.Slices[0].Devices {
			d := &pool.Slices[0].Devices[i]
			d.Name = strings.Replace(d.Name, "numa", "socket", 1)
			for _, name := range []resourceapi.QualifiedName{"resource.kubernetes.io/numaNode", "dra.cpu/numaNodeID",
				"dra.net/numaNode"} {
				delete(d.Attributes, name)
			}
		}
	}
	return published
}

// individual is what the driver publishes where each CPU is a device.
func individual(perNUMANode int) resourceslice.DriverResources {
	var slice resourceslice.Slice
	for i := range 2 * perNUMANode {
		slice.Devices = append(slice.Devices, resourceapi.Device{Name: fmt.Sprintf("cpudev%03d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"resource.kubernetes.io/numaNode": {IntValue: ptr.To(int64(i / perNUMANode))},
				"dra.cpu/cpuID":                   {IntValue: ptr.To(int64(i))},
			}})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		"n1": {Slices: []resourceslice.Slice{slice}}}}
}

// numaNode is a node with GPUs of 15 GiB on these NUMA nodes, and CPUs.
func numaNode(t *testing.T, m mode.Mode, cpus resourceslice.DriverResources, gpus ...int) *allocatortest.Node {
	t.Helper()
	classes, err := deviceclasses.All()
	if err != nil {
		t.Fatal(err)
	}
	machine := &gpu.Machine{}
	for i, numa := range gpus {
		g := gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130}
		if numa != withoutNUMANode {
			g.NUMANode = &numa
		}
		machine.GPUs = append(machine.GPUs, g)
	}
	published := devices.Build(machine, devices.Options{Pool: "n1/gpu", Mode: m, Slots: 20, Isolation: "none"})
	n := allocatortest.NewNode("n1", v1alpha1.DriverName, published, append(classes, classOfCPUs))
	n.PublishBeside("dra.cpu", cpus)
	return n
}

// places says of each of a claim's devices what it is; "" where the claim does not fit.
func places(t *testing.T, n *allocatortest.Node, template string) string {
	t.Helper()
	request, err := legacy.ParseName(template)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), mostPerNode)
	defer cancel()
	results, err := n.Allocate(ctx, request.Template("ns").Spec.Spec.Devices)
	if err != nil {
		t.Fatalf("%s: %v", template, err)
	}
	var got []string
	for _, r := range results {
		text := r.Device
		if amount, ok := r.ConsumedCapacity["dra.cpu/cpu"]; ok {
			text += " " + amount.String()
		}
		got = append(got, text)
	}
	return strings.Join(got, ", ")
}

// CPUs are of the NUMA node of the GPU wherever that is possible, and of another where it is
// not.
func TestCPUsNearGPUs(t *testing.T) {
	type step struct{ template, want string }
	for name, test := range map[string]struct {
		mode  mode.Mode
		cpus  resourceslice.DriverResources
		gpus  []int
		steps []step
	}{
		"the GPU decides": {mode.Share, cpuDevices(8, 8), []int{1, 0}, []step{
			{"gpushare.mem-cpu4.main.15", "gpu-0-share, cpudevnuma001 4"},
			{"gpushare.mem-cpu4.main.3", "gpu-1-share, cpudevnuma000 4"},
			// Of the second GPU's NUMA node as long as there are any.
			{"gpushare.mem-cpu4.main.3", "gpu-1-share, cpudevnuma000 4"},
			{"gpushare.mem-cpu4.main.3", "gpu-1-share, cpudevnuma001 4"},
			{"gpushare.mem-cpu1.main.3", ""},
			{"gpushare.mem.main.3", "gpu-1-share"},
		}},
		"another GPU where the first one's NUMA node has no CPUs left": {mode.Share, cpuDevices(4, 16), []int{0, 1},
			[]step{
				{"gpushare.mem-cpu4.main.1", "gpu-0-share, cpudevnuma000 4"},
				{"gpushare.mem-cpu4.main.1", "gpu-1-share, cpudevnuma001 4"},
				{"gpushare.mem-cpu6.main.12", "gpu-1-share, cpudevnuma001 6"},
				{"gpushare.mem-cpu6.main.12", "gpu-0-share, cpudevnuma001 6"},
			}},
		"never halves where one NUMA node has them all": {mode.Share, cpuDevices(3, 8), []int{0, 1}, []step{
			{"gpushare.mem-cpu6.main.1", "gpu-1-share, cpudevnuma001 6"}}},
		"halves where none has them all": {mode.Share, cpuDevices(4, 4), []int{1, 0}, []step{
			{"gpushare.mem-cpu8.main.1", "gpu-0-share, cpudevnuma000 4, cpudevnuma001 4"},
			{"gpushare.mem-cpu2.main.1", ""}}},
		"a GPU without a NUMA node": {mode.Share, cpuDevices(4, 4), []int{withoutNUMANode}, []step{
			{"gpushare.mem-cpu4.main.1", "gpu-0-share, cpudevnuma000 4"},
			{"gpushare.mem-cpu3.main.1", "gpu-0-share, cpudevnuma001 3"}}},
		"CPUs without a NUMA node": {mode.Share, bySocket(cpuDevices(4, 4)), []int{1, 0}, []step{
			{"gpushare.mem-cpu4.main.1", "gpu-0-share, cpudevsocket000 4"},
			{"gpushare.mem-cpu4.main.1", "gpu-0-share, cpudevsocket001 4"}}},
		"neither has any": {mode.Share, bySocket(cpuDevices(4)), []int{withoutNUMANode}, []step{
			{"gpushare.mem-cpu4.main.1", "gpu-0-share, cpudevsocket000 4"}}},
		"no CPUs at all": {mode.Share, cpuDevices(), []int{0}, []step{
			{"gpushare.mem-cpu1.main.1", ""}, {"gpushare.mem.main.1", "gpu-0-share"}}},
		"each CPU is a device": {mode.Share, individual(8), []int{0}, []step{
			{"gpushare.mem-cpu1.main.1", ""}, {"gpushare.cpu.main.2", ""}, {"gpushare.mem.main.1", "gpu-0-share"}}},
		"an odd number": {mode.Share, cpuDevices(4, 5), []int{0, 1}, []step{
			{"gpushare.mem-cpu5.main.1", "gpu-1-share, cpudevnuma001 5"},
			{"gpushare.mem-cpu5.main.1", ""}}},
		"several containers": {mode.Share, cpuDevices(2, 4), []int{0, 1}, []step{
			{"gpushare.mem-cpu4.a.3.b.12", "gpu-1-share, cpudevnuma001 4, gpu-1-share"},
			{"gpushare.mem-cpu4.a.3.b.12", ""}, // six CPUs, four of which are taken
			{"gpushare.mem-cpu2.a.3.b.12", "gpu-0-share, cpudevnuma000 2, gpu-0-share"}}},
		"several GPUs": {mode.Share, cpuDevices(8, 8), []int{0, 1, 1, 0}, []step{
			{"gpushare.mem-x2-cpu4.main.4", "gpu-0-share, gpu-3-share, cpudevnuma000 4"},
			// An odd number is never halved; an even one may be before other GPUs are tried.
			{"gpushare.mem-x2-cpu7.main.24", "gpu-1-share, gpu-2-share, cpudevnuma001 7"},
			{"gpushare.mem-x2-cpu2.main.24", "gpu-0-share, gpu-3-share, cpudevnuma000 2"}}},
		"GPUs of several NUMA nodes": {mode.Share, cpuDevices(8, 8), []int{0, 1}, []step{
			{"gpushare.mem-x2-cpu4.main.4", "gpu-0-share, gpu-1-share, cpudevnuma000 4"}}},
		"of several containers": {mode.Share, cpuDevices(2, 8), []int{0, 1, 1}, []step{
			{"gpushare.mem-x2-cpu4.a.4.b.4", "gpu-1-share, cpudevnuma001 4, gpu-1-share, gpu-0-share, gpu-0-share"}}},
		// That is found out before all assignments of GPUs are tried.
		"eight GPUs of several containers, and no CPUs": {mode.Share, cpuDevices(), make([]int, 8), []step{
			{"gpushare.mem-x8-cpu8.a.8.b.8", ""}}},
		"a whole GPU": {mode.Share, cpuDevices(2, 8), []int{0, 1}, []step{
			{"gpushare.mem-whole-cpu4.main.15", "gpu-1-share, cpudevnuma001 4"}}},
		"memory and compute": {mode.CoreMem, cpuDevices(2, 8), []int{0, 1}, []step{
			{"gpushare.core-cpu4.main.3-20", "gpu-1-core-mem, cpudevnuma001 4"}}},
		"cards": {mode.Topology, cpuDevices(2, 8), []int{0, 0, 1, 1}, []step{
			{"gpushare.gpu-cpu3.main.1", "gpu-2-topology, cpudevnuma001 3"},
			{"gpushare.gpu-cpu3.main.1", "gpu-3-topology, cpudevnuma001 3"},
			{"gpushare.gpu-cpu2.main.1", "gpu-0-topology, cpudevnuma000 2"}}},
		"CPUs alone": {mode.Share, cpuDevices(4, 8), []int{0}, []step{
			{"gpushare.cpu.main.5", "cpudevnuma001 5"},
			{"gpushare.cpu.main.6", "cpudevnuma000 3, cpudevnuma001 3"},
			{"gpushare.cpu.main.2", ""},
			{"gpushare.cpu.main.1", "cpudevnuma000 1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			n := numaNode(t, test.mode, test.cpus, test.gpus...)
			for _, step := range test.steps {
				if got := places(t, n, step.template); got != step.want {
					t.Errorf("%s got %q, want %q", step.template, got, step.want)
				}
			}
		})
	}
}

// A claim that insists, as docs/internals/legacy-details.md has one, waits where no GPU is near enough CPUs.
func TestClaimsThatInsist(t *testing.T) {
	exactly := func(name, class string,
		amounts map[resourceapi.QualifiedName]resource.Quantity) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Capacity: &resourceapi.CapacityRequirements{Requests: amounts}}}
	}
	claim := resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{
			exactly("gpu", "share.gpu.aliyun.com",
				map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("3Gi")}),
			exactly("cpus", legacy.ClassCPUs,
				map[resourceapi.QualifiedName]resource.Quantity{"dra.cpu/cpu": resource.MustParse("8")}),
		},
		Constraints: []resourceapi.DeviceConstraint{{Requests: []string{"gpu", "cpus"},
			MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("resource.kubernetes.io/numaNode"))}},
	}
	n := numaNode(t, mode.Share, cpuDevices(7, 8), 0, 1)
	for _, want := range []string{"gpu-1-share cpudevnuma001", ""} {
		if got := n.Devices(t, claim); got != want {
			t.Errorf("it got %q, want %q", got, want)
		}
	}
}

// What looks for GPUs alone sees the claim that there would be without CPUs.
func TestWithoutCPUs(t *testing.T) {
	claimOf := func(template string) *resourceapi.ResourceClaim {
		t.Helper()
		request, err := legacy.ParseName(template)
		if err != nil {
			t.Fatal(err)
		}
		spec := request.Template("ns").Spec
		return &resourceapi.ResourceClaim{ObjectMeta: spec.ObjectMeta, Spec: spec.Spec}
	}
	for template, want := range map[string]string{
		"gpushare.mem-cpu4.main.3":         "gpushare.mem.main.3",
		"gpushare.core-x2-cpu3.main.4-20":  "gpushare.core-x2.main.4-20",
		"gpushare.mem-x2-cpu3.main.4":      "gpushare.mem-x2.main.4",
		"gpushare.mem-x2-cpu4.a.2.b.6":     "gpushare.mem-x2.a.2.b.6",
		"gpushare.mem-whole-cpu4.main.15":  "gpushare.mem-whole.main.15",
		"gpushare.gpu-cpu64.main.2.side.1": "gpushare.gpu.main.2.side.1",
	} {
		got, _ := legacy.WithoutCPUs(claimOf(template))
		wanted := claimOf(want)
		if strings.HasPrefix(want, "gpushare.gpu.") {
			// Which GPUs are near is not known, so single ones of several containers are in no order.
			for i := range wanted.Spec.Devices.Requests[0].FirstAvailable {
				wanted.Spec.Devices.Requests[0].FirstAvailable[i].Selectors = nil
			}
		}
		if diff := cmp.Diff(wanted, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", template, diff)
		}
	}
	for template, want := range map[string]int64{
		"gpushare.mem-cpu4.main.3": 4, "gpushare.cpu.main.7": 7, "gpushare.mem.a.3.b.4": 0,
	} {
		claim := claimOf(template)
		without, got := legacy.WithoutCPUs(claim)
		if got != want || (want == 0) != (without == claim) {
			t.Errorf("%s is for %d CPUs, want %d", template, got, want)
		}
	}
	if alone, _ := legacy.WithoutCPUs(claimOf("gpushare.cpu.main.8")); len(alone.Spec.Devices.Requests) > 0 ||
		len(alone.Spec.Devices.Constraints) > 0 {
		t.Errorf("of a claim for CPUs there is left %+v", alone.Spec.Devices)
	}
}
