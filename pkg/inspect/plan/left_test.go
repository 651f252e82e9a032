// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// held adds a claim that has a device of a node.
func (s *site) held(node, device string) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "others", Name: node + "-" + device}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: v1alpha1.DriverName,
			Pool: v1alpha1.PoolName(node), Device: device}}}}
	s.Snapshot.Claims = append(s.Snapshot.Claims, claim)
}

// on is a manifest of a pod for a node, or any.
func on(name, resource, node string) string {
	return `---
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  nodeSelector: {` + node + `}
  containers: [{name: main, image: train, resources: {limits: {` + resource + `: 1}}}]
`
}

// What would fit if the fullest node were filled first is found out by what is left of each: of a GPU its memory
// once, however many instances it can be cut into, and without what is held as a whole.
func TestTheFullestNodeHasTheLeastLeft(t *testing.T) {
	const small, large = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-7g.80gb"
	dynamic := gpu.Partitioned{Profiles: kinds()}
	for name, test := range map[string]struct {
		nodes    func(*site)
		manifest string
	}{
		"an instance that somebody has": {func(s *site) {
			s.instances("n1", mode.Exclusive, gpus(0), inMIGMode(0, 1, dynamic))
			s.instances("n2", mode.Exclusive, gpus(0), inMIGMode(0, 1, dynamic))
			s.held("n2", "gpu-0-mig-1g-10gb-5")
		}, on("first", small, "") + on("second", large, "")},
		"places of one GPU": {func(s *site) {
			s.instances("n1", mode.Exclusive, gpus(0), inMIGMode(0, 2, cut()))
			s.instances("n2", mode.Exclusive, gpus(0), inMIGMode(0, 1, dynamic))
		}, on("first", small, "") + on("a", small, "kubernetes.io/hostname: n1") + on("b", small,
			"kubernetes.io/hostname: n1") + on("c", small, "kubernetes.io/hostname: n1") + on("d", small,
			"kubernetes.io/hostname: n1")},
		"a large share after small ones": {func(s *site) {
			for _, name := range []string{"n1", "n2"} {
				s.node(name, 1, mode.Share, allocatable(map[corev1.ResourceName]string{"cpu": "8", "pods": "9"}))
			}
		}, workload("Deployment", 2, "aliyun.com/gpu-mem: 7, cpu: 1") + "---" +
			strings.ReplaceAll(workload("Deployment", 1, "aliyun.com/gpu-mem: 15"), "train", "large")},
		"a whole GPU that somebody has": {func(s *site) {
			s.node("n1", 2, mode.Exclusive)
			s.node("n2", 2, mode.Exclusive)
			s.held("n2", "gpu-0")
		}, on("first", "nvidia.com/gpu", "") + strings.Replace(on("second", "nvidia.com/gpu", ""), ": 1}", ": 2}", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			test.nodes(s)
			s.read(t, test.manifest)
			made := s.plan(t)
			expect.Equal(t, 1, made.Waits, "pods that wait\n%s", printed(t, made))
			expect.Says(t, strings.Join(made.Notes, "\n"), "1 more would fit if the scheduler filled one node after the other")
		})
	}
}

// What a device plugin's pod holds of a GPU is allocated in the table, too, though the ResourceSlice just has less.
func TestWhatPodsHoldWithoutAClaimIsInTheTable(t *testing.T) {
	held := func(node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "old", Namespace: "team",
				Annotations: map[string]string{"ALIYUN_COM_GPU_MEM_IDX": "0"}},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main",
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
					"aliyun.com/gpu-mem": resource.MustParse("6")}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	}
	offer := func(s *site, name string) {
		s.node(name, 1, mode.Share)
		for _, slice := range s.Slices {
			for i := range slice.Spec.Devices {
				capacity := slice.Spec.Devices[i].Capacity
				if memory, is := capacity[v1alpha1.CapMemory]; is && *slice.Spec.NodeName == name {
					memory.Value = resource.MustParse("9Gi")
					capacity[v1alpha1.CapMemory] = memory
				}
			}
		}
	}
	for name, change := range map[string]func(*site){
		"by its pod":                 func(s *site) { s.Bound = []*corev1.Pod{held("n1")} },
		"where pods cannot be read":  func(s *site) { s.PodsUnknown = true },
		"beside those without a GPU": func(s *site) { s.Bound = []*corev1.Pod{{}, held("n1"), held("elsewhere")} },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			offer(s, "n1")
			change(s)
			s.read(t, workload("Deployment", 1, "aliyun.com/gpu-mem: 8"))
			expect.Says(t, printed(t, s.plan(t)), "The pod would find room.", "14/15")
		})
	}
	// Of a GPU that is closed to claims nothing is left, and no more than all is allocated.
	s := newSite(t)
	s.node("n1", 1, mode.Exclusive)
	s.held("n1", "gpu-0")
	s.Slices[0].Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: v1alpha1.TaintHeld,
		Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	s.PodsUnknown = true
	s.read(t, workload("Deployment", 1, "nvidia.com/gpu: 1"))
	expect.Says(t, printed(t, s.plan(t)), "0 of 1 pods would find room", "15/15")
	// The node that is fuller for it is filled first.
	s = newSite(t)
	s.node("n1", 1, mode.Share)
	offer(s, "n2")
	s.Bound = []*corev1.Pod{held("n2")}
	s.read(t, workload("Deployment", 1, "aliyun.com/gpu-mem: 7")+"---"+
		strings.ReplaceAll(workload("Deployment", 1, "aliyun.com/gpu-mem: 15"), "train", "large"))
	expect.Says(t, strings.Join(s.plan(t).Notes, "\n"),
		"1 more would fit if the scheduler filled one node after the other")
}
