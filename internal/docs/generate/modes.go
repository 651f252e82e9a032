// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/manifests"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// modesPicture shows a node of four GPUs in each mode; modesMachine is what the node is.
const (
	modesPicture = "docs/pictures/modes.svg"
	modesMachine = "demo/machines/v100x4.yaml"
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
	label  string
	claims []asked
}{
	{"default", []asked{{class: "exclusive", count: 1}, {class: "exclusive", count: 2}}},
	{"topology", []asked{{class: "linked-2.topology", count: 1}, {class: "single.topology", count: 1}}},
	{"share", sharesOf("share")},
	{"mps", sharesOf("mps")},
	{"cgpu", sharesOf("cgpu")},
	{"core_mem", []asked{{class: "core-mem", memory: "8Gi", cores: "50"}, {class: "core-mem", memory: "5Gi", cores: "25"},
		{class: "core-mem", memory: "5Gi", cores: "60"}}},
	{"dynamic", []asked{{class: "exclusive", count: 1}, {class: "share", memory: "8Gi"}, {class: "mps", memory: "6Gi"},
		{class: "share", memory: "4Gi"}, {class: "core-mem", memory: "5Gi", cores: "30"}}},
}

func sharesOf(class string) []asked {
	return []asked{{class: class, memory: "8Gi"}, {class: class, memory: "6Gi"}, {class: class, memory: "5Gi"},
		{class: class, memory: "3Gi"}}
}

// drawModes draws who gets what, found out as kubectl inspect cgpu plan does: from what pkg/mode and
// pkg/devices make of the machine, by the scheduler's allocator.
func drawModes(root string) (string, error) {
	var p picture
	p.begin(len(drawnModes))
	for row, m := range drawnModes {
		in, err := manifests.Machines([]string{"node=" + filepath.Join(root, modesMachine) + ":" + m.label})
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
	p.end()
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

// Measures of the picture, in pixels.
const (
	rowHeight, top, bottom = 62, 34, 10
	left, gpuWidth, gap    = 172, 140, 8
	pictureWidth           = left + 4*(gpuWidth+gap) + 8
)

// colours are one for each claim of a node; in dark surroundings they have others.
const pictureStyle = `text{font:13px system-ui,sans-serif;fill:#1f2328}.b{font-weight:600}` +
	`.s{font-size:11px;fill:#57606a}.t{font-size:11px}.gpu{fill:#eaeef2;stroke:#8c959f}` +
	`.c0{fill:#b6e3ff}.c1{fill:#aceebb}.c2{fill:#ffdf9e}.c3{fill:#ecd8ff}.c4{fill:#ffd3cc}` +
	`@media (prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#8d96a0}.gpu{fill:#21262d;stroke:#6e7681}` +
	`.c0{fill:#0c447c}.c1{fill:#1a5c2e}.c2{fill:#6b4a06}.c3{fill:#512a87}.c4{fill:#82281f}}`

// picture is an SVG in the making.
type picture struct{ strings.Builder }

func (p *picture) begin(rows int) {
	height := top + rows*rowHeight + bottom
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d"`+
		" role=\"img\">\n<title>One node of four GPUs in each mode, and what claims that come one after the other "+
		"get</title>\n<style>%s</style>\n", pictureWidth, height, pictureStyle)
	p.text("b", 8, 22, "Mode")
	for gpu := range 4 {
		p.text("b", left+gpu*(gpuWidth+gap), 22, fmt.Sprintf("GPU %d", gpu))
	}
}

func (p *picture) end() { p.WriteString("</svg>\n") }

func (p *picture) text(class string, x, y int, text string) {
	if text == "" {
		return
	}
	fmt.Fprintf(p, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, x, y, text)
}

// node draws a node: as much of each GPU as each claim has, from the left.
func (p *picture) node(row int, label, isolation string, n inspect.Node) {
	y := top + row*rowHeight
	p.text("b", 8, y+18, label)
	p.text("s", 8, y+34, isolation)
	taken := map[int]int64{}
	for _, gpu := range n.GPUs {
		fmt.Fprintf(p, `<rect class="gpu" x="%d" y="%d" width="%d" height="44" rx="4"/>`+"\n",
			left+gpu.Index*(gpuWidth+gap), y, gpuWidth)
	}
	for i, holder := range n.Holders {
		for _, share := range holder.Shares {
			total := n.GPUs[share.GPU].MemoryGiB.Total
			from, to := taken[share.GPU]*gpuWidth/total, (taken[share.GPU]+share.MemoryGiB)*gpuWidth/total
			taken[share.GPU] += share.MemoryGiB
			x := left + share.GPU*(gpuWidth+gap) + int(from)
			fmt.Fprintf(p, `<rect class="c%d" x="%d" y="%d" width="%d" height="42" rx="3"/>`+"\n", i, x+1, y+1, to-from-2)
			amount, more := sayShare(share)
			switch {
			case n.Mode == mode.Dynamic:
				more = strings.TrimSpace(string(share.Mode) + " " + more)
			case n.Mode == mode.Topology && len(holder.Shares) > 1:
				more = "linked set"
			}
			p.text("t", x+6, y+18, amount)
			p.text("t", x+6, y+34, more)
		}
	}
}

// sayShare is what a claim has of a GPU: how much, and of a share with compute how much of that.
func sayShare(s inspect.Share) (amount, compute string) {
	switch {
	case !s.Mode.Shared():
		return "whole GPU", ""
	case s.Mode.CountsCores():
		return fmt.Sprintf("%d GiB", s.MemoryGiB), fmt.Sprintf("%d %%", s.CoresPercent)
	default:
		return fmt.Sprintf("%d GiB", s.MemoryGiB), ""
	}
}
