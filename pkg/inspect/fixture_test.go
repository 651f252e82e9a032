// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// GPU is a GPU of so many MiB. Its index is its place in the machine.
func newGPU(model string, memoryMiB int64) gpu.GPU {
	return gpu.GPU{Model: model, MemoryMiB: memoryMiB}
}

func newGPUs(count int, model string, memoryMiB int64) []gpu.GPU {
	var out []gpu.GPU
	for range count {
		out = append(out, newGPU(model, memoryMiB))
	}
	return out
}

// publish is what the driver publishes for a node with these GPUs, in one mode or
// as a dynamic node.
func publish(node string, m mode.Mode, gpus ...gpu.GPU) []*resourceapi.ResourceSlice {
	machine := &gpu.Machine{}
	for i, g := range gpus {
		g.Index, g.UUID = i, fmt.Sprintf("GPU-%s-%d", node, i)
		machine.GPUs = append(machine.GPUs, g)
	}
	if m == mode.Topology {
		for i := 1; i < len(gpus); i += 2 {
			machine.Links = append(machine.Links, gpu.Link{A: i - 1, B: i, Kind: gpu.LinkNVLink, Lanes: 4, GBps: 100})
		}
	}
	return publishMachine(node, m, machine)
}

// publishMachine is what the driver publishes for a node with this machine.
func publishMachine(node string, m mode.Mode, machine *gpu.Machine) []*resourceapi.ResourceSlice {
	return publishInstances(node, m, machine, devices.MIGOptions{})
}

// publishInstances is the same of one that serves MIG instances so.
func publishInstances(node string, m mode.Mode, machine *gpu.Machine, mig devices.MIGOptions,
) []*resourceapi.ResourceSlice {
	options := devices.Options{Pool: v1alpha1.PoolName(node), Mode: m, Slots: 20, Isolation: "none", MIG: mig}
	built := devices.Build(machine, options)
	if m == mode.Dynamic {
		var perMode []devices.Options
		for _, served := range m.ServedModes() {
			options.Mode = served
			perMode = append(perMode, options)
		}
		built = devices.BuildDynamic(machine, perMode)
	}
	return published.Slices(node, built)
}

// without are the slices less a device, as where its GPU cannot be used.
func without(device string, of []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	for _, s := range of {
		s.Spec.Devices = slices.DeleteFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return d.Name == device })
	}
	return of
}

func node(name string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, address := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return n
}

// result is one allocated device, as in "n1 gpu-0-share 3" and "n1 gpu-0-core-mem 3 20".
func result(text string) resourceapi.DeviceRequestAllocationResult {
	fields := strings.Fields(text)
	r := resourceapi.DeviceRequestAllocationResult{
		Request: "gpu", Driver: v1alpha1.DriverName, Pool: v1alpha1.PoolName(fields[0]), Device: fields[1],
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{},
	}
	if len(fields) > 2 {
		r.ConsumedCapacity[v1alpha1.CapMemory] = resource.MustParse(fields[2] + "Gi")
		r.ConsumedCapacity[v1alpha1.CapSlots] = resource.MustParse("1")
	}
	if len(fields) > 3 {
		r.ConsumedCapacity[v1alpha1.CapCores] = resource.MustParse(fields[3])
	}
	return r
}

// claim is the claim of a pod, "namespace/name", with these results.
func claim(pod string, results ...string) *resourceapi.ResourceClaim {
	namespace, name, _ := strings.Cut(pod, "/")
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-gpu-x7k2p"}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
		{Resource: "pods", Name: name, UID: types.UID(pod)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, text := range results {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, result(text))
	}
	return c
}

// changed is a claim with a change.
func changed(c *resourceapi.ResourceClaim, change func(*resourceapi.ResourceClaim)) *resourceapi.ResourceClaim {
	change(c)
	return c
}

// printed is what a printer makes of a table.
func printed(print func(*strings.Builder) error) string {
	var out strings.Builder
	if err := print(&out); err != nil {
		return "error: " + err.Error()
	}
	return out.String()
}

func summary(in inspect.Input, style inspect.Style) string {
	return printed(func(out *strings.Builder) error { return inspect.Summary(out, inspect.New(in), style) })
}

func details(in inspect.Input, style inspect.Style) string {
	return printed(func(out *strings.Builder) error { return inspect.Details(out, inspect.New(in), style) })
}
