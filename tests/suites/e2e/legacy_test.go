// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// Templates go when nothing needs them; the cluster under test has a short grace.
func templatesGo(t *testing.T, ns *harness.Namespace) {
	t.Helper()
	harness.Eventually(t, "the claim templates to be gone", func(ctx context.Context) error {
		list, err := ns.Client.ResourceV1().ResourceClaimTemplates(ns.Name).List(ctx,
			metav1.ListOptions{LabelSelector: v1alpha1.LabelLegacy + "=true"})
		if err != nil {
			return err
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("%d are there, the first is %s", len(list.Items), list.Items[0].Name)
		}
		return nil
	})
}

// ACK's sample: 1 and 7 units of one GPU.
func TestLegacyContainersShareOneGPU(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	pod := harness.Document[corev1.Pod](t, "two-containers.yaml")
	ns.Run(t, harness.On("share", pod)...)
	grants := ns.Granted(t, pod.Name)
	if len(grants) != 2 || grants[0].GPU.UUID != grants[1].GPU.UUID {
		t.Fatalf("granted %+v, want two shares of one GPU", grants)
	}
	index := grants[0].GPU.Index
	ns.HasEnv(t, pod.Name, "small", harness.LegacyEnv(1, 22, 8, index))
	ns.HasEnv(t, pod.Name, "large", harness.LegacyEnv(7, 22, 8, index))
	ns.SeesItsGPUs(t, pod.Name, "small", grants)
	ns.Delete(t, pod.Name)
	templatesGo(t, ns)
}

func TestLegacyPodOnFourGPUs(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	pod := harness.Document[corev1.Pod](t, "four-gpus.yaml")
	ns.Run(t, harness.On("share", pod)...)
	grants := ns.Granted(t, pod.Name)
	var gpus []int64
	for _, grant := range grants {
		gpus = append(gpus, grant.GPU.Index)
	}
	expect.Equal(t, []int64{0, 1, 2, 3}, slices.Sorted(slices.Values(gpus)), "the GPUs of the pod")
	ns.HasEnv(t, pod.Name, "main", harness.LegacyEnv(2, 22, 8, gpus...))
	ns.SeesItsGPUs(t, pod.Name, "main", grants)
}

// Each container has its part of each GPU, all have the same GPUs.
func TestLegacyGPUsOfSeveralContainers(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	pod := harness.Labelled(harness.Asking("mem 8", "mem 2"), ack.PodLabelCount, "2")
	ns.Run(t, harness.On("share", pod)...)
	grants := ns.Granted(t, pod.Name)
	var gpus []int64
	for _, grant := range grants {
		if !slices.Contains(gpus, grant.GPU.Index) {
			gpus = append(gpus, grant.GPU.Index)
		}
	}
	if len(grants) != 4 || len(gpus) != 2 {
		t.Fatalf("%d shares of GPUs %d, want 4 of two GPUs", len(grants), gpus)
	}
	slices.Sort(gpus)
	ns.HasEnv(t, pod.Name, "c0", harness.LegacyEnv(4, 22, 10, gpus...))
	ns.HasEnv(t, pod.Name, "c1", harness.LegacyEnv(1, 22, 10, gpus...))
	for _, container := range []string{"c0", "c1"} {
		ns.SeesItsGPUs(t, pod.Name, container, grants)
	}
	isAnnotated(t, ns, pod.Name, fmt.Sprintf(`{"0":{"%[1]d":4,"%[2]d":4},"1":{"%[1]d":1,"%[2]d":1}}`, gpus[0], gpus[1]))
}

// isAnnotated waits until a pod says, for legacy tools, what it has of which GPU.
func isAnnotated(t *testing.T, ns *harness.Namespace, pod, want string) {
	t.Helper()
	ns.WaitPod(t, pod, "to be annotated", func(got *corev1.Pod) error {
		return expect.Diff(want, got.Annotations[allocationAnnotation])
	})
}

// An init container uses the share of the first container that has one.
func TestLegacyInitContainersAndSidecars(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	pod := harness.WithInit(harness.Asking("", "mem 3"), harness.Limited("warm-up", "mem 20"),
		harness.Sidecar(harness.Limited("side", "mem 1")))
	// The probe stays by itself; an init container has to end.
	pod.Spec.InitContainers[0].Command = []string{"/gpu-probe", "env"}
	ns.Run(t, harness.On("share", pod)...)
	index := ns.Granted(t, pod.Name)[0].GPU.Index
	ns.HasEnv(t, pod.Name, "c1", harness.LegacyEnv(3, 22, 4, index))
	ns.HasEnv(t, pod.Name, "side", harness.LegacyEnv(1, 22, 4, index))
	ns.HasEnv(t, pod.Name, "c0", map[string]string{})
}

func TestLegacyGPUs(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, topoNode)
	ns := cluster.Namespace(t)
	pair, three := harness.Document[corev1.Pod](t, "linked-gpus.yaml"), harness.Asking("gpu 3")
	ns.Run(t, harness.On(topoNode, pair, three)...)
	machine := dgx1(t)
	seesLinkedGPUs(t, ns, pair.Name, machine)
	if grants := ns.Granted(t, pair.Name); len(grants) != 2 {
		t.Errorf("granted %+v, want two GPUs", grants)
	}
	if grants := ns.Granted(t, three.Name); len(grants) != 3 {
		t.Errorf("granted %+v, want three GPUs", grants)
	}
}

// Memory alone is for nodes that grant memory alone, and the reverse.
func TestLegacyPodsKeepToTheirModes(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, modesNode)
	ns := cluster.Namespace(t)
	setMode := cluster.Label(t, modesNode, modeLabel)
	memory, compute, wholeDevice := harness.Asking("mem 3"), harness.Document[corev1.Pod](t, "memory-and-compute.yaml"),
		harness.Labelled(harness.Asking("mem 15"), ack.PodLabelPlacement, ack.RequireWholeDevice)
	memory.Name, wholeDevice.Name = "memory", "whole-device"
	memory.Spec.HostIPC = true
	harness.On(modesNode, memory, compute, wholeDevice)

	setMode("mps")
	cluster.Publishes(t, modesNode, harness.DevicesIn("mps")...)
	// One after the other, so that it is known which GPUs they get.
	ns.Run(t, memory)
	ns.Create(t, compute)
	ns.Run(t, wholeDevice)
	ns.HasEnv(t, memory.Name, "c0", harness.WithEnv(harness.LegacyEnv(3, 15, 3, 0), "CUDA_MPS_PIPE_DIRECTORY", pipeDir,
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3226M"))
	ns.HasUnits(t, modesNode, 3, 15, 0, 0)
	ns.WaitUnschedulable(t, compute.Name, noRoom)
	ns.Delete(t, memory.Name, wholeDevice.Name)

	setMode("core_mem")
	cluster.Publishes(t, modesNode, harness.DevicesIn("core-mem")...)
	ns.Create(t, memory)
	ns.WaitRunning(t, compute.Name)
	ns.HasEnv(t, compute.Name, "main", harness.WithEnv(harness.LegacyEnv(3, 15, 3, 0), "ALIYUN_COM_GPU_SCHD_WEIGHT", "4",
		"CUDA_MPS_PIPE_DIRECTORY", pipeDir, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3226M",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20"))
	ns.WaitUnschedulable(t, memory.Name, noRoom)
}

// A template that is removed under a waiting pod comes back, and so the pod runs.
func TestTemplateOfAWaitingPodComesBack(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	pod := harness.Asking("mem 2")
	harness.On("share", pod)
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "e2e.gpu.aliyun.com/gate"}}
	ns.Create(t, pod)
	templates := ns.Client.ResourceV1().ResourceClaimTemplates(ns.Name)
	comes := func() (uid string) {
		harness.Becomes(t, templates, "gpushare.mem.c0.2", "the pod's template",
			func(template *resourceapi.ResourceClaimTemplate) error {
				uid = string(template.UID)
				return nil
			})
		return uid
	}
	first := comes()
	expect.NoError(t, templates.Delete(t.Context(), "gpushare.mem.c0.2", metav1.DeleteOptions{}))
	if second := comes(); second == first {
		t.Error("the template was not removed")
	}
	// Kubernetes writes to the pod as well at this moment.
	harness.Patch(t, ns.Client.CoreV1().Pods(ns.Name), pod.Name, types.MergePatchType, `{"spec":{"schedulingGates":null}}`)
	ns.WaitRunning(t, pod.Name)
}

// The quota that docs/legacy.md gives in place of one on requests.aliyun.com/gpu-mem.
func TestQuotaOnSharesOfLegacyPods(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			"memory.gpu.aliyun.com.deviceclass.resource.k8s.io/devices": resource.MustParse("2"),
		}}}
	harness.Make(t, ns.Client.CoreV1().ResourceQuotas(ns.Name), quota)
	harness.Eventually(t, "the quota to count", func(ctx context.Context) error {
		q, err := ns.Client.CoreV1().ResourceQuotas(ns.Name).Get(ctx, "gpu", metav1.GetOptions{})
		if err == nil && len(q.Status.Used) == 0 {
			err = errors.New("it has no status")
		}
		return err
	})
	two, more := harness.Asking("mem 1", "mem 1"), harness.Asking("mem 1")
	two.Name, more.Name = "two", "more"
	harness.On("share", two, more)
	ns.Run(t, two)
	ns.Create(t, more)
	ns.WaitPodEvent(t, "more", "FailedResourceClaimCreation", "exceeded quota: gpu")
}
