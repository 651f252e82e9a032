// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
