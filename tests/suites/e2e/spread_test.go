// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// The tables of spread, for the way people create pods. However many come at once, what
// is taken of two GPUs never differs by more than the largest share.
func TestSpreadIsEvenForDeployments(t *testing.T) {
	cluster.First(t)
	t.Parallel()
	cluster.Whole(t, "fill")
	cluster.FreshPlugin(t, "fill")
	cluster.Label(t, "fill", ack.NodeLabelPlacement)("spread")
	legacy := func(gib int) *corev1.Pod { return harness.Asking(fmt.Sprintf("mem %d", gib)) }
	for _, test := range []struct {
		name string
		run  func(t *testing.T, ns *harness.Namespace)
		want []int64
	}{
		{"scaled up", func(t *testing.T, ns *harness.Namespace) {
			ns.Deploy(t, deploymentOn("d", 1, legacy(4), "fill"))
			for _, replicas := range []int{1, 3, 8} {
				ns.Scale(t, "d", replicas)
				ns.PodsOf(t, "d", replicas)
			}
		}, []int64{8, 8, 8, 8}},
		{"claims", func(t *testing.T, ns *harness.Namespace) {
			ns.Template(t, "four", harness.Requests(harness.Share("gpu", "4Gi")))
			ns.Deploy(t, deploymentOn("d", 8, harness.Pod("p", "fill", harness.FromTemplate("four")), "fill"))
			ns.PodsOf(t, "d", 8)
		}, []int64{8, 8, 8, 8}},
		{"several containers", func(t *testing.T, ns *harness.Namespace) {
			ns.Deploy(t, deploymentOn("d", 8, harness.Asking("mem 2", "mem 1"), "fill"))
			ns.PodsOf(t, "d", 8)
		}, []int64{6, 6, 6, 6}},
		{"several GPUs", func(t *testing.T, ns *harness.Namespace) {
			pod := harness.Labelled(harness.Asking("mem 6"), ack.PodLabelCount, "2")
			ns.Deploy(t, deploymentOn("d", 4, pod, "fill"))
			ns.PodsOf(t, "d", 4)
		}, []int64{6, 6, 6, 6}},
		{"the plugin restarted", func(t *testing.T, ns *harness.Namespace) {
			ns.Deploy(t, deploymentOn("d", 3, legacy(4), "fill"))
			ns.PodsOf(t, "d", 3)
			hasTaken(t, ns, "fill", 0, 4, 4, 4)
			cluster.KillPlugin(t, "fill")()
			ns.Scale(t, "d", 8)
			ns.PodsOf(t, "d", 8)
		}, []int64{8, 8, 8, 8}},
	} {
		t.Run(test.name, func(t *testing.T) {
			spreadNode(t, "fill", 4)
			watchEvenness(t, map[string]int{"fill": 4})
			ns := cluster.Namespace(t)
			test.run(t, ns)
			hasTaken(t, ns, "fill", test.want...)
		})
	}
	t.Run("of all sizes", func(t *testing.T) {
		spreadNode(t, "fill", 4)
		watchEvenness(t, map[string]int{"fill": 4})
		ns := cluster.Namespace(t)
		sizes := []int{1, 5, 2, 6, 3}
		for _, gib := range sizes {
			ns.Deploy(t, deploymentOn(fmt.Sprintf("of-%d", gib), 2, legacy(gib), "fill"))
		}
		for _, gib := range sizes {
			ns.PodsOf(t, fmt.Sprintf("of-%d", gib), 2)
		}
	})
}

func TestSpreadIsEvenOnTwoNodes(t *testing.T) {
	t.Parallel()
	gpus := map[string]int{"fill": 4, flipNode: 4}
	for _, node := range []string{"fill", flipNode} {
		cluster.Whole(t, node)
		cluster.Label(t, node, ack.NodeLabelPlacement)("spread")
		spreadNode(t, node, 4)
	}
	watchEvenness(t, gpus)
	ns := cluster.Namespace(t)
	ns.Deploy(t, deploymentOn("d", 16, harness.Asking("mem 4"), "fill", flipNode))
	ns.PodsOf(t, "d", 16)
}

// What a spread node holds back for the sake of evenness is there for whoever needs it.
func TestNothingWaitsForEverWhereSharesAreSpread(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	cluster.FreshPlugin(t, "fill")
	cluster.Label(t, "fill", ack.NodeLabelPlacement)("spread")
	start := func(t *testing.T) *harness.Namespace {
		spreadNode(t, "fill", 4)
		ns := cluster.Namespace(t)
		ns.Template(t, "first", harness.Requests(harness.Capped("share", 0, "memory", "4Gi")))
		return ns
	}
	t.Run("claims that name a GPU", func(t *testing.T) {
		ns := start(t)
		for _, name := range []string{"a", "b", "c"} {
			ns.Run(t, harness.Pod(name, "fill", harness.FromTemplate("first")))
		}
		ns.HasUnits(t, "fill", 12, 0, 0, 0)
	})
	t.Run("claims for several GPUs", func(t *testing.T) {
		ns := start(t)
		ns.Run(t, harness.Pod("a", "fill", harness.FromTemplate("first")))
		pod := harness.Labelled(harness.Asking("mem 8"), ack.PodLabelCount, "4")
		ns.Run(t, harness.On("fill", pod)...)
		ns.HasUnits(t, "fill", 6, 2, 2, 2)
	})
	// The kubelet tries again for its pods that met no plugin, some time later; the others
	// need not wait for them.
	t.Run("while the plugin restarts", func(t *testing.T) {
		ns := start(t)
		wait := cluster.KillPlugin(t, "fill")
		ns.Deploy(t, deploymentOn("d", 8, harness.Asking("mem 4"), "fill"))
		wait()
		began := time.Now()
		harness.Eventually(t, "8 pods to be ready", func(ctx context.Context) error {
			d, err := ns.Client.AppsV1().Deployments(ns.Name).Get(ctx, "d", metav1.GetOptions{})
			if err == nil && d.Status.ReadyReplicas < 8 {
				err = fmt.Errorf("%d are", d.Status.ReadyReplicas)
			}
			return err
		})
		t.Logf("8 pods run %s after the plugin does again", since(began))
	})
	// Nobody but the scheduler knows what a pod was allocated that waits for its volumes.
	t.Run("beside a pod that never starts", func(t *testing.T) {
		ns := start(t)
		stuck := harness.Pod("stuck", "fill", harness.FromTemplate("first"))
		stuck.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "missing"}},
		}}}
		stuck.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		ns.Create(t, stuck)
		ns.WaitBound(t, stuck.Name)
		ns.Deploy(t, deploymentOn("d", 9, harness.Asking("mem 4"), "fill"))
		ns.PodsOf(t, "d", 9)
	})
}

// binpack: a share goes to the fullest GPU that has room for it.
func TestBinpackFillsTheFullestGPU(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	packedNode(t, "fill", 4)
	ns := cluster.Namespace(t)
	ns.Template(t, "three", harness.Requests(harness.Capped("share", 0, "memory", "3Gi")))
	ns.Template(t, "nine", harness.Requests(harness.Capped("share", 1, "memory", "9Gi")))
	ns.Run(
		t,
		harness.Pod("three", "fill", harness.FromTemplate("three")),
		harness.Pod("nine", "fill", harness.FromTemplate("nine")),
	)
	cluster.Slice(t, "fill", "offers the fullest GPU first", func(slice *resourceapi.ResourceSlice) error {
		if devices := slice.Spec.Devices; len(devices) == 0 || devices[0].Name != "gpu-1-share" {
			return fmt.Errorf("it offers %d GPUs, or another one first", len(devices))
		}
		return nil
	})
	ns.Deploy(t, deploymentOn("d", 1, harness.Asking("mem 3"), "fill"))
	ns.PodsOf(t, "d", 1)
	ns.HasUnits(t, "fill", 3, 12, 0, 0)
	ns.Scale(t, "d", 3)
	ns.PodsOf(t, "d", 3)
	ns.HasUnits(t, "fill", 6, 15, 0, 0)
}
