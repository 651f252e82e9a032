// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/cpu"
)

// withCPUs has dra-driver-cpu installed, which publishes these CPUs of n2, the node with shares.
func withCPUs(t *testing.T, in *why.Input, shape cpu.Shape, layout cpu.Layout, cpus map[int64]int64) {
	t.Helper()
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	in.Classes = append(classes, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: cpu.DriverName},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "dra.cpu"`}}}}})
	// Its two GPUs are of one NUMA node each.
	for i := range in.Slices[1].Spec.Devices {
		in.Slices[1].Spec.Devices[i].Attributes["resource.kubernetes.io/numaNode"] =
			resourceapi.DeviceAttribute{IntValue: ptr.To(int64(i))}
	}
	if cpus == nil {
		return
	}
	in.Slices = append(in.Slices, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "cpus"},
		Spec: resourceapi.ResourceSliceSpec{Driver: cpu.DriverName, NodeName: ptr.To("n2"),
			Pool:    resourceapi.ResourcePool{Name: "n2", Generation: 1, ResourceSliceCount: 1},
			Devices: cpu.Devices(shape, layout, cpus)}})
}

// holdCPUs has others hold CPUs of a device of n2.
func holdCPUs(in *why.Input, device, amount string) {
	claim := asking("team-b", "cpus-"+device, cpu.DriverName, "")
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: cpu.DriverName, Pool: "n2",
			Device: device, ShareID: ptr.To(types.UID(device)),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
				"dra.cpu/cpu": resource.MustParse(amount)}}}}}
	in.Claims = append(in.Claims, claim)
}

// A pod that lacks CPUs of its own alone is told, for each node, which there are beside which GPUs, and what helps.
// That is never another class or mode of GPUs.
func TestPodsThatLackCPUs(t *testing.T) {
	converted := func(template string) *resourceapi.ResourceClaim {
		request, err := legacy.ParseName(template)
		expect.NoError(t, err)
		spec := request.Template("team-a").Spec
		return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "c",
			Labels: spec.Labels}, Spec: spec.Spec}
	}
	insists := func() *resourceapi.ResourceClaim {
		claim := asking("team-a", "c", "share.gpu.aliyun.com", "3Gi")
		of := asking("team-a", "c", cpu.DriverName, "").Spec.Devices.Requests[0]
		of.Name = "cpus"
		of.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"dra.cpu/cpu": resource.MustParse("4")}}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, of)
		claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{Requests: []string{"gpu", "cpus"},
			MatchAttribute: ptr.To(resourceapi.FullyQualifiedName("resource.kubernetes.io/numaNode"))}}
		return claim
	}
	const waits = "waits: no node has room for its GPUs and its exclusive CPUs now"
	for name, test := range map[string]struct {
		set  func(in *why.Input)
		want []string
	}{
		"a node without the driver": {func(in *why.Input) {
			withCPUs(t, in, cpu.Main, cpu.ByNUMANode, nil)
			waiting(in, converted("gpushare.mem-cpu4.main.3"))
		}, []string{waits, "n2    2     no devices of class dra.cpu\n", "- dra-driver-cpu on node n2, which publishes"}},
		"CPUs that are taken": {func(in *why.Input) {
			withCPUs(t, in, cpu.Main, cpu.ByNUMANode, map[int64]int64{0: 8, 1: 5})
			holdCPUs(in, "cpudevnuma000", "7")
			waiting(in, converted("gpushare.mem-cpu7.main.3"))
		}, []string{waits, "CPUs of class dra.cpu: asked 7, free 1 on NUMA node 0, 5 on NUMA node 1; GPUs for it are " +
			"free on NUMA node 0, 1\n", "- fewer CPUs for a container, or 2 more of one device free on node n2\n"}},
		"CPUs that are not where the GPUs are": {func(in *why.Input) {
			withCPUs(t, in, cpu.Main, cpu.ByNUMANode, map[int64]int64{0: 8, 1: 8})
			holdCPUs(in, "cpudevnuma000", "6")
			hold(in, "team-b", "big", "n2", "gpu-1-share", "22Gi")
			waiting(in, insists())
		}, []string{waits, "asked 4, free 2 on NUMA node 0, 8 on NUMA node 1; GPUs for it are free on NUMA node 0\n",
			"- CPUs and GPUs that are free on one NUMA node of node n2: claims of class dra.cpu hold the CPUs near the GPUs"}},
		"release 0.2.0": {func(in *why.Input) {
			withCPUs(t, in, cpu.Release, cpu.ByNUMANode, map[int64]int64{0: 8, 1: 8})
			waiting(in, converted("gpushare.mem-cpu4.main.3"))
		}, []string{waits, "have no attribute resource.kubernetes.io/numaNode, as with release 0.2.0",
			"- a dra-driver-cpu of its main branch, from 2026-08-13 on: docs/legacy.md#cpus-of-a-containers-own, on node n2"}},
		"release 0.2.0, and a claim that insists": {func(in *why.Input) {
			withCPUs(t, in, cpu.Release, cpu.ByNUMANode, map[int64]int64{0: 8, 1: 8})
			waiting(in, insists())
		}, []string{waits, "as with release 0.2.0"}},
		"release 0.2.0, and no GPU": {func(in *why.Input) {
			withCPUs(t, in, cpu.Release, cpu.ByNUMANode, map[int64]int64{0: 8, 1: 8})
			waiting(in, converted("gpushare.cpu.main.10"))
		}, []string{waits, "asked 10, free 8, 8; the devices of class dra.cpu have no attribute"}},
		"CPUs of the machine": {func(in *why.Input) {
			withCPUs(t, in, cpu.Main, cpu.ByMachine, map[int64]int64{0: 8, 1: 8})
			waiting(in, converted("gpushare.mem-cpu4.main.3"))
		}, []string{waits, "all CPUs are one device of class dra.cpu", "- dra-driver-cpu with groupBy: numanode"}},
		"each CPU": {func(in *why.Input) {
			withCPUs(t, in, cpu.Main, cpu.Individual, map[int64]int64{0: 8, 1: 8})
			waiting(in, converted("gpushare.cpu.main.2"))
		}, []string{waits, "each CPU is a device", "- dra-driver-cpu in its mode grouped"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := stage(t)
			test.set(&in)
			checkSays(t, printed(t, in), test.want, []string{"devices of other drivers", "asking for a class",
				"label ack.node", "asking for less"})
		})
	}
}

// CPUs and other devices of others: which of them are missing is not known.
func TestPodsThatLackCPUsOrOthers(t *testing.T) {
	in := stage(t)
	withCPUs(t, &in, cpu.Main, cpu.ByNUMANode, nil)
	nic := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "nic.example.com"`}}}}}
	in.Classes = append(in.Classes, nic)
	waiting(&in, asking("team-a", "a", cpu.DriverName, ""), asking("team-a", "b", "nic", ""))
	checkSays(t, printed(t, in), []string{"devices of other drivers"}, []string{"no devices of class dra.cpu"})
}
