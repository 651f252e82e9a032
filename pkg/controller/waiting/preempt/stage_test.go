// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// engine spares each test the compiling.
var engine = scheduling.NewEngine(100)

// taking are the labels of a namespace that takes part.
var taking = map[string]string{v1alpha1.LabelPreemption: "true"}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// stage is a cluster in a test: nodes of two A10 each, in mode mig with an A30 of two instances
// beside, or of two linked pairs, and pods on them.
type stage struct {
	testing.TB
	situation
	offered map[string]*allocatortest.Node
	// disruptions are what budgets were made of.
	disruptions []*policyv1.PodDisruptionBudget
}

func newStage(t testing.TB) *stage {
	t.Helper()
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	return &stage{TB: t, offered: map[string]*allocatortest.Node{}, situation: situation{now: noon, classes: classes,
		engine: engine, budgets: scheduling.NewBudgets(nil),
		namespaces: map[string]map[string]string{"ns": taking, "else": taking}}}
}

// machine is one of so many GPUs, of which each is linked with one other.
func machine(count int) *gpu.Machine {
	m := &gpu.Machine{}
	for i := range count {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "NVIDIA-A10", MemoryMiB: 23028})
		if i%2 == 1 {
			m.Links = append(m.Links, gpu.Link{A: i - 1, B: i, Kind: gpu.LinkNVLink, Lanes: 2, Generation: 2, GBps: 50})
		}
	}
	return m
}

func resourcesOf(name string, m mode.Mode) resourceslice.DriverResources {
	machine := machine(map[bool]int{true: 4, false: 2}[m == mode.Topology])
	if m == mode.MIG {
		// As a node in mode mig publishes its other GPUs.
		m = mode.Exclusive
		cut := gpu.Partitioned{GPU: gpu.GPU{Index: 2, UUID: "GPU-2", Model: "NVIDIA-A30", MemoryMiB: 24576}}
		for i := range 2 {
			cut.Instances = append(cut.Instances, gpu.Instance{UUID: fmt.Sprintf("MIG-%d", i), Profile: "2g.12gb", Start: 2 * i,
				Size: 2, MemoryMiB: 11968})
		}
		machine.Partitioned = append(machine.Partitioned, cut)
	}
	return devices.Build(machine, devices.Options{Pool: v1alpha1.PoolName(name), Mode: m, Slots: 20})
}

// node adds a node with 8 CPUs.
func (s *stage) node(name string, m mode.Mode) *node {
	s.Helper()
	n := &node{Node: &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourcePods: resource.MustParse("110"),
		}},
	}}
	resources := resourcesOf(name, m)
	pool := resources.Pools[v1alpha1.PoolName(name)]
	for i, slice := range pool.Slices {
		n.pool = append(n.pool, view.Read(&resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i)},
			Spec:       devices.SliceSpec(name, v1alpha1.PoolName(name), pool, slice),
		}))
	}
	s.nodes = append(s.nodes, n)
	s.offered[name] = allocatortest.NewNode(name, v1alpha1.DriverName, resources, s.classes)
	return n
}

// asking are requests: GiB of a share, "gpu" for a whole GPU, "linked" for two linked ones, "instance" for one of MIG,
// "any" for a whole one of any mode, "monitor" for an administrator's access to all, which tolerates no taint,
// "look" for that to a single GPU of mode topology, as others have it.
func asking(of ...string) resourceapi.DeviceClaim {
	var claim resourceapi.DeviceClaim
	for i, what := range of {
		request := &resourceapi.ExactDeviceRequest{Count: 1, AllocationMode: resourceapi.DeviceAllocationModeExactCount}
		switch what {
		case "gpu":
			request.DeviceClassName = "exclusive.gpu.aliyun.com"
		case "instance":
			request.DeviceClassName = "mig.gpu.aliyun.com"
		case "linked":
			request.DeviceClassName = "linked-2.topology.gpu.aliyun.com"
		case "any":
			request.DeviceClassName = "gpu.aliyun.com"
		case "monitor":
			request.DeviceClassName, request.AdminAccess = "monitor.gpu.aliyun.com", ptr.To(true)
			request.AllocationMode, request.Count = resourceapi.DeviceAllocationModeAll, 0
		case "look":
			request.DeviceClassName, request.AdminAccess = "single.topology.gpu.aliyun.com", ptr.To(true)
		default:
			request.DeviceClassName = "share.gpu.aliyun.com"
			request.Capacity = &resourceapi.CapacityRequirements{
				Requests: map[resourceapi.QualifiedName]resource.Quantity{v1alpha1.CapMemory: resource.MustParse(what)}}
		}
		claim.Requests = append(claim.Requests, resourceapi.DeviceRequest{Name: fmt.Sprint("r", i), Exactly: request})
	}
	return claim
}

// podOf is one as the cache has it, that was started some minutes after noon.
func podOf(name string, priority int32, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
			Labels:            map[string]string{"app": name},
			CreationTimestamp: metav1.Time{Time: noon}},
		Spec: corev1.PodSpec{Priority: &priority, Resources: &corev1.ResourceRequirements{}},
	}
	for _, change := range change {
		change(pod)
	}
	return pod
}

func cpus(amount string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
	}
}

func on(node string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node} }
}

func terminating(since time.Time) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: since} }
}

// withClaim has a pod refer to a claim.
func withClaim(pod *corev1.Pod) {
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To(pod.Name + "-gpu")}}
}

// runs puts a pod on a node, with a claim of its own unless it asks for nothing.
func (s *stage) runs(name string, pod *corev1.Pod, of ...string) {
	s.Helper()
	n := s.nodes[slices.IndexFunc(s.nodes, func(n *node) bool { return n.Name == name })]
	pod.Spec.NodeName = name
	n.pods, s.pods = append(n.pods, pod), append(s.pods, pod)
	if len(of) > 0 {
		s.claimed(n, of, pod)
	}
}

// claimed has pods hold a claim together.
func (s *stage) claimed(n *node, of []string, pods ...*corev1.Pod) {
	s.Helper()
	results, err := s.offered[n.Name].Allocate(s.Context(), asking(of...))
	if err != nil || results == nil {
		s.Fatalf("%s for %s on node %s: no room, %v", of, pods[0].Name, n.Name, err)
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: pods[0].Name + "-gpu"},
		Status: resourceapi.ResourceClaimStatus{
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}}}
	for _, pod := range pods {
		withClaim(pod)
		claim.Status.ReservedFor = append(claim.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	}
	n.claims = append(n.claims, claim)
}

func (s *stage) budget(app string, allowed int32) {
	s.disruptions = append(s.disruptions, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	})
	s.budgets = scheduling.NewBudgets(s.disruptions)
}

// wishes is what a waiting pod waits for.
func wishes(pod *corev1.Pod, of ...string) wish {
	return wish{
		pod: pod, requests: counted(pod), byClass: func(corev1.ResourceName) bool { return false },
		where: scheduling.Wanted(pod),
		claims: []*resourceapi.ResourceClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "wished"},
			Spec: resourceapi.ResourceClaimSpec{Devices: asking(of...)}}},
	}
}

// victims are the names of those that are evicted for a pod, with their node, or why nobody
// is.
func (s *stage) victims(w wish) (node string, victims []string, why string) {
	s.Helper()
	since := map[ending]time.Duration{}
	for _, pod := range s.pods {
		if pod.DeletionTimestamp != nil {
			began := pod.DeletionTimestamp.Add(-seconds(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)))
			since[endingOf(pod)] = s.now.Sub(began)
		}
	}
	s.overdue = overdue(s.pods, func(e ending) time.Duration { return since[e] })
	o, why, err := s.plan(s.Context(), w)
	expect.NoError(s, err)
	if o == nil {
		return "", nil, why
	}
	for _, pod := range o.victims {
		victims = append(victims, pod.Name)
	}
	return o.node.Name, victims, why
}

// plans checks which node and victims are chosen for a pod, or a part of why there are none.
func (s *stage) plans(w wish, want string) {
	s.Helper()
	node, victims, why := s.victims(w)
	got := strings.Join(append([]string{node}, victims...), " ")
	if why == "" && got != want || why != "" && !strings.Contains(why, want) {
		s.Errorf("%s (%s), want %s", got, why, want)
	}
}

// closes has a DeviceTaintRule taint the devices that it selects.
func (s *stage) closes(selector *resourceapi.DeviceTaintSelector) {
	rule := &resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: selector,
		Taint: resourceapi.DeviceTaint{Key: "repair", Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
	s.rules = append(s.rules, rule)
}

// antiAffinity keeps a pod away from those of an app.
func antiAffinity(app string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}}}
	}
}
