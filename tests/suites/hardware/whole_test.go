// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// wholeGPU also shows first whether CUDA runs in containers at all.
func wholeGPU(s *step) {
	s.whole("pod with a claim for a GPU", 1, pod{name: "whole"})
	s.hasGPUs("whole", 1)
	// The program says on standard error where it had to look for the library.
	p := s.running("whole", "meminfo")
	found := "by the loader"
	if _, note, ok := strings.Cut(p.messages.String(), "libcuda.so.1 found by its path"); ok {
		found = "only by its path" + note
	}
	s.same("libcuda.so.1 in the container", "by the loader", found)
	answer, err := p.next()
	s.must(err)
	v, memory := s.view(answer), here.gpu().MemoryMiB
	s.check("memory, as a CUDA program sees it", fmt.Sprintf("about %d MiB", memory), v.String(),
		v.totalMiB > memory*9/10 && v.totalMiB <= memory)
	s.allocates("whole", memory*8/10, granted)
	v = s.spin(3, "whole")[0]
	s.check("a kernel runs", "kernels/s", v.String(), v.rate > 0)
}

var smiLine = regexp.MustCompile(`(?m)^GPU [0-9]+: .*$`)

func smiInContainer(s *step) {
	s.whole("pod with a claim for a GPU", 1, pod{name: "smi"})
	out, err := s.exec("smi", "", "nvidia-smi", "-L")
	if err != nil {
		s.Fatalf("nvidia-smi: %v: %s", err, out)
	}
	lines := smiLine.FindAllString(out, -1)
	s.check("nvidia-smi -L in the container", "1 GPU", strings.Join(lines, "; "), len(lines) == 1)
}

// healthShown is what a user sees of a GPU's health. No GPU is broken for it.
func healthShown(s *step) {
	s.whole("pod with a claim for a GPU", 1, pod{name: "health"})
	s.clock()
	var shown []string
	s.ns.WaitPod(s.T, "health", "to show the GPU's health", func(p *corev1.Pod) error {
		shown = nil
		for _, container := range p.Status.ContainerStatuses {
			for _, allocated := range container.AllocatedResourcesStatus {
				for _, r := range allocated.Resources {
					shown = append(shown, string(r.Health))
				}
			}
		}
		if len(shown) == 0 || shown[0] == "Unknown" {
			return fmt.Errorf("it shows %q", shown)
		}
		return nil
	})
	s.same("health in the pod's status", "Healthy", strings.Join(shown, ", "))
}

func otherUser(s *step) {
	s.whole("pod of uid 1000", 1, pod{name: "user", uid: 1000})
	s.runs("CUDA program of uid 1000", "user")
}

func extendedResource(s *step) {
	s.start("pod with nvidia.com/gpu: 1", pod{name: "limit", limits: []string{"nvidia.com/gpu", "1"}})
	s.hasGPUs("limit", 1)
	s.runs("CUDA program", "limit")
}

// linkedGPUs asks as demo/topology/two-GPUs.yaml does: for the best set, or for any two.
func linkedGPUs(s *step) {
	s.template("two", resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "linked", DeviceClassName: "linked-2." + harness.TopologyClass,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1},
		{Name: "any", DeviceClassName: "single." + harness.TopologyClass,
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2},
	}})
	s.start("pod with two GPUs", pod{name: "two", template: "two"})
	s.hasGPUs("two", 2)
	s.seen("devices of the claim", "the best-linked two GPUs", s.devices("two"))
	s.runs("CUDA program", "two")
}
