// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// Two pods are allocated a GPU of which another pod has most, as by a scheduler that
// has lost its API server. Both are told what others hold, and wait in the state by which the page
// has the descheduler find them. The successor of the one that is evicted runs on another GPU, and so
// does the other one when it is made again.
func TestPodsWhoseGPUOthersHoldComeRight(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "bad")
	ns := cluster.Namespace(t)
	ns.Template(t, "twelve", harness.Requests(harness.Share("gpu", "12Gi")))
	ns.Template(t, "seven", harness.Requests(harness.Share("gpu", "7Gi")))
	seven := func(name string, options ...func(*corev1.Pod)) *corev1.Pod {
		return harness.Pod(name, "bad", append(options, harness.FromTemplate("seven"))...)
	}
	ns.Run(t, harness.Pod("first", "bad", harness.FromTemplate("twelve")))
	taken := ns.ClaimOf(t, "first").Status.Allocation
	g := ns.Granted(t, "first")[0].GPU.Index

	replicaSet(t, ns, "web", seven("web", harness.OfNobody))
	web := podOf(t, ns, "web", "")
	ns.Create(t, seven("bare", harness.OfNobody))
	for _, name := range []string{web.Name, "bare"} {
		ns.Promise(t, name, "bad", taken)
	}
	for _, name := range []string{web.Name, "bare"} {
		ns.WaitPodEvent(t, name, failedPrepare, promisedTwice+"; if others keep it, delete the pods that use the claim: ")
		ns.WaitPodEvent(t, name, failedPrepare, "7 GiB asked for, but 12 of 15 GiB are already granted")
		pod := ns.Get(t, name)
		if pod.Status.Phase != corev1.PodPending || !slices.ContainsFunc(pod.Status.Conditions,
			func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionFalse
			}) {
			t.Errorf("pod %s, which was refused, is %s with %v", name, pod.Status.Phase, pod.Status.Conditions)
		}
	}
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"schedulerName":%q}}}}`, corev1.DefaultSchedulerName)
	harness.Patch(t, ns.Client.AppsV1().ReplicaSets(ns.Name), "web", types.StrategicMergePatchType, patch)
	if err := ns.Client.CoreV1().Pods(ns.Name).EvictV1(t.Context(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: web.Name}}); err != nil {
		t.Fatal(err)
	}
	next := podOf(t, ns, "web", web.UID)
	ns.WaitRunning(t, next.Name)
	if got := ns.Granted(t, next.Name)[0].GPU.Index; got == g {
		t.Errorf("the pod that was made again is on GPU %d, of which the first has 12 GiB", got)
	}
	ns.Delete(t, "bare")
	ns.Run(t, seven("bare"))
}

// replicaSet makes a ReplicaSet of one pod, which ends with the test.
func replicaSet(t *testing.T, ns *harness.Namespace, name string, pod *corev1.Pod) {
	t.Helper()
	labels := map[string]string{"app": name}
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	sets := ns.Client.AppsV1().ReplicaSets(ns.Name)
	harness.Make(t, sets, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: ptr.To(int32(1)), Selector: metav1.SetAsLabelSelector(labels),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	})
	// Before the namespace is cleaned up, so that nothing makes its pod again.
	t.Cleanup(func() {
		if err := sets.Delete(harness.Context(t), name,
			metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
			t.Errorf("delete ReplicaSet %s: %v", name, err)
		}
	})
}

// podOf waits for the pod of a ReplicaSet, another one than the one with the UID.
func podOf(t *testing.T, ns *harness.Namespace, set string, but types.UID) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	harness.Eventually(t, "a pod of ReplicaSet "+set, func(ctx context.Context) error {
		pods, err := ns.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=" + set})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if pods.Items[i].UID != but {
				found = &pods.Items[i]
				return nil
			}
		}
		return errors.New("there is none")
	})
	return found
}
