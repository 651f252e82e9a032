// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// stopsSlowly has a pod's containers go on for so many seconds after the pod is told to
// end.
func stopsSlowly(seconds int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = ptr.To(seconds)
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Lifecycle = &corev1.Lifecycle{
				PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}}
		}
	}
}

// What a tenant's pod holds stays allocated while the pod is there, whatever the tenant
// does to the claim. In the ordinary way everything ends.
func TestTenantKeepsWhatItsPodsHoldAllocated(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "whole")
	ns := cluster.Namespace(t)
	tenant := ns.Tenant(t)
	ns.Claim(t, "bare", harness.Requests(harness.Exclusive("gpu", 1)))
	ns.Template(t, "one", harness.Requests(harness.Exclusive("gpu", 1)))
	ns.Run(t,
		harness.Pod("a", "whole", harness.FromClaim("bare"), stopsSlowly(3600)),
		harness.Pod("b", "whole", harness.FromTemplate("one"), stopsSlowly(3600)),
	)
	claims := tenant.ResourceV1().ResourceClaims(ns.Name)
	for pod, name := range map[string]string{"a": "bare", "b": ns.ClaimOf(t, "b").Name} {
		for what, attempt := range map[string]func() error{
			"patch the finalizers away": func() error {
				_, err := claims.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
					metav1.PatchOptions{})
				return err
			},
			"replace the finalizer by another": func() error {
				_, err := claims.Patch(t.Context(), name, types.JSONPatchType,
					[]byte(`[{"op":"replace","path":"/metadata/finalizers","value":["tenant.example.com/mine"]}]`),
					metav1.PatchOptions{})
				return err
			},
		} {
			harness.CheckRefusal(t, what, "keeps the finalizer resource.kubernetes.io/delete-protection", attempt())
		}
		expect.NoErrorf(t, claims.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}),
			"a claim in use cannot be deleted")
		_, err := claims.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{})
		harness.CheckRefusal(t, "patch the finalizers of a claim that is deleted", "keeps the finalizer", err)
		// The status is not the tenant's to write.
		_, err = claims.Patch(t.Context(), name, types.MergePatchType, []byte(`{"status":null}`), metav1.PatchOptions{},
			"status")
		checkForbidden(t, "take the allocation back", err)
		stillAllocated(t, ns, name)

		pods := tenant.CoreV1().Pods(ns.Name)
		if err := pods.Delete(t.Context(), pod, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(1))}); err != nil {
			t.Errorf("a pod cannot be deleted with a grace period of a second: %v", err)
		}
		harness.Eventually(t, "pod "+pod+" and its claim to be gone", func(ctx context.Context) error {
			_, podErr := pods.Get(ctx, pod, metav1.GetOptions{})
			_, claimErr := claims.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(podErr) && apierrors.IsNotFound(claimErr) {
				return nil
			}
			return errors.Join(errors.New("they are not"), podErr, claimErr)
		})
	}
}

func checkForbidden(t *testing.T, what string, err error) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Errorf("%s: %v, want it forbidden", what, err)
	}
}

func stillAllocated(t *testing.T, ns *harness.Namespace, name string) {
	t.Helper()
	claim, err := ns.Client.ResourceV1().ResourceClaims(ns.Name).Get(t.Context(), name, metav1.GetOptions{})
	if err == nil && (claim.Status.Allocation == nil || len(claim.Status.ReservedFor) == 0) {
		err = fmt.Errorf("its status is %+v", claim.Status)
	}
	if err != nil {
		t.Errorf("claim %s, which a pod uses, is not allocated: %v", name, err)
	}
}

// A pod that is deleted by force is gone at once for the scheduler, while its containers
// stop. Until they have, what they use is not released: here that takes as long as the plugin
// takes to find that nobody has the claim any more.
func TestWhatAPodHoldsThatWasDeletedByForce(t *testing.T) {
	t.Parallel()
	const node = "switch"
	cluster.Whole(t, node)
	ns := cluster.Namespace(t)
	tenant := ns.Tenant(t)
	ns.Template(t, "most", harness.Requests(harness.Share("gpu", "12Gi")))
	ns.Run(t, harness.Pod("forced", node, harness.FromTemplate("most")))
	claim := ns.ClaimOf(t, "forced")
	runs := ns.StillRuns(t, "forced")
	held := func() (bool, error) {
		records, err := cluster.Records(node)
		return slices.ContainsFunc(records, func(r state.Record) bool { return r.UID == claim.UID }), err
	}
	// It would end the container within a second, whatever grace the pod has.
	resume := cluster.PauseKubelet(t, node)
	began := time.Now()
	expect.NoError(t, tenant.CoreV1().Pods(ns.Name).Delete(t.Context(), "forced",
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}))
	cluster.WaitNodeEvent(t, node, began, "GPUHeldByGoneClaim", "GPU 0 by claim "+ns.Name+"/"+claim.Name)
	offered(t, node, 3)
	if is, err := held(); err != nil || !is || !runs() {
		t.Fatalf("a container of a pod that was deleted by force runs: %t; what it uses is held: %t (%v); want both", runs(),
			is, err)
	}
	resume()
	harness.Eventually(t, "what the pod used to be released", func(context.Context) error {
		is, err := held()
		switch {
		case err != nil:
			return err
		case is:
			return errors.New("it is held")
		case runs():
			t.Fatal("what a running container uses was released")
		}
		return nil
	})
	offered(t, node, 15)
}

// A process that the container runtime has lost does not keep its pod from ending: the kubelet kills it once the
// plugin lets it. Until the process has ended, nobody else gets what it uses.
func TestProcessThatTheRuntimeHasLost(t *testing.T) {
	cluster.First(t)
	t.Parallel()
	const node = "share"
	cluster.Share(t, node)
	ns := cluster.Namespace(t)
	ns.Template(t, "some", harness.Requests(harness.Share("gpu", "2Gi")))
	ns.Run(t, harness.Pod("loses", node, harness.FromTemplate("some")))
	claim := ns.ClaimOf(t, "loses")
	ended := ns.Lose(t, "loses", "main")
	began := time.Now()
	cluster.Idles(t)
	ns.Delete(t, "loses")
	t.Logf("pod and claim are gone %s after the deletion", since(began))
	harness.Eventually(t, "what the process used to be released", func(context.Context) error {
		records, err := cluster.Records(node)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(records, func(r state.Record) bool { return r.UID == claim.UID }) {
			return errors.New("it is held")
		}
		select {
		case <-ended:
		default:
			t.Fatal("what a running process uses was released")
		}
		return nil
	})
	t.Logf("all is released %s after the deletion", since(began))
}

// offered waits until the node's first GPU is offered with so many GiB.
func offered(t *testing.T, node string, units int64) {
	t.Helper()
	cluster.Devices(t, node, fmt.Sprintf("%d GiB of the GPU", units), func(devices []resourceapi.Device) error {
		if len(devices) == 0 {
			return errors.New("there are no GPUs")
		}
		if memory := devices[0].Capacity["memory"].Value; memory.Value() != units<<30 {
			return fmt.Errorf("%s are offered", memory.String())
		}
		return nil
	})
}
