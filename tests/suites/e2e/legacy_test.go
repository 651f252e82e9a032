// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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

// isAnnotated waits until a pod says, for legacy tools, what it has of which GPU.
func isAnnotated(t *testing.T, ns *harness.Namespace, pod, want string) {
	t.Helper()
	ns.WaitPod(t, pod, "to be annotated", func(got *corev1.Pod) error {
		return expect.Diff(want, got.Annotations[allocationAnnotation])
	})
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

// The first of a pod's Events is not a Warning about a template that is there a moment
// later.
func TestLegacyPodsStartWithoutAWarning(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	pod := harness.Asking("mem 1")
	ns.Run(t, harness.On("share", pod)...)
	events, err := ns.Client.CoreV1().Events(ns.Name).List(t.Context(),
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
	expect.NoError(t, err)
	for _, event := range events.Items {
		// On a machine with much to do the template may come after the eighth try.
		if event.Reason == "FailedResourceClaimCreation" && event.Count <= 8 {
			t.Errorf("pod %s, which runs, has the Event %s of %d tries: %s", pod.Name, event.Reason, event.Count, event.Message)
		}
	}
}

// What the API server itself refuses, and some of what each policy does: the module tests/policies tests all of that.
func TestLegacyPodsThatAreRefused(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		refused string
	}{
		"bytes": {harness.Asking("mem 10G"), "aliyun.com/gpu-mem 10G of container c0 is not a plain whole " +
			"number of GiB"},
		"half":     {harness.Asking("mem 0.5"), "must be an integer"},
		"negative": {harness.Asking("mem -3"), "must be greater than or equal to 0"},
		"different resources": {harness.Asking("mem 3", "mem 3 core 20"), "The requested gpu resource types should be " +
			"consistent for all containers"},
		"negative count": {harness.Labelled(harness.Asking("mem 8"), ack.PodLabelCount, "-1"),
			`"-1": a valid label must be`},
		"opted out": {harness.Labelled(harness.Asking("mem 3"), v1alpha1.LabelLegacy, "false"),
			"it opted out by its label gpu.aliyun.com/legacy=false. It would run without a GPU"},
		"requests only": {harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) {
			r := &p.Spec.Containers[0].Resources
			r.Requests, r.Limits = r.Limits, nil
		}), "Limit must be set for non overcommitable resources"},
		"other requests": {harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{ack.ResourceMemory: resource.MustParse("2")}
		}), "must be equal to aliyun.com/gpu-mem limit of 3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ns.Admitted(t.Context(), test.pod)
			harness.CheckRefusal(t, "pod", test.refused, err)
		})
	}
}

// An init container uses the share of the first container that has one.
func TestLegacyInitContainersAndSidecars(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	warmUp, sidecar := harness.Limited("warm-up", "mem 20"), harness.Limited("side", "mem 1")
	// The probe stays by itself; an init container has to end.
	warmUp.Command = []string{"/gpu-probe", "env"}
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	pod := harness.Asking("", "mem 3")
	pod.Spec.InitContainers = []corev1.Container{warmUp, sidecar}
	ns.Run(t, harness.On("share", pod)...)
	index := ns.Granted(t, pod.Name)[0].GPU.Index
	ns.HasEnv(t, pod.Name, "c1", harness.LegacyEnv(3, 22, 4, index))
	ns.HasEnv(t, pod.Name, "side", harness.LegacyEnv(1, 22, 4, index))
	ns.HasEnv(t, pod.Name, "c0", map[string]string{})
}
