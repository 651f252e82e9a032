// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/manifests"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

// modesPicture shows a node of four GPUs in each mode. The node is modesMachine, and migMachine in mode mig, which
// needs GPUs that are cut.
const (
	modesPicture = "docs/pictures/modes.svg"
	modesMachine = "demo/machines/v100x4.yaml"
	migMachine   = "demo/machines/migx4.yaml"
)

// asked is what a claim of the picture asks for: a number of devices of a class, or a share.
type asked struct {
	class         string
	count         int64
	memory, cores string
}

// drawnModes are the modes in the order of docs/modes.md, as the node's label has them, and claims that come
// one after the other.
var drawnModes = []struct {
	label, machine string
	claims         []asked
}{
	{"default", modesMachine, []asked{{class: "exclusive", count: 1}, {class: "exclusive", count: 2}}},
	{"topology", modesMachine, []asked{{class: "linked-2.topology", count: 1}, {class: "single.topology", count: 1}}},
	{"share", modesMachine, sharesOf("share")},
	{"mps", modesMachine, sharesOf("mps")},
	{"cgpu", modesMachine, sharesOf("cgpu")},
	{"core_mem", modesMachine, []asked{{class: "core-mem", memory: "8Gi", cores: "50"},
		{class: "core-mem", memory: "5Gi", cores: "25"}, {class: "core-mem", memory: "5Gi", cores: "60"}}},
	{"dynamic", modesMachine, []asked{{class: "exclusive", count: 1}, {class: "share", memory: "8Gi"},
		{class: "mps", memory: "6Gi"}, {class: "share", memory: "4Gi"}, {class: "core-mem", memory: "5Gi", cores: "30"}}},
	{"mig", migMachine, []asked{{class: "3g.40gb.mig", count: 1}, {class: "2g.20gb.mig", count: 1},
		{class: "exclusive", count: 1}}},
}

func sharesOf(class string) []asked {
	return []asked{{class: class, memory: "8Gi"}, {class: class, memory: "6Gi"}, {class: class, memory: "5Gi"},
		{class: class, memory: "4Gi"}}
}

// drawModes draws who gets what, found out as kubectl inspect cgpu plan does: from what pkg/mode and
// pkg/devices make of the machine, by the scheduler's allocator.
func drawModes(root string) (string, error) {
	var p picture
	p.begin(len(drawnModes))
	for row, m := range drawnModes {
		in, err := manifests.Machines([]string{"node=" + filepath.Join(root, m.machine) + ":" + m.label})
		if err != nil {
			return "", err
		}
		for i, a := range m.claims {
			in.Manifests.Claims = append(in.Manifests.Claims, a.claim(i))
			in.Workloads = append(in.Workloads, podOf(i))
		}
		made, err := plan.Of(context.Background(), in)
		if err != nil {
			return "", fmt.Errorf("plan the claims of mode %s: %w", m.label, err)
		}
		if !made.AllFit() || len(made.Nodes) != 1 {
			return "", fmt.Errorf("mode %s: not all claims of the picture find room: %+v", m.label, made.Pods)
		}
		p.node(row, m.label, isolationOf(in.Slices), made.Nodes[0])
	}
	p.end(len(drawnModes))
	return p.String(), nil
}

func nameOf(i int) string { return fmt.Sprintf("claim-%d", i) }

func (a asked) claim(i int) *resourceapi.ResourceClaim {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: a.class + "." + v1alpha1.DriverName, Count: a.count,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount}
	if a.memory != "" {
		amounts := map[resourceapi.QualifiedName]resource.Quantity{v1alpha1.CapMemory: resource.MustParse(a.memory)}
		if a.cores != "" {
			amounts[v1alpha1.CapCores] = resource.MustParse(a.cores)
		}
		exactly.Count, exactly.Capacity = 1, &resourceapi.CapacityRequirements{Requests: amounts}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: nameOf(i)},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}}}}}
}

func podOf(i int) plan.Workload {
	name := nameOf(i)
	return plan.Workload{Kind: "pod", Namespace: "default", Name: name, Pods: 1,
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
			Containers: []corev1.Container{{Name: "main", Image: "image",
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}}}}
}

// isolationOf is what the devices say of it: that of all, or that it is the claim's to choose.
func isolationOf(slices []*resourceapi.ResourceSlice) string {
	found := ""
	for _, s := range slices {
		for _, d := range s.Spec.Devices {
			by := d.Attributes[v1alpha1.AttrIsolation].StringValue
			if by == nil {
				continue
			}
			text := "isolation: " + *by
			if found != "" && found != text {
				return "isolation: as claimed"
			}
			found = text
		}
	}
	return found
}
