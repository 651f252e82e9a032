// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// A pod that is there cannot come to ask in the manner of ACK: the policies look at
// pods when they are created.
func TestNoPodAsksLater(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	ns.Run(t, harness.Pod("p", "share"))
	limits := `{"resources":{"limits":{"aliyun.com/gpu-mem":"3"}}`
	for name, test := range map[string]struct{ subresource, patch, refused string }{
		"an update": {"", `{"spec":{"containers":[` + limits + `,"name":"main"}]}}`, "pod updates may not " +
			"change fields other than"},
		"a resize": {"resize", `{"spec":{"containers":[` + limits + `,"name":"main"}]}}`,
			"only cpu and memory resources are mutable"},
		"an ephemeral container": {"ephemeralcontainers", `{"spec":{"ephemeralContainers":[` + limits +
			`,"name":"e","image":"x"}]}}`, "cannot be set for an Ephemeral Container"},
	} {
		t.Run(name, func(t *testing.T) {
			var subresources []string
			if test.subresource != "" {
				subresources = []string{test.subresource}
			}
			_, err := ns.Client.CoreV1().Pods(ns.Name).Patch(t.Context(), "p", types.StrategicMergePatchType, []byte(test.patch),
				metav1.PatchOptions{DryRun: harness.DryRun}, subresources...)
			harness.CheckRefusal(t, "patch", test.refused, err)
		})
	}
	_, err := ns.Admitted(t.Context(), harness.Changed(harness.Asking("cpu 1"), func(p *corev1.Pod) {
		p.Spec.Resources = &corev1.ResourceRequirements{
			Limits: corev1.ResourceList{ack.ResourceMemory: resource.MustParse("3")}}
	}))
	harness.CheckRefusal(t, "a pod's own limits", "Unsupported value", err)
}

// Who names the node goes past the scheduler, which is what allocates: the kubelet
// does not start the pod.
func TestLegacyPodsThatNameTheirNodeDoNotRun(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	ns.Create(t, harness.Changed(harness.Asking("mem 3"), func(p *corev1.Pod) { p.Spec.NodeName = "share" }))
	ns.WaitPodEvent(t, "p", "FailedPrepareDynamicResources", "")
	ns.WaitPod(t, "p", "to have the kubelet say what its container does", func(pod *corev1.Pod) error {
		statuses := pod.Status.ContainerStatuses
		if len(statuses) != len(pod.Spec.Containers) {
			return fmt.Errorf("it tells of %d containers of %d", len(statuses), len(pod.Spec.Containers))
		}
		for _, status := range statuses {
			if status.State.Waiting == nil || status.ContainerID != "" {
				t.Errorf("container %s: %+v", status.Name, status)
			}
		}
		return nil
	})
	// A kubelet never lets go of a pod that is deleted before its claim is there
	// ("ResourceClaim not created yet", kubernetes/kubernetes#139772; seen on 1.37.1).
	ns.ClaimOf(t, "p")
}

// LimitRanger puts limits back after they were converted, and compares its maximum with them.
func TestLimitRangesOnLegacyResources(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	limitRange := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{ack.ResourceMemory: resource.MustParse("8")},
		}}}}
	harness.Make(t, ns.Client.CoreV1().LimitRanges(ns.Name), limitRange)
	harness.Eventually(t, "the API server to know the LimitRange", func(ctx context.Context) error {
		_, err := ns.Admitted(ctx, harness.Asking("mem 12"))
		if err == nil {
			return errors.New("the pod is taken")
		}
		harness.CheckRefusal(t, "more than the maximum", "maximum aliyun.com/gpu-mem usage per Container is 8, but limit is "+
			"12", err)
		return nil
	})
	pod, err := ns.Admitted(t.Context(), harness.Asking("mem 3"))
	expect.NoError(t, err)
	if limit := pod.Spec.Containers[0].Resources.Limits[ack.ResourceMemory]; !limit.IsZero() ||
		len(pod.Spec.ResourceClaims) != 1 {
		t.Errorf("a pod below the maximum has limit %v and claims %v", limit, pod.Spec.ResourceClaims)
	}
}
