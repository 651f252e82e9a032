// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
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

func TestNodesAreLabelledByTheirGPUs(t *testing.T) {
	t.Parallel()
	// On this node a test loses a GPU for a while.
	cluster.Share(t, topoNode)
	for node, want := range map[string]string{
		"fill":   "Tesla-V100-SXM2-16GB 16130MiB 4",
		"share":  "NVIDIA-A10 23028MiB 4",
		"whole":  "NVIDIA-A100-SXM4-80GB 81920MiB 8",
		"mixed":  "NVIDIA-A10 23028MiB 4",
		"broken": "NVIDIA-A10 23028MiB 2",
		// Several slices; several devices of one GPU.
		"topo":    "Tesla-V100-SXM2-32GB 32510MiB 8",
		"dynamic": "NVIDIA-A100-SXM4-80GB 81920MiB 8",
	} {
		cluster.IsLabelled(t, node, want)
	}
	classComes(t, "topology.tesla-v100-sxm2-32gb")
	for _, mode := range []string{"cgpu", "core-mem", "exclusive", "mps", "share"} {
		classComes(t, mode+".nvidia-a100-sxm4-80gb")
	}
	cluster.WaitNodeEvent(t, "mixed", time.Time{}, "GPUModelsDiffer", "NVIDIA-A10 with 23028 MiB (0, 1); Tesla-T4 with "+
		"15360 MiB (2, 3)")
}

func TestLabelsThatSomebodyElseWroteStay(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	cluster.IsLabelled(t, "switch", "Tesla-T4 15360MiB 1")
	began := time.Now()
	setMemory := cluster.Label(t, "switch", harness.MemoryLabel)
	setMemory("16160MiB")
	cluster.WaitNodeEvent(t, "switch", began, "GPULabelsNotOurs", harness.MemoryLabel+` is "16160MiB", want "15360MiB"`)
	cluster.IsLabelled(t, "switch", "Tesla-T4 16160MiB 1")
	setMemory("")
	cluster.IsLabelled(t, "switch", "Tesla-T4 15360MiB 1")
}

func TestClassesComeAndGoWithTheGPUs(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	setMode := cluster.Label(t, "switch", modeLabel)
	ns := cluster.Namespace(t)
	classComes(t, "tesla-t4")
	classComes(t, "share.tesla-t4")
	ns.Claim(t, "names-it", harness.Requests(harness.OfClass("share.tesla-t4")))

	// Of the classes that have lost their GPUs, the one that a claim names stays.
	// It lost them before the other one did: what holds when that is gone holds
	// because of the claim.
	setMode("cgpu")
	cluster.Publishes(t, "switch", "gpu-0-cgpu")
	classComes(t, "cgpu.tesla-t4")
	setMode("default")
	cluster.Publishes(t, "switch", "gpu-0")
	classGoes(t, "cgpu.tesla-t4")
	if _, err := class(t.Context(), "share.tesla-t4"); err != nil {
		t.Errorf("the class that a claim names: %v", err)
	}
	expect.NoError(t, ns.Client.ResourceV1().ResourceClaims(ns.Name).Delete(t.Context(), "names-it",
		metav1.DeleteOptions{}))
	classGoes(t, "share.tesla-t4")

	// The same for a template, which pods make claims of.
	setMode("share")
	cluster.Publishes(t, "switch", "gpu-0-share")
	classComes(t, "share.tesla-t4")
	ns.Template(t, "names-it", harness.Requests(harness.OfClass("share.tesla-t4")))
	setMode("cgpu")
	cluster.Publishes(t, "switch", "gpu-0-cgpu")
	classComes(t, "cgpu.tesla-t4")
	setMode("share")
	cluster.Publishes(t, "switch", "gpu-0-share")
	classGoes(t, "cgpu.tesla-t4")
	ns.Run(t, harness.Pod("a", "switch", harness.FromTemplate("names-it")))
	ns.SeesItsGPUs(t, "a", "main", ns.Granted(t, "a"))
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

// A model that neither a label nor a name can hold: longer than an attribute, with
// characters that are not allowed, and with a character where the attribute ends.
func TestModelWithAnOddName(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	ns := cluster.Namespace(t)
	product := "Quadro RTX 6000/8000 显卡 " + strings.Repeat("LONG ", 6) + "X卡卡卡卡卡卡卡卡"
	model := "Quadro-RTX-6000/8000-显卡-" + strings.Repeat("LONG-", 6) + "X卡"
	usual := cluster.ChangeMachine(t, "switch", func(s *sim.Spec) {
		for key, m := range s.Models {
			m.ProductName = product
			s.Models[key] = m
		}
	})
	putBack := func() {
		usual()
		cluster.ReplacePlugin(t, "switch")
		cluster.IsLabelled(t, "switch", "Tesla-T4 15360MiB 1")
	}
	cluster.ReplacePlugin(t, "switch")
	cluster.IsLabelled(t, "switch", deviceclasses.LabelValue(model)+" 15360MiB 1")
	name := "share." + deviceclasses.ClassLabel(model)
	classComes(t, name)
	ns.Template(t, "odd", harness.Requests(harness.OfClass(name)))
	ns.Run(t, harness.Pod("a", "switch", harness.FromTemplate("odd")))
	if grants := ns.Granted(t, "a"); len(grants) != 1 || grants[0].GPU.Model != model {
		t.Errorf("granted %+v, want a %s", grants, model)
	}
	ns.Delete(t, "a")
	expect.NoError(t, ns.Client.ResourceV1().ResourceClaimTemplates(ns.Name).Delete(t.Context(), "odd",
		metav1.DeleteOptions{}))
	putBack()
	classGoes(t, name)
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
