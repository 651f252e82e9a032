// SPDX-License-Identifier: Apache-2.0

package stranded_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/stranded"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
)

// site is a cluster while it is put together.
type site struct{ stranded.Cluster }

// node adds a node with GPUs of 16 GiB in a mode, none for a node that the driver does not serve.
func (s *site) node(name, cpu, memory string, m mode.Mode, gpus int) {
	s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Allocatable: amounts(cpu, memory)}})
	machine := &gpu.Machine{}
	for i := range gpus {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%s-%d", name, i), Model: "V100",
			MemoryMiB: 16384})
	}
	pool := v1alpha1.PoolName(name)
	if gpus == 0 {
		return
	}
	s.Slices = append(s.Slices, &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: &name, Pool: resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1},
		Devices: devices.Build(machine, devices.Options{Pool: pool, Mode: m, Slots: 20}).Pools[pool].Slices[0].Devices}})
}

func amounts(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory)}
}

// pod adds one that has devices of a node: so much memory of each, all without.
func (s *site) pod(name, node, cpu, memory, gib string, taken ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name),
		CreationTimestamp: metav1.NewTime(time.Unix(int64(len(s.Pods)), 0))},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main",
			Resources: corev1.ResourceRequirements{Requests: amounts(cpu, memory)}}}}}
	s.Pods = append(s.Pods, pod)
	if len(taken) == 0 {
		return pod
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name,
		UID: pod.UID}}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for _, device := range taken {
		result := resourceapi.DeviceRequestAllocationResult{Driver: v1alpha1.DriverName, Pool: v1alpha1.PoolName(node),
			Device: device}
		if gib != "" {
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
				v1alpha1.CapMemory: resource.MustParse(gib)}
		}
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, result)
	}
	s.Claims = append(s.Claims, claim)
	return pod
}

func TestFind(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(s *site)
		want score.Lost
	}{
		{"while no pod has GPUs, nothing is known to be lost", func(s *site) {
			s.node("n", "4", "16Gi", mode.Exclusive, 4)
			s.pod("other", "n", "4", "1Gi", "")
		}, score.Lost{Free: 4}},
		{"a pod has half of the CPU with one GPU of four: another one has room, and 2 GPUs are left", func(s *site) {
			s.node("n", "16", "64Gi", mode.Exclusive, 4)
			s.pod("p", "n", "8", "1Gi", "", "gpu-0")
		}, score.Lost{Free: 3, Stranded: map[string]float64{"n": 2}}},
		{"pods without GPUs have the CPU", func(s *site) {
			s.node("n", "16", "64Gi", mode.Exclusive, 2)
			s.pod("p", "n", "8", "1Gi", "", "gpu-0")
			s.pod("other", "n", "8", "1Gi", "")
		}, score.Lost{Free: 1, Stranded: map[string]float64{"n": 1}, Fragmented: 1}},
		{"until they have ended", func(s *site) {
			s.node("n", "16", "64Gi", mode.Exclusive, 2)
			s.pod("p", "n", "8", "1Gi", "", "gpu-0")
			s.pod("other", "n", "8", "1Gi", "").Status.Phase = corev1.PodSucceeded
		}, score.Lost{Free: 1}},
		{"memory is missing", func(s *site) {
			s.node("n", "16", "24Gi", mode.Exclusive, 2)
			s.pod("p", "n", "1", "16Gi", "", "gpu-0")
		}, score.Lost{Free: 1, Stranded: map[string]float64{"n": 0.5}, Fragmented: 1}},
		{"shares have parts of GPUs, and a rest is too small", func(s *site) {
			s.node("n", "16", "64Gi", mode.Share, 1)
			s.pod("p", "n", "2", "1Gi", "12Gi", "gpu-0-share")
		}, score.Lost{Free: 0.25, Fragmented: 0.25}},
		{"a node that does not say what it has does not count", func(s *site) {
			s.node("n", "16", "64Gi", mode.Exclusive, 2)
			s.Nodes = nil
		}, score.Lost{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &site{}
			tc.make(s)
			expect.Equal(t, fmt.Sprintf("%+.9v", tc.want), fmt.Sprintf("%+.9v", stranded.Find(s.Cluster)), "lost")
		})
	}
}

func TestFewCPUsAreFewerThanTheClusterHasPerGPU(t *testing.T) {
	s := &site{}
	check := func(mean float64, want ...string) {
		t.Helper()
		if few, got := stranded.FewCPUs(s.Cluster); !slices.Equal(few, want) || got != mean {
			t.Errorf("few CPUs have %q of %v per GPU, want %q of %v", few, got, want, mean)
		}
	}
	check(0)
	s.node("tight", "16", "64Gi", mode.Exclusive, 4)
	s.node("wide", "32", "64Gi", mode.Exclusive, 2)
	s.node("alike", "15500m", "64Gi", mode.Exclusive, 2)
	s.node("as good", "16500m", "64Gi", mode.Exclusive, 2)
	check(8, "tight")
	s.node("no GPUs", "80", "64Gi", mode.Exclusive, 0)
	check(16, "alike", "as good", "tight")
}
