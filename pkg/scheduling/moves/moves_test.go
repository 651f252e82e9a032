// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"context"
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
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// site is a cluster while it is put together.
type site struct{ Cluster }

func newSite(t testing.TB) *site {
	t.Helper()
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	s := &site{}
	s.Classes, s.Engine = classes, scheduling.NewEngine(100)
	s.Read = func(_ context.Context, pod *corev1.Pod) (scheduling.Pod, error) {
		read := scheduling.Pod{Pod: pod}
		for _, c := range s.Claims {
			if c.Namespace == pod.Namespace && c.Name == pod.Name {
				read.Claims = append(read.Claims, c)
			}
		}
		return read, nil
	}
	return s
}

// node adds a node with 64 CPUs and so many GPUs of 16 GiB, which are shared.
func (s *site) node(name string, gpus int) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"host": name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"),
			corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110")}}}
	s.Nodes = append(s.Nodes, node)
	machine := &gpu.Machine{}
	for i := range gpus {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%s-%d", name, i), Model: "V100",
			MemoryMiB: 16384})
	}
	pool := v1alpha1.PoolName(name)
	s.Slices = append(s.Slices, &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: &name, Pool: resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1},
		Devices: devices.Build(machine, devices.Options{Pool: pool, Mode: mode.Share, Slots: 20}).Pools[pool].Slices[0].
			Devices}})
	return node
}

// pod adds a Deployment's pod with a share of so many GiB: of a GPU, or none yet where it has no node.
func (s *site) pod(name, node string, gpu int, gib string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name),
		CreationTimestamp: metav1.NewTime(time.Unix(int64(len(s.Pods)), 0)), Labels: map[string]string{"app": name},
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: name, Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{NodeName: node, ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu",
			ResourceClaimTemplateName: ptr.To("share")}},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("1")}}}}}}
	s.Pods = append(s.Pods, pod)
	amounts := map[resourceapi.QualifiedName]resource.Quantity{v1alpha1.CapMemory: resource.MustParse(gib)}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID("claim-" + name),
			OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: pod.UID}}},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "share." + v1alpha1.DriverName, Count: 1,
				AllocationMode: resourceapi.DeviceAllocationModeExactCount,
				Capacity:       &resourceapi.CapacityRequirements{Requests: amounts}}}}}}}
	s.Claims = append(s.Claims, claim)
	if node == "" {
		return pod
	}
	pod.Status.Phase = corev1.PodRunning
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod.UID}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: v1alpha1.DriverName,
			Pool: v1alpha1.PoolName(node), Device: fmt.Sprintf("gpu-%d-share", gpu), ConsumedCapacity: amounts,
			ShareID: ptr.To(types.UID("share-" + name))}}}}
	return pod
}

// budget adds a PodDisruptionBudget of pods of this name.
func (s *site) budget(app string, allowed int32) {
	s.Budgets = append(s.Budgets, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{
			"app": app}}}, Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed}})
}

// saidOf is a plan in short.
func saidOf(p *Plan) string {
	var parts []string
	for _, m := range p.Moves {
		parts = append(parts, m.Pod.Name+" "+m.From+">"+m.To)
	}
	if p.GPUs != 0 {
		parts = append(parts, fmt.Sprintf("%+d GPUs", p.GPUs))
	}
	if p.Nodes != 0 {
		parts = append(parts, fmt.Sprintf("%+d nodes", p.Nodes))
	}
	for _, pod := range p.Waiting {
		parts = append(parts, "lets in "+pod.Name)
	}
	if len(p.Moves) == 0 {
		parts = append(parts, p.Why)
	}
	return strings.Join(parts, ", ")
}

// Of two nodes with one GPU each, one has 6 GiB taken, the other 8: the first pod can go to the second node. What that
// takes, each case has or lacks.
func TestPlan(t *testing.T) {
	const none = "up to 3 moves would not free a GPU (pods that may move: 1)"
	for _, tc := range []struct {
		name   string
		change func(s *site, small *corev1.Pod)
		ask    Question
		want   string
	}{
		{"a GPU", func(*site, *corev1.Pod) {}, Question{Goal: GPU}, "small n1>n2, +1 GPUs, +1 nodes"},
		{"a node", func(*site, *corev1.Pod) {}, Question{Goal: Node}, "small n1>n2, +1 GPUs, +1 nodes"},
		{"room for a pod that waits", func(s *site, _ *corev1.Pod) { s.pod("large", "", 0, "16Gi") }, Question{},
			"small n1>n2, +1 GPUs, +1 nodes, lets in large"},
		{"room for a pod behind many of another namespace", func(s *site, _ *corev1.Pod) {
			for i := range waitingMost {
				s.pod(fmt.Sprintf("greedy-%d", i), "", 0, "32Gi")
			}
			large := s.pod("large", "", 0, "16Gi")
			large.Namespace, s.Claims[len(s.Claims)-1].Namespace = "b", "b"
		}, Question{}, "small n1>n2, +1 GPUs, +1 nodes, lets in large"},
		{"a pod that has room already", func(s *site, _ *corev1.Pod) { s.pod("tiny", "", 0, "2Gi") },
			Question{For: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "tiny"}}}, "the pod has room without any move"},
		{"a pod that is not there", func(*site, *corev1.Pod) {},
			Question{For: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "nobody"}}},
			"the pod does not wait for GPUs, or has other requests that no plan considers"},
		{"one that waits for more than a move can free", func(s *site, _ *corev1.Pod) {
			s.pod("large", "", 0, "16Gi").Spec.NodeSelector = map[string]string{"no": "node"}
		}, Question{For: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "large"}}},
			"up to 3 moves would not make room for the pod (pods that may move: 2)"},
		{"a budget that lets it go", func(s *site, _ *corev1.Pod) { s.budget("small", 1) }, Question{Goal: GPU},
			"small n1>n2, +1 GPUs, +1 nodes"},
		{"a budget that does not", func(s *site, _ *corev1.Pod) { s.budget("small", 0) }, Question{Goal: GPU}, none},
		{"two budgets", func(s *site, _ *corev1.Pod) {
			s.budget("small", 1)
			s.budget("small", 1)
		}, Question{Goal: GPU}, none},
		{"nobody makes it again", func(_ *site, p *corev1.Pod) { p.OwnerReferences = nil }, Question{Goal: GPU}, none},
		{"a Job's work would be lost", func(_ *site, p *corev1.Pod) { p.OwnerReferences[0].Kind = "Job" },
			Question{Goal: GPU}, none},
		{"a gang that Kubernetes places", func(_ *site, p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("gang")}
		}, Question{Goal: GPU}, none},
		{"a node to which another pod is nominated", func(s *site, _ *corev1.Pod) {
			s.pod("nominated", "", 0, "1Gi").Status.NominatedNodeName = "n2"
		}, Question{Goal: GPU}, none},
		{"a system pod", func(_ *site, p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](2_000_000_000) },
			Question{Goal: GPU}, none},
		{"a pod that ends", func(_ *site, p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, Question{Goal: GPU}, none},
		{"a claim that others may use", func(s *site, p *corev1.Pod) {
			s.Claims[0].OwnerReferences = nil
		}, Question{Goal: GPU}, "up to 3 moves would not free a GPU (pods that may move: 2)"},
		{"a caller's reason", func(s *site, _ *corev1.Pod) {
			s.Stays = func(pod *corev1.Pod) bool { return pod.Name == "small" }
		}, Question{Goal: GPU}, none},
		{"a node selector", func(_ *site, p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"host": "n1"}
		}, Question{Goal: GPU}, "up to 3 moves would not free a GPU (pods that may move: 2)"},
		{"a volume", func(_ *site, p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
		}, Question{Goal: GPU}, "up to 3 moves would not free a GPU (pods that may move: 2)"},
		{"a higher priority than that of the pod that waits", func(s *site, p *corev1.Pod) {
			s.pod("large", "", 0, "16Gi")
			p.Spec.Priority = ptr.To[int32](1)
		}, Question{For: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "large"}}},
			"up to 3 moves would not make room for the pod (pods that may move: 2)"},
		{"too little CPU", func(s *site, _ *corev1.Pod) {
			s.Nodes[1].Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("1")
		}, Question{Goal: GPU}, "up to 3 moves would not free a GPU (pods that may move: 2)"},
		{"a cordoned node", func(s *site, _ *corev1.Pod) { s.Nodes[1].Spec.Unschedulable = true }, Question{Goal: GPU},
			"up to 3 moves would not free a GPU (pods that may move: 2)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSite(t)
			s.node("n1", 1)
			s.node("n2", 1)
			small := s.pod("small", "n1", 0, "6Gi")
			s.pod("big", "n2", 0, "8Gi")
			s.pod("beside", "n2", 0, "1Gi")
			s.Pods[2].OwnerReferences = nil
			tc.change(s, small)
			tc.ask.Most = 3
			p, err := s.Plan(t.Context(), tc.ask)
			expect.NoError(t, err)
			expect.Equal(t, tc.want, saidOf(p), "the plan is")
		})
	}
}

// A budget that lets one of two pods go is not broken by the second move.
func TestBudgetsCountTheMoves(t *testing.T) {
	s := newSite(t)
	s.node("n1", 2)
	s.node("n2", 2)
	for i := range 2 {
		s.pod(fmt.Sprint("app-", i), "n1", i, "4Gi").Labels["app"] = "app"
	}
	s.pod("big", "n2", 0, "8Gi").OwnerReferences = nil
	s.budget("app", 1)
	p, err := s.Plan(t.Context(), Question{Goal: Node, Most: 5})
	if err != nil || len(p.Moves) > 0 {
		t.Errorf("error %v; the plan is %q, want none: a node takes both pods", err, saidOf(p))
	}
	s.Budgets[0].Status.DisruptionsAllowed = 2
	if p, err = s.Plan(t.Context(), Question{Goal: Node, Most: 5}); err != nil || len(p.Moves) != 2 {
		t.Errorf("error %v; the plan is %q, want two moves", err, saidOf(p))
	}
}

// Nothing is asked for: moves are those by which less is lost.
func TestPlanSaves(t *testing.T) {
	s := newSite(t)
	for i := range 3 {
		name := fmt.Sprint("n", i)
		s.node(name, 1)
		s.pod(fmt.Sprint("p", i), name, 0, "5Gi")
	}
	for i := range 6 {
		s.node(fmt.Sprint("m", i), 1)
		s.pod(fmt.Sprint("typical-", i), fmt.Sprint("m", i), 0, "16Gi")
	}
	p, err := s.Plan(t.Context(), Question{Most: 10})
	if err != nil || len(p.Moves) != 2 || p.GPUs != 2 || p.Saved < 0.2 {
		t.Errorf("error %v; the plan is %q and saves %.2f GPUs, want two moves that free two GPUs", err, saidOf(p), p.Saved)
	}
	if !slices.ContainsFunc(p.Moves, func(m Move) bool { return strings.HasPrefix(m.To, "n") }) {
		t.Errorf("the plan is %q, want moves to nodes with room", saidOf(p))
	}
}

// BenchmarkPlan is on 1,000 nodes of 8 GPUs, each with two shares, for a pod that needs all of a node, and by what is
// lost.
func BenchmarkPlan(b *testing.B) {
	s := newSite(b)
	for n := range 1000 {
		name := fmt.Sprint("n", n)
		s.node(name, 8)
		for g := range 8 {
			s.pod(fmt.Sprintf("p-%d-%d", n, g), name, g, []string{"9Gi", "5Gi", "7Gi"}[(n+g)%3])
		}
	}
	for name, q := range map[string]Question{"gpu": {Goal: GPU, Most: 10}, "node": {Goal: Node, Most: 10},
		"loss": {Most: 20}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				_, err := s.Plan(b.Context(), q)
				expect.NoError(b, err)
			}
		})
	}
}
