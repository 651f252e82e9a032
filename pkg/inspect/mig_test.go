// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// squeezed are the lines of a text, each with one blank between its words.
func squeezed(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// anA100 is one in MIG mode, with index 1.
func anA100(as gpu.Partitioned) *gpu.Machine {
	as.GPU = gpu.GPU{Index: 1, UUID: "GPU-1", Model: "NVIDIA-A100-SXM4-80GB", MemoryMiB: 81920}
	return &gpu.Machine{Partitioned: []gpu.Partitioned{as}}
}

// Behind the table that users of ACK know, each MIG instance has a line, and who it is allocated to. An instance
// that a claim holds and nobody publishes any more has one, too.
func TestSummaryHasMIGInstances(t *testing.T) {
	machine := anA100(gpu.Partitioned{Instances: []gpu.Instance{
		{InstanceID: gpu.InstanceID{GI: 2}, UUID: "MIG-2", Profile: "3g.40gb", Start: 0, Size: 4, MemoryMiB: 40192},
		{InstanceID: gpu.InstanceID{GI: 13}, UUID: "MIG-13", Profile: "1g.10gb", Start: 6, Size: 1, MemoryMiB: 9728},
	}})
	published := publishMachine("n1", mode.Exclusive, machine)
	names := map[string]string{}
	for _, slice := range published {
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			names[*d.Attributes[v1alpha1.AttrProfile].StringValue] = d.Name
			if d.Name == names["1g.10gb"] {
				d.Taints = []resourceapi.DeviceTaint{{Key: v1alpha1.TaintUnhealthy, Value: "xid-94",
					Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
		}
	}
	text := summary(inspect.Input{
		Slices: published, Nodes: []*corev1.Node{node("n1", "10.0.0.1")},
		Claims: []*resourceapi.ResourceClaim{claim("team/train", "n1 "+names["3g.40gb"]),
			claim("team/late", "n1 gpu-1-mig-2g-20gb-4")},
	}, inspect.Style{})
	_, table, found := strings.Cut(text, "\nMIG instances:\n")
	if !found {
		t.Fatalf("there is no table of MIG instances:\n%s", text)
	}
	lines := squeezed(table)
	want := []string{
		"NAME GPU PROFILE SLICES MEMORY(GiB) ALLOCATED TO",
		"n1 1 gpu-1-mig-2g-20gb-4 (gone) - - team/late",
		"n1 1 3g.40gb 0-3 39 team/train",
		"n1 1 1g.10gb 6 9 - (closed: unhealthy=xid-94)",
	}
	if diff := expect.Diff(want, lines); diff != nil {
		t.Errorf("MIG instances %v\nall of it:\n%s", diff, text)
	}
}

// Whoever has no GPU in MIG mode sees the table as it was.
func TestSummaryWithoutMIG(t *testing.T) {
	text := summary(inspect.Input{Slices: publish("n1", mode.Share, newGPU("Tesla-T4", 15360)),
		Nodes: []*corev1.Node{node("n1", "10.0.0.1")}}, inspect.Style{})
	expect.Equal(t, false, strings.Contains(text, "MIG"), "it speaks of MIG:\n%s", text)
}

// Where instances are made for claims, there is a line for each that was made, and one for free slices that lie next to
// each other: what does not fit although enough are free is to be seen.
func TestSummaryOfDynamicInstances(t *testing.T) {
	kind := func(profile string, size int, starts ...int) gpu.Profile {
		return gpu.Profile{Kind: gpu.Instance{Profile: profile, Size: size, MemoryMiB: int64(size) * 9728},
			Starts: starts, Count: 1}
	}
	machine := anA100(gpu.Partitioned{Profiles: []gpu.Profile{kind("1g.10gb", 1, 0, 1, 2, 3, 4, 5, 6),
		kind("3g.40gb", 4, 0, 4), kind("7g.80gb", 8, 0)}})
	text := summary(inspect.Input{
		Slices: publishMachine("n1", mode.Exclusive, machine), Nodes: []*corev1.Node{node("n1", "10.0.0.1")},
		Claims: []*resourceapi.ResourceClaim{claim("team/a", "n1 gpu-1-mig-1g-10gb-2"), claim("team/b",
			"n1 gpu-1-mig-1g-10gb-5")},
	}, inspect.Style{})
	above, table, _ := strings.Cut(text, "\nMIG instances:\n")
	lines := squeezed(table)
	want := []string{"NAME GPU PROFILE SLICES MEMORY(GiB) ALLOCATED TO", "n1 1 (free) 0-1 - -", "n1 1 1g.10gb 2 9 team/a",
		"n1 1 (free) 3-4 - -", "n1 1 1g.10gb 5 9 team/b", "n1 1 (free) 6-7 - -"}
	if diff := expect.Diff(want, lines); diff != nil || !strings.Contains(above, "18/76") {
		t.Errorf("MIG instances %v\nall of it:\n%s", diff, text)
	}
}

// What claims can have of a GPU that somebody has cut in part is as much as fits together beside that; of one that
// nobody has, it is what the instance of the whole GPU has.
func TestMemoryOfPlacesBesideCutInstances(t *testing.T) {
	kind := func(profile string, size int, memoryMiB int64, starts ...int) gpu.Profile {
		return gpu.Profile{Kind: gpu.Instance{Profile: profile, Size: size, MemoryMiB: memoryMiB}, Starts: starts, Count: 1}
	}
	profiles := []gpu.Profile{kind("1g.10gb", 1, 9728, 0, 1, 2, 3, 4, 5, 6), kind("2g.20gb", 2, 19968, 0, 2, 4),
		kind("3g.40gb", 4, 40192, 0, 4), kind("7g.80gb", 8, 81152, 0)}
	cut := func(profile string, start, size int, memoryMiB int64) gpu.Instance {
		return gpu.Instance{UUID: "MIG-" + profile, Profile: profile, Start: start, Size: size, MemoryMiB: memoryMiB}
	}
	small, half := cut("1g.10gb", 0, 1, 9728), cut("3g.40gb", 4, 4, 40192)
	for name, test := range map[string]struct {
		cut    []gpu.Instance
		claims []string
		want   string
	}{
		"not cut":         {nil, nil, "0/79"},
		"not cut, in use": {nil, []string{"gpu-1-mig-3g-40gb-0", "gpu-1-mig-3g-40gb-4"}, "78/79"},
		// 9 of the cut one, and 9, 19 and 39 beside it.
		"a slice is cut": {[]gpu.Instance{small}, nil, "0/76"},
		"a slice is cut, in use": {[]gpu.Instance{small}, []string{"gpu-1-mig-1g-10gb-1", "gpu-1-mig-2g-20gb-2",
			"gpu-1-mig-3g-40gb-4"}, "67/76"},
		"a half is cut": {[]gpu.Instance{half}, nil, "0/78"},
		"all is cut":    {[]gpu.Instance{cut("7g.80gb", 0, 8, 81152)}, nil, "0/79"},
	} {
		t.Run(name, func(t *testing.T) {
			in := inspect.Input{Slices: publishMachine("n1", mode.Exclusive, anA100(gpu.Partitioned{Instances: test.cut,
				Profiles: profiles})),
				Nodes: []*corev1.Node{node("n1", "10.0.0.1")}}
			for _, device := range test.claims {
				in.Claims = append(in.Claims, claim("team/"+device, "n1 "+device))
			}
			if text := summary(in, inspect.Style{}); !strings.Contains(text, "  "+test.want+" ") {
				t.Errorf("it does not say %s:\n%s", test.want, text)
			}
		})
	}
}

// An instance that a claim holds is published after somebody has cut the GPU again: it is no part of the GPU any more.
func TestInstancesThatAreGone(t *testing.T) {
	at := func(profile string, start, size int, memoryMiB int64) gpu.Instance {
		return gpu.Instance{UUID: fmt.Sprint("MIG-", profile, "-", start), Profile: profile, Start: start, Size: size,
			MemoryMiB: memoryMiB}
	}
	var sevenths []gpu.Instance
	for start := range 7 {
		sevenths = append(sevenths, at("1g.5gb", start, 1, 4864))
	}
	small := gpu.Profile{Kind: at("1g.5gb", 0, 1, 4864), Starts: []int{0, 1, 2, 3, 4, 5, 6}, Count: 7}
	half := gpu.Profile{Kind: at("3g.20gb", 0, 4, 19968), Starts: []int{0, 4}, Count: 2}
	profiles := []gpu.Profile{small, half}
	const held = "gpu-1-mig-3g-20gb-4"
	gone := devices.GoneInstance{Instance: half.At(4), Index: 1, Taint: resourceapi.DeviceTaint{
		Key: v1alpha1.TaintUnhealthy, Value: "mig-instance-gone", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	made := map[string]map[string]bool{"GPU-1": {held: true}}
	const isGone = "n1 1 gpu-1-mig-3g-20gb-4 (gone) - - team/train (closed: unhealthy=mig-instance-gone)"
	for name, test := range map[string]struct {
		gpu   gpu.Partitioned
		made  map[string]map[string]bool
		total string
		lines []string
	}{
		"cut again": {gpu.Partitioned{Instances: sevenths}, nil, "0/28", []string{isGone, "n1 1 1g.5gb 6 4 -"}},
		"cut again in part, the rest on demand": {gpu.Partitioned{Instances: sevenths[4:5], Profiles: profiles}, nil, "0/31",
			[]string{isGone, "n1 1 (free) 0-3 - -", "n1 1 1g.5gb 4 4 -", "n1 1 (free) 5-6 - -"}},
		// The scheduler keeps the place of one that was made on demand until its claim is gone.
		"made on demand": {gpu.Partitioned{Profiles: profiles}, made, "19/38",
			[]string{"n1 1 3g.20gb 4-7 19 team/train (closed: unhealthy=mig-instance-gone)", "n1 1 (free) 0-3 - -"}},
		"made on demand, cut again": {gpu.Partitioned{Instances: sevenths, Profiles: profiles}, made, "0/28",
			[]string{isGone, "n1 1 1g.5gb 6 4 -"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.gpu.GPU = gpu.GPU{Index: 1, UUID: "GPU-1", Model: "NVIDIA-A100-SXM4-40GB", MemoryMiB: 40960}
			text := summary(inspect.Input{Nodes: []*corev1.Node{node("n1", "10.0.0.1")},
				Slices: publishInstances("n1", mode.Exclusive, &gpu.Machine{Partitioned: []gpu.Partitioned{test.gpu}},
					devices.MIGOptions{Gone: []devices.GoneInstance{gone}, Made: test.made}),
				Claims: []*resourceapi.ResourceClaim{claim("team/train", "n1 "+held)}}, inspect.Style{})
			lines := squeezed(text)
			for _, want := range append(test.lines, "n1 10.0.0.1 0/0 "+test.total+" "+test.total) {
				expect.Equal(t, true, slices.Contains(lines, want), "line %q of\n%s", want, text)
			}
		})
	}
}
