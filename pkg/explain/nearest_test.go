// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// The node that is said to be nearest is the one of which least has to come, not one with a single GPU that is near.
func TestNearestIsTheNodeThatLacksLeast(t *testing.T) {
	whole, share := request("r", wholeClass), request("r", shareClass, amount(v1alpha1.CapMemory, "8Gi"))
	repeat := func(n int, r resourceapi.DeviceRequest) []resourceapi.DeviceRequest {
		return slices.Repeat([]resourceapi.DeviceRequest{r}, n)
	}
	fill := request("r", shareClass, amount(v1alpha1.CapMemory, "17Gi"))
	fillMore := request("r", shareClass, amount(v1alpha1.CapMemory, "20Gi"))
	for name, test := range map[string]struct {
		mode  mode.Mode
		sick  []int
		a, b  []resourceapi.DeviceRequest
		asked resourceapi.DeviceRequest
		want  string
	}{
		"one of four is taken": {mode.Exclusive, nil, repeat(4, whole), repeat(1, whole),
			request("r", wholeClass, count(4)), "asked 4 GPUs, 3 free; taken: gpu-0"},
		"three of four are sick": {mode.Exclusive, []int{1, 2, 3}, repeat(1, whole), repeat(4, whole),
			request("r", wholeClass, count(4)), "asked 4 GPUs, 0 free; taken: all 4 GPUs"},
		"one GPU is nearer, and fewer are there": {mode.Share, nil, append(repeat(2, fill), repeat(2, fillMore)...),
			repeat(3, fillMore), request("r", shareClass, amount(v1alpha1.CapMemory, "8Gi"), count(2)),
			"asked 2 GPUs, 1 free; memory: asked 8Gi, largest free 2Gi on gpu-0"},
		"more is free": {mode.Share, nil, repeat(4, fillMore), repeat(4, fill), share,
			"memory: asked 8Gi, largest free 5Gi on gpu-0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(allClasses(t))
			m := machine(t, "a10x4")
			for node, held := range map[string][]resourceapi.DeviceRequest{"a": test.a, "b": test.b} {
				o := devices.Options{Pool: v1alpha1.PoolName(node), Mode: test.mode, Slots: 20, Isolation: "none",
					GPUTaints: map[string][]resourceapi.DeviceTaint{}}
				for _, i := range test.sick {
					if node == "a" {
						o.GPUTaints[m.GPUs[i].UUID] = []resourceapi.DeviceTaint{{Key: v1alpha1.TaintUnhealthy,
							Effect: resourceapi.DeviceTaintEffectNoSchedule}}
					}
				}
				s.add(node, devices.Build(m, o))
				s.holdEach(t, node, held)
			}
			want := fmt.Sprintf("Nearest: node b (%s) and 1 more", test.want)
			expect.Equal(t, want, explain.Nearest(s.room(t, engine, claim(test.asked)), 1), "the message")
		})
	}
}

// A row of slices can be free where a MIG instance finds no engines.
func TestWhatMIGInstancesLack(t *testing.T) {
	profile := func(name string, size, count, decoders, jpegs int, starts ...int) gpu.Profile {
		return gpu.Profile{Starts: starts, Count: count, Kind: gpu.Instance{Profile: name, Size: size,
			MemoryMiB: int64(size) * 9728, Decoders: decoders, JPEGs: jpegs}}
	}
	const me = "1g.10gb+me"
	m := &gpu.Machine{Partitioned: []gpu.Partitioned{{
		GPU: gpu.GPU{UUID: "GPU-0", Model: "NVIDIA-A100-SXM4-80GB", MemoryMiB: 81920},
		Profiles: []gpu.Profile{profile("1g.10gb", 1, 7, 0, 0, 0, 1, 2, 3, 4, 5, 6),
			profile(me, 1, 1, 1, 1, 0, 1, 2, 3, 4, 5, 6), profile("3g.40gb", 4, 2, 2, 0, 0, 4)},
	}}}
	wanted := func(profile string, more ...option) resourceapi.DeviceRequest {
		return request("r", "mig.gpu.aliyun.com", append(more, attribute(fmt.Sprintf("profile == %q", profile)))...)
	}
	ofProfile := deviceclasses.Profile("1g.10gb")
	at := func(start int) option { return attribute(fmt.Sprint("placementStart == ", start)) }
	for name, test := range map[string]struct {
		held  []resourceapi.DeviceRequest
		asked resourceapi.DeviceRequest
		want  string
	}{
		"engines": {[]resourceapi.DeviceRequest{wanted(me)}, wanted(me),
			"GPU 0 has 7 memory slices free, but not the jpeg-engines that a 1g.10gb+me takes"},
		"slices in a row": {[]resourceapi.DeviceRequest{wanted("1g.10gb", at(2)), wanted("1g.10gb", at(5))},
			wanted("3g.40gb"), "GPU 0 has 6 memory slices free, but not 4 in a row where a 3g.40gb can begin"},
		"slices": {[]resourceapi.DeviceRequest{wanted("3g.40gb"), wanted("1g.10gb", at(2))}, wanted("3g.40gb"), ""},
		"more places than a GPU has": {[]resourceapi.DeviceRequest{wanted("1g.10gb", at(2))},
			request("r", ofProfile.Name, count(8)), "taken: gpu-0-mig-1g-10gb-2"},
		"no such place": {nil, request("r", ofProfile.Name, count(8), attribute("placementStart > 6")), "no MIG instance " +
			`matches device.attributes["gpu.aliyun.com"].placementStart > 6, there is placementStart 0, 1, 2, 3, 4 and 2 more`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(append(allClasses(t), ofProfile))
			s.add("n", devices.Build(m, devices.Options{Pool: v1alpha1.PoolName("n"), Mode: mode.Exclusive}))
			s.holdEach(t, "n", test.held)
			room := s.room(t, engine, claim(test.asked))
			if len(room.Nodes[0].Lacks) != 1 {
				t.Fatal(room)
			}
			_, got, _ := strings.Cut(explain.Lack(room.Nodes[0].Lacks[0]), "; ")
			expect.Equal(t, test.want, got, "the message")
		})
	}
}
