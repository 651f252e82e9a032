// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// A pod that is deleted by force while its node's kubelet hangs keeps its GPU, and the node says
// so. A new kubelet ends it, whatever grace period it has.
func TestPodThatIsGoneAndDoesNotEnd(t *testing.T) {
	t.Parallel()
	const node, year = "kill", 31536000
	cluster.Whole(t, node)
	ns := cluster.Namespace(t)
	tenant := ns.Tenant(t)
	ns.Template(t, "most", harness.Requests(harness.Share("gpu", "12Gi")))
	ns.Run(t, harness.Pod("forced", node, harness.FromTemplate("most"), stopsSlowly(year)))
	claim := ns.ClaimOf(t, "forced")
	runs := ns.StillRuns(t, "forced")
	ns.SetGPUProcesses(t, node, harness.GPUProcess{GPU: 0, Pod: "forced", MemoryMiB: 9000})
	cluster.PauseKubelet(t, node)
	began := time.Now()
	expect.NoError(t, tenant.CoreV1().Pods(ns.Name).Delete(t.Context(), "forced",
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}))
	cluster.WaitNodeEvent(t, node, began, v1alpha1.ReasonUsedByGonePod, "1 process on GPU 0 of pod "+ns.Name+"/forced")
	t.Logf("the node said it %s after the deletion", since(began))
	offered(t, node, 3)
	if !runs() {
		t.Fatal("the pod that was deleted by force has ended: there is nothing to be told")
	}
	_, stderr := cluster.Inspect(t, "--use=always", node)
	if want := "Pods that are gone still use GPUs of node " + node + ": 9000 MiB of GPU 0 by claim " + ns.Name + "/" +
		claim.Name; !strings.Contains(stderr, want) {
		t.Errorf("inspect says %q, want %q", stderr, want)
	}
	cluster.Tool(t, "node", "restart-kubelet", node)
	offered(t, node, 15)
	if runs() {
		t.Error("what a running container uses was released")
	}
}

// The option bounds the grace period. The test has the cluster to itself: others have pods that
// the option refuses.
func TestOptionGraceLimit(t *testing.T) {
	const node, year = "kill", 31536000
	ns := cluster.Namespace(t)
	tenant := ns.Tenant(t)
	ns.Template(t, "most", harness.Requests(harness.Share("gpu", "12Gi")))
	// From before the option, and over its bound: nobody can change what the pod states, but delete it.
	ns.Run(t, harness.Pod("before", node, harness.FromTemplate("most"), func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(900))
	}))
	remove := ns.Option(t, "grace-limit")
	dryRun := func(ctx context.Context) error {
		pod := harness.Pod("refused", node, harness.FromTemplate("most"), stopsSlowly(year))
		_, err := tenant.CoreV1().Pods(ns.Name).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	harness.Eventually(t, "a grace period of a year to be refused", func(ctx context.Context) error {
		err := dryRun(ctx)
		if err == nil {
			return errors.New("it is not")
		}
		harness.CheckRefusal(t, "pod", "pods with GPUs may take 600 seconds to end in namespace "+ns.Name, err)
		return nil
	})
	ns.Delete(t, "before")
	ns.Run(t, harness.Pod("kept", node, harness.FromTemplate("most")))
	err := tenant.CoreV1().Pods(ns.Name).Delete(t.Context(), "kept",
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(year))})
	harness.CheckRefusal(t, "deletion", "this states a grace period of 31536000", err)
	remove()
	harness.Eventually(t, "a grace period of a year to be taken", dryRun)
}
