// SPDX-License-Identifier: Apache-2.0

package legacy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/cpu"
	"github.com/gpushare/dra-driver-gpushare/tests/suites/docs/commands"
)

// classOfCPUs is the DeviceClass of dra-driver-cpu.
var classOfCPUs = &resourceapi.DeviceClass{
	ObjectMeta: metav1.ObjectMeta{Name: legacy.ClassCPUs},
	Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
		{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "dra.cpu"`}}}},
}

// withoutNUMANode marks a GPU or CPUs that publish no NUMA node.
const withoutNUMANode = -1

// cpuDevices are what the main branch of dra-driver-cpu publishes in its default mode: so many CPUs of each NUMA node.
func cpuDevices(amounts ...int64) resourceslice.DriverResources {
	return cpusOf(cpu.Main, cpu.ByNUMANode, amounts...)
}

// cpusOf are so many CPUs of each NUMA node as a version of the driver publishes them.
func cpusOf(shape cpu.Shape, layout cpu.Layout, amounts ...int64) resourceslice.DriverResources {
	byNode := map[int64]int64{}
	for numa, amount := range amounts {
		byNode[int64(numa)] = amount
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		"n1": {Slices: []resourceslice.Slice{{Devices: cpu.Devices(shape, layout, byNode)}}}}}
}

// numaNode is a node with GPUs of 15 GiB on these NUMA nodes, and CPUs.
func numaNode(t *testing.T, m mode.Mode, cpus resourceslice.DriverResources, gpus ...int) *allocatortest.Node {
	t.Helper()
	machine := alike(len(gpus), "Tesla-V100-SXM2-16GB", 16130)
	for i, numa := range gpus {
		if numa != withoutNUMANode {
			machine.GPUs[i].NUMANode = &numa
		}
	}
	return nodeWith(t, m, machine, cpus)
}

func nodeWith(t *testing.T, m mode.Mode, machine *gpu.Machine, cpus resourceslice.DriverResources) *allocatortest.Node {
	t.Helper()
	n := publishing(t, devices.Build(machine, devices.Options{Pool: "n1/gpu", Mode: m, Slots: 20, Isolation: "none"}),
		classOfCPUs)
	n.PublishBeside("dra.cpu", cpus)
	return n
}

// places says of each of a claim's devices what it is; "" where the claim does not fit.
func places(t *testing.T, n *allocatortest.Node, template string) string {
	t.Helper()
	var got []string
	for _, r := range granted(t, n, claimOf(t, template).Spec.Devices) {
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
		"CPUs without a NUMA node": {mode.Share, cpusOf(cpu.Main, cpu.BySocket, 4, 4), []int{1, 0}, []step{
			{"gpushare.mem-cpu4.main.1", "gpu-0-share, cpudevsocket000 4"},
			{"gpushare.mem-cpu4.main.1", "gpu-0-share, cpudevsocket001 4"}}},
		// Its devices name a NUMA node that no GPU can be compared with.
		"CPUs as release 0.2.0 publishes them": {mode.Share, cpusOf(cpu.Release, cpu.ByNUMANode, 8, 8), []int{1, 0}, []step{
			{"gpushare.mem-cpu4.main.1", ""}, {"gpushare.mem-cpu4.a.1.b.1", ""}, {"gpushare.mem.main.1", "gpu-0-share"},
			{"gpushare.cpu.main.5", "cpudevnuma000 5"}, {"gpushare.cpu.main.10", ""}}},
		"that release, GPUs without a NUMA node": {mode.Share, cpusOf(cpu.Release, cpu.ByNUMANode, 8, 8),
			[]int{withoutNUMANode}, []step{{"gpushare.mem-cpu4.main.1", ""}}},
		"that release, CPUs of sockets": {mode.Share, cpusOf(cpu.Release, cpu.BySocket, 4, 4), []int{1}, []step{
			{"gpushare.mem-cpu4.main.1", "gpu-0-share, cpudevsocket000 4"}, {"gpushare.cpu.main.4", "cpudevsocket001 4"}}},
		"CPUs of the machine": {mode.Share, cpusOf(cpu.Main, cpu.ByMachine, 8), []int{0}, []step{
			{"gpushare.mem-cpu4.main.1", ""}, {"gpushare.cpu.main.4", ""}, {"gpushare.mem.main.1", "gpu-0-share"}}},
		"CPUs of the machine, that release": {mode.Share, cpusOf(cpu.Release, cpu.ByMachine, 8), []int{0}, []step{
			{"gpushare.mem-cpu4.main.1", ""}, {"gpushare.cpu.main.4", ""}}},
		"neither has any": {mode.Share, cpusOf(cpu.Main, cpu.BySocket, 4), []int{withoutNUMANode}, []step{
			{"gpushare.mem-cpu4.main.1", "gpu-0-share, cpudevsocket000 4"}}},
		"no CPUs at all": {mode.Share, cpuDevices(), []int{0}, []step{
			{"gpushare.mem-cpu1.main.1", ""}, {"gpushare.mem.main.1", "gpu-0-share"}}},
		"each CPU is a device": {mode.Share, cpusOf(cpu.Main, cpu.Individual, 8, 8), []int{0}, []step{
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
				expect.Equal(t, step.want, places(t, n, step.template), "%s", step.template)
			}
		})
	}
}

// A claim that insists, as docs/internals/legacy-details.md has one, waits where no GPU is near enough CPUs.
func TestClaimsThatInsist(t *testing.T) {
	claim := documented(t, "docs/internals/legacy-details.md", "metadata: {name: gpu-and-cpus}")
	n := numaNode(t, mode.Share, cpuDevices(7, 8), 0, 1)
	for _, want := range []string{"gpu-1-share cpudevnuma001", ""} {
		expect.Equal(t, want, n.Devices(t, claim), "it")
	}
	n = numaNode(t, mode.Share, cpusOf(cpu.Release, cpu.ByNUMANode, 8, 8), 0, 1)
	expect.Equal(t, "", n.Devices(t, claim), "beside release 0.2.0 it")
}

// A linked set has the NUMA node that all its GPUs have: the halves of a DGX-1 are of one each. So CPUs are near it for
// converted pods, and for the claim of docs/topology.md, which a set of both halves never serves.
func TestCPUsNearLinkedGPUs(t *testing.T) {
	machine := aDGX1(t)
	for i := range machine.GPUs {
		machine.GPUs[i].NUMANode = ptr.To(i / 4)
	}
	n := nodeWith(t, mode.Topology, machine, cpuDevices(2, 32))
	for _, step := range []struct{ template, want string }{
		{"gpushare.gpu-cpu4.main.4", "gpus-4-5-6-7, cpudevnuma001 4"},
		{"gpushare.gpu-cpu4.main.4", "gpus-0-1-2-3, cpudevnuma001 4"},
	} {
		expect.Equal(t, step.want, places(t, n, step.template), "%s", step.template)
	}
	claim := documented(t, "docs/topology.md", `dra.cpu/cpu: "8"`)
	n = nodeWith(t, mode.Topology, machine, cpuDevices(6, 16))
	for _, want := range []string{"gpus-4-7 cpudevnuma001", "gpus-5-6 cpudevnuma001", ""} {
		expect.Equal(t, want, n.Devices(t, claim), "the claim of docs/topology.md")
	}
	n = nodeWith(t, mode.Topology, machine, cpusOf(cpu.Release, cpu.ByNUMANode, 32, 32))
	expect.Equal(t, "", n.Devices(t, claim), "beside release 0.2.0 the claim of docs/topology.md")
}

// documented is the claim, or the part of one, of a page that has such a text.
func documented(t *testing.T, page, text string) resourceapi.DeviceClaim {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", page))
	expect.NoError(t, err)
	for _, block := range commands.Blocks(page, string(content)) {
		if !strings.Contains(block.Text, text) {
			continue
		}
		var template resourceapi.ResourceClaimTemplate
		claim := &template.Spec.Spec.Devices
		into := any(&template)
		if !strings.Contains(block.Text, "kind: ResourceClaimTemplate") {
			into = claim
		}
		expect.NoError(t, yaml.UnmarshalStrict([]byte(block.Text), into))
		for i := range claim.Requests {
			claim.Requests[i].Exactly.AllocationMode, claim.Requests[i].Exactly.Count =
				resourceapi.DeviceAllocationModeExactCount, 1
		}
		return *claim
	}
	t.Fatalf("%s has no claim with %s", page, text)
	return resourceapi.DeviceClaim{}
}

// What looks for GPUs alone sees the claim that there would be without CPUs.
func TestWithoutCPUs(t *testing.T) {
	for template, want := range map[string]string{
		"gpushare.mem-cpu4.main.3":         "gpushare.mem.main.3",
		"gpushare.core-x2-cpu3.main.4-20":  "gpushare.core-x2.main.4-20",
		"gpushare.mem-x2-cpu3.main.4":      "gpushare.mem-x2.main.4",
		"gpushare.mem-x2-cpu4.a.2.b.6":     "gpushare.mem-x2.a.2.b.6",
		"gpushare.mem-whole-cpu4.main.15":  "gpushare.mem-whole.main.15",
		"gpushare.gpu-cpu64.main.2.side.1": "gpushare.gpu.main.2.side.1",
	} {
		got, _ := legacy.WithoutCPUs(claimOf(t, template))
		wanted := claimOf(t, want)
		if strings.HasPrefix(want, "gpushare.gpu.") {
			// Which GPUs are near is not known, so single ones of several containers are in no order.
			for i := range wanted.Spec.Devices.Requests[0].FirstAvailable {
				wanted.Spec.Devices.Requests[0].FirstAvailable[i].Selectors = nil
			}
		}
		if !equality.Semantic.DeepEqual(wanted, got) {
			t.Errorf("%s %v", template, expect.Diff(wanted, got))
		}
	}
	for template, want := range map[string]int64{
		"gpushare.mem-cpu4.main.3": 4, "gpushare.cpu.main.7": 7, "gpushare.mem.a.3.b.4": 0,
	} {
		claim := claimOf(t, template)
		without, got := legacy.WithoutCPUs(claim)
		if got != want || (want == 0) != (without == claim) {
			t.Errorf("%s is for %d CPUs, want %d", template, got, want)
		}
	}
	if alone, _ := legacy.WithoutCPUs(claimOf(t, "gpushare.cpu.main.8")); len(alone.Spec.Devices.Requests) > 0 ||
		len(alone.Spec.Devices.Constraints) > 0 {
		t.Errorf("of a claim for CPUs there is left %+v", alone.Spec.Devices)
	}
}
