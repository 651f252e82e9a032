// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// gate has pods with GPUs wait for their nominations until the test ends.
func gate(t *testing.T, ns *harness.Namespace) {
	t.Helper()
	ns.Option(t, "best-node-gate")
	// The API server may take a moment to know the policy.
	harness.Eventually(t, "pods to be gated", func(ctx context.Context) error {
		pod, err := ns.Admitted(ctx, anywhere("tried", "small"))
		if err == nil && len(pod.Spec.SchedulingGates) != 1 {
			err = fmt.Errorf("a pod is at the gates %v", pod.Spec.SchedulingGates)
		}
		return err
	})
}

// withoutKubelet makes a node that offers what another one offers, until the test ends or it is taken away.
func withoutKubelet(t *testing.T, name, like string) (takeAway func()) {
	t.Helper()
	nodes, slices := cluster.Client.CoreV1().Nodes(), cluster.Client.ResourceV1().ResourceSlices()
	gone := func(err error) bool { return err == nil || apierrors.IsNotFound(err) }
	takeAway = func() {
		ctx := harness.Context(t)
		if err := nodes.Delete(ctx, name, metav1.DeleteOptions{}); !gone(err) {
			t.Errorf("take node %s away: %v", name, err)
		}
		if err := slices.Delete(ctx, name, metav1.DeleteOptions{}); !gone(err) {
			t.Errorf("take the slice of node %s away: %v", name, err)
		}
	}
	t.Cleanup(takeAway)
	has := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("32"),
		corev1.ResourceMemory: resource.MustParse("128Gi"), corev1.ResourcePods: resource.MustParse("110")}
	harness.Make(t, nodes, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Capacity: has, Allocatable: has, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}},
	})
	list, err := slices.List(t.Context(), metav1.ListOptions{})
	expect.NoError(t, err)
	for i := range list.Items {
		if s := &list.Items[i]; ptr.Deref(s.Spec.NodeName, "") == like && s.Spec.Driver == v1alpha1.DriverName {
			spec := s.Spec.DeepCopy()
			spec.NodeName, spec.Pool.Name = &name, v1alpha1.PoolName(name)
			harness.Make(t, slices, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *spec})
		}
	}
	harness.Eventually(t, "node "+name+" to take pods", func(ctx context.Context) error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err == nil && len(node.Spec.Taints) > 0 {
			err = fmt.Errorf("it has taints %v", node.Spec.Taints)
		}
		return err
	})
	return takeAway
}

// choosing has a pod go to the emptiest of some nodes.
func choosing(pod *corev1.Pod, nodes ...string) *corev1.Pod {
	pod.Labels = map[string]string{v1alpha1.LabelNodePlacement: string(score.Spread)}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname,
				Operator: corev1.NodeSelectorOpIn, Values: nodes}}}}}}}
	return pod
}

// Pods with templates of their own wait for their nomination, and for nothing else: neither for a node with room, nor
// for a leader that is gone, nor for what has changed since.
func TestBestNodeGate(t *testing.T) {
	ns, setMode := nominated(t, score.Binpack)
	ns.Template(t, "small", harness.Requests(harness.Share("gpu", "3Gi")))
	gate(t, ns)

	ns.Run(t, harness.Pod("holder", "whole", harness.FromTemplate("small")))
	t.Run("in time", func(t *testing.T) {
		// By itself the scheduler would put some on the other node, which has more CPU left.
		const pods = 6
		for i := range pods {
			ns.Create(t, anywhere(fmt.Sprintf("packed-%d", i), "small"))
		}
		for i := range pods {
			runsOn(t, ns, fmt.Sprintf("packed-%d", i), "whole")
		}
		for i := range pods {
			ns.Delete(t, fmt.Sprintf("packed-%d", i))
		}
	})
	t.Run("no node", func(t *testing.T) {
		ns.Create(t, harness.Pod("nowhere", "nowhere", harness.FromTemplate("small")))
		ns.WaitUnschedulable(t, "nowhere", "")
		ns.Delete(t, "nowhere")
	})
	t.Run("a node that goes after it was nominated", func(t *testing.T) {
		takeAway := withoutKubelet(t, "goes", "whole")
		cluster.RestartScheduler(t, func() {
			ns.Create(t, choosing(anywhere("left", "small"), "goes", "whole"))
			waitNominated(t, ns, "left", "goes")
			takeAway()
		})
		runsOn(t, ns, "left", "whole")
		ns.Delete(t, "left")
	})
	t.Run("the leader is killed", func(t *testing.T) {
		const pods = 8
		for i := range pods {
			ns.Create(t, anywhere(fmt.Sprintf("burst-%d", i), "small"))
			if i == pods/2 {
				cluster.KillLeader(t)
			}
		}
		waitRuns(t, ns, "burst-", pods)
		for i := range pods {
			ns.Delete(t, fmt.Sprintf("burst-%d", i))
		}
	})
	ns.Delete(t, "holder")
	setMode("default")
	cluster.Publishes(t, "whole", "gpu-0", "gpu-1", "gpu-2", "gpu-3")
}

// affinityOf returns a pod's affinity.
func affinityOf(t *testing.T, ns *harness.Namespace, name string) *corev1.Affinity {
	t.Helper()
	pod := harness.Get(t, ns.Client.CoreV1().Pods(ns.Name), name)
	return pod.Spec.Affinity
}

// In a namespace with costly claims, a cheap pod goes to the scheduler at once. A pod for which node linked, with its
// 61 devices, would keep the scheduler busy waits for room on node whole, also when the leader is killed, and can go
// only there.
func TestCostlyClaims(t *testing.T) {
	ns, setMode := nominated(t, score.Best, func(n *corev1.Namespace) {
		n.Labels = map[string]string{v1alpha1.LabelCostlyClaims: v1alpha1.CostlyClaimsAllowed}
	})
	gate(t, ns)
	class := ns.DeviceClass(t, resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
		CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.aliyun.com"`}}}})
	full := harness.Share("gpu", "9Gi")
	ns.Template(t, "cheap", harness.Requests(full))
	full.Exactly.AllocationMode, full.Exactly.Count = resourceapi.DeviceAllocationModeExactCount, 4
	ns.Template(t, "full", harness.Requests(full))
	var each []resourceapi.DeviceRequest
	for i := range 4 {
		r := harness.Share(fmt.Sprint("gpu-", i), "9Gi")
		r.Exactly.DeviceClassName = class
		each = append(each, r)
	}
	ns.Template(t, "dear", harness.Requests(each...))

	ns.Run(t, anywhere("cheap", "cheap"))
	if a := affinityOf(t, ns, "cheap"); a != nil {
		t.Errorf("a pod that is cheap on all nodes is pinned by %v", a)
	}
	ns.Delete(t, "cheap")

	ns.Run(t, harness.Pod("holder", "whole", harness.FromTemplate("full")))
	ns.Create(t, choosing(anywhere("dear", "dear"), "whole", "linked"))
	ns.WaitPodEvent(t, "dear", v1alpha1.ReasonClaimWaiting, "no node has room for the pod's GPUs and lets the scheduler")
	explained, _ := ns.Inspect(t, "explain", "pod/dear", "-n", ns.Name)
	if want := "its Event " + v1alpha1.ReasonClaimWaiting + " says"; !strings.Contains(explained, want) {
		t.Errorf("explain says nothing of the gate:\n%s", explained)
	}
	cluster.KillLeader(t)
	ns.Delete(t, "holder")
	runsOn(t, ns, "dear", "whole")
	only := []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn,
		Values: []string{"whole"}}}
	terms := affinityOf(t, ns, "dear").NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || !equality.Semantic.DeepEqual(terms[0].MatchFields, only) ||
		len(terms[0].MatchExpressions) != 1 {
		t.Errorf("the pod wants nodes with %+v", terms)
	}
	ns.Delete(t, "dear")
	setMode("default")
	cluster.Publishes(t, "whole", "gpu-0", "gpu-1", "gpu-2", "gpu-3")
}
