// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// strands makes n1 a node of four GPUs and 16 CPUs, of which the pod p has one GPU and so many CPUs. n2 has 16 CPUs.
func strands(cpus string) func(s *doctor.Snapshot) {
	return func(s *doctor.Snapshot) {
		machine := &gpu.Machine{}
		for i := range 4 {
			machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprint(i), Model: "Tesla-T4", MemoryMiB: 15360})
		}
		s.Slices[0] = sliceOfMachine("n1", mode.Exclusive, machine)
		s.Nodes[0].Labels[labelMode] = "default"
		for _, n := range s.Nodes {
			n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16"),
				corev1.ResourceMemory: resource.MustParse("64Gi")}
		}
		s.Claims[0].Status.Allocation.Devices.Results[0].Device = "gpu-0"
		s.Pods[3].Spec = corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus)}}}}}
	}
}

func TestStrandedGPUs(t *testing.T) {
	taint := func(s *doctor.Snapshot) {
		s.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "gpu.aliyun.com/few-cpus",
			Effect: corev1.TaintEffectPreferNoSchedule}}
	}
	const found = "2.0 free GPUs are stranded: beside them nodes have too little CPU or memory left for pods with GPUs " +
		"as they run now: n1 (2.0)"
	for name, test := range map[string]struct {
		changes  []func(s *doctor.Snapshot)
		text, do string
	}{
		"too little CPU": {[]func(*doctor.Snapshot){strands("8")}, found,
			"kubectl taint nodes n1 gpu.aliyun.com/few-cpus:PreferNoSchedule"},
		"of a node with the taint": {[]func(*doctor.Snapshot){strands("8"), taint}, found,
			"choose the nodes of pods with GPUs: docs/packing.md#results"},
		"enough CPU": {[]func(*doctor.Snapshot){strands("4")}, "", ""},
		"pods that nobody may read": {[]func(*doctor.Snapshot){strands("8"), func(s *doctor.Snapshot) {
			s.Unread = []string{"pods"}
		}}, "", ""},
		"on many nodes": {[]func(*doctor.Snapshot){strands("8"), func(s *doctor.Snapshot) {
			for i := range 10 {
				n := s.Nodes[0].DeepCopy()
				n.Name = fmt.Sprintf("more-%d", i)
				slice := s.Slices[0].DeepCopy()
				slice.Spec.NodeName, slice.Spec.Pool.Name = &n.Name, n.Name+"/gpu"
				s.Nodes, s.Slices = append(s.Nodes, n), append(s.Slices, slice)
			}
		}}, "22.0 free GPUs are stranded: beside them nodes have too little CPU or memory left for pods with GPUs as they " +
			"run now: more-0 (2.0), more-1 (2.0), more-2 (2.0), more-3 (2.0), more-4 (2.0), more-5 (2.0), more-6 (2.0), " +
			"more-7 (2.0) and 3 more",
			"kubectl taint nodes NODE... gpu.aliyun.com/few-cpus:PreferNoSchedule, for the 11 nodes with fewer than 4.4"},
	} {
		t.Run(name, func(t *testing.T) {
			s := installed(t)
			for _, change := range test.changes {
				change(s)
			}
			text, do := "", ""
			for _, f := range foundBy("stranded", s) {
				text, do = f.Text, f.Do
				expect.Equal(t, doctor.Note, f.Level, "level of the finding")
			}
			if text != test.text || !strings.HasSuffix(do, test.do) {
				t.Errorf("found %q, and to do %q, want %q and %q", text, do, test.text, test.do)
			}
		})
	}
}
