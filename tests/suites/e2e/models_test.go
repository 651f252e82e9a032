// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// class looks up NAME.gpu.aliyun.com.
func class(ctx context.Context, name string) (*resourceapi.DeviceClass, error) {
	return cluster.Client.ResourceV1().DeviceClasses().Get(ctx, name+".gpu.aliyun.com", metav1.GetOptions{})
}

func classComes(t *testing.T, name string) {
	t.Helper()
	harness.Eventually(t, "DeviceClass "+name+" to be there", func(ctx context.Context) error {
		_, err := class(ctx, name)
		return err
	})
}

func classGoes(t *testing.T, name string) {
	t.Helper()
	harness.WaitNone(t, cluster.Client.ResourceV1().DeviceClasses(), name+".gpu.aliyun.com",
		"DeviceClass "+name+" to be gone")
}

// onOneOf lets a pod run on any of the nodes that its other wishes leave.
func onOneOf(nodes ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.NodeSelector = nil
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes},
				}}},
			}}}
	}
}

func selecting(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{key: value} }
}

func TestPodsChooseAndAvoidModels(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "mixed")
	cluster.Share(t, "share")
	cluster.Whole(t, "switch")
	ns := cluster.Namespace(t)
	const isNotA10 = `device.attributes["gpu.aliyun.com"].model != "NVIDIA-A10"`
	ns.Template(t, "share", harness.Requests(harness.Share("gpu", "1Gi")))
	ns.Template(t, "avoid", harness.Requests(harness.Matching(harness.Share("gpu", "1Gi"), isNotA10)))
	ns.Template(t, "t4", harness.Requests(harness.OfClass("tesla-t4")))
	ns.Template(t, "share-a10", harness.Requests(harness.OfClass("share.nvidia-a10")))
	ns.Template(t, "whole-t4", harness.Requests(harness.OfClass("exclusive.tesla-t4")))
	for _, name := range []string{"tesla-t4", "share.nvidia-a10", "exclusive.tesla-t4"} {
		classComes(t, name)
	}
	cluster.IsLabelled(t, "switch", "Tesla-T4 15360MiB 1")

	tests := []struct {
		pod         *corev1.Pod
		node, model string
	}{
		{harness.Pod("by-label", "", harness.FromTemplate("share"), onOneOf("share", "switch"),
			selecting(harness.NameLabel, "Tesla-T4")), "switch", "Tesla-T4"},
		{harness.Pod("avoids-a10", "", harness.FromTemplate("avoid"), onOneOf("share", "switch")), "switch", "Tesla-T4"},
		{harness.Pod("by-class", "", harness.FromTemplate("share-a10"), onOneOf("mixed", "share", "switch")), "share",
			"NVIDIA-A10"},
		{harness.Pod("any-mode", "", harness.FromTemplate("t4"), onOneOf("share", "switch")), "switch", "Tesla-T4"},
		{harness.Pod("whole-of-mixed", "", harness.FromTemplate("whole-t4"), onOneOf("mixed", "share", "switch")), "mixed",
			"Tesla-T4"},
	}
	for _, test := range tests {
		ns.Run(t, test.pod)
		grants := ns.Granted(t, test.pod.Name)
		if len(grants) != 1 || grants[0].GPU.Node != test.node || grants[0].GPU.Model != test.model {
			t.Errorf("pod %s was granted %+v, want a %s of node %s", test.pod.Name, grants, test.model, test.node)
		}
		ns.SeesItsGPUs(t, test.pod.Name, "main", grants)
	}
	ns.Create(t, harness.Pod("nowhere", "share", harness.FromTemplate("avoid")))
	ns.WaitUnschedulable(t, "nowhere", noRoom)
}

// The leader is killed while there is work, and has no time to hand it over.
func TestControllerKilled(t *testing.T) {
	t.Parallel()
	// A controller is no node, but can be had for oneself in the same way.
	cluster.Whole(t, v1alpha1.ControllerName)
	cluster.Whole(t, "switch")
	setMode := cluster.Label(t, "switch", modeLabel)
	setCount := cluster.Label(t, "switch", harness.CountLabel)
	cluster.IsLabelled(t, "switch", "Tesla-T4 15360MiB 1")
	setMode("cgpu")
	began := time.Now()
	first := cluster.KillLeaderForGood(t).Spec
	second := leadsAfter(t, *first.HolderIdentity)
	setCount("")
	cluster.Publishes(t, "switch", "gpu-0-cgpu")
	classComes(t, "cgpu.tesla-t4")
	cluster.IsLabelled(t, "switch", "Tesla-T4 15360MiB 1")
	t.Logf("the other replica does the work %s after the leader was killed", since(began))
	// client-go's replicas compare the lease's times by whole seconds: of two renewals within a
	// second they count from the first.
	expires := first.RenewTime.Truncate(time.Second).Add(time.Duration(*first.LeaseDurationSeconds) * time.Second)
	if second.AcquireTime.Time.Before(expires) {
		t.Errorf("%s leads since %s, the lease of the one that was killed was valid until %s: it was handed over",
			*second.HolderIdentity, second.AcquireTime, expires)
	}
	setMode("share")
	cluster.Publishes(t, "switch", "gpu-0-share")
	classComes(t, "share.tesla-t4")
	classGoes(t, "cgpu.tesla-t4")
}

// leadsAfter waits until another replica of the controller leads than the one that did.
func leadsAfter(t *testing.T, before string) coordinationv1.LeaseSpec {
	t.Helper()
	var after coordinationv1.LeaseSpec
	harness.Eventually(t, "the other replica to lead", func(ctx context.Context) error {
		lease, err := cluster.Lease(ctx)
		if err != nil {
			return err
		}
		after = lease.Spec
		if holder := ptr.Deref(after.HolderIdentity, ""); holder == "" || holder == before {
			return fmt.Errorf("%q leads", holder)
		}
		return nil
	})
	return after
}

func TestModelIsChosenByCEL(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "mixed")
	ns := cluster.Namespace(t)
	ns.Template(t, "a10",
		harness.Requests(harness.Matching(harness.Exclusive("gpu", 1), `device.attributes["gpu.aliyun.com"].model == `+
			`"NVIDIA-A10"`)))
	ns.Template(t, "16g", harness.Requests(harness.Matching(harness.Exclusive("gpu", 1),
		`device.capacity["gpu.aliyun.com"].memory.compareTo(quantity("16Gi")) >= 0`)))
	ns.Run(t, harness.Pod("a", "mixed", harness.FromTemplate("a10")),
		harness.Pod("b", "mixed", harness.FromTemplate("a10")))
	ns.Create(t, harness.Pod("c", "mixed", harness.FromTemplate("a10")),
		harness.Pod("d", "mixed", harness.FromTemplate("16g")))

	for _, pod := range []string{"a", "b"} {
		grants := ns.Granted(t, pod)
		if len(grants) != 1 || grants[0].GPU.Model != "NVIDIA-A10" {
			t.Errorf("pod %s was granted %+v, want one A10", pod, grants)
		}
		ns.SeesItsGPUs(t, pod, "main", grants)
	}
	// The T4s are free, but neither A10s nor that large.
	ns.WaitUnschedulable(t, "c", noRoom)
	ns.WaitUnschedulable(t, "d", noRoom)
}
