// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const placementLabel = "gpu.aliyun.com/node-placement"

// placeNodes applies an option of deployments/options that says which nodes shares go to,
// and waits until a pod has its preference.
func placeNodes(t *testing.T, ns *harness.Namespace, option string, prefers func(*corev1.Affinity) bool) {
	t.Helper()
	if output, err := ns.Kubectl(t, "apply", "-k", "../../../deployments/options/"+option); err != nil {
		t.Fatalf("apply option %s: %v: %s", option, err, output)
	}
	harness.Eventually(t, "option "+option+" to give pods its preference", func(ctx context.Context) error {
		pod, err := ns.Admitted(ctx, harness.Asking("mem 3"))
		if err == nil && (pod.Spec.Affinity == nil || !prefers(pod.Spec.Affinity)) {
			err = fmt.Errorf("it has the affinity %v", pod.Spec.Affinity)
		}
		return err
	})
}

// stopPlacing takes the options away, which are the same objects.
func stopPlacing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Timeout)
	defer cancel()
	api, options := cluster.Client.AdmissionregistrationV1(), metav1.DeleteOptions{}
	const placement, advice = "gpushare-node-placement", "gpushare-node-placement-advice"
	if err := errors.Join(api.MutatingAdmissionPolicyBindings().Delete(ctx, placement, options),
		api.MutatingAdmissionPolicies().Delete(ctx, placement, options),
		api.ValidatingAdmissionPolicyBindings().Delete(ctx, advice, options),
		api.ValidatingAdmissionPolicies().Delete(ctx, advice, options)); err != nil {
		t.Errorf("take the options away again: %v", err)
	}
}

// deploy makes a Deployment of four pods and returns how many of them run on each node that
// has any, fewest first. As many were planned.
func deploy(t *testing.T, ns *harness.Namespace, name string) (counts []int, nodes map[string]int) {
	t.Helper()
	pod := harness.Asking("mem 3")
	pod.Spec.RestartPolicy, pod.Spec.TerminationGracePeriodSeconds = corev1.RestartPolicyAlways, ptr.To(int64(0))
	labels := map[string]string{"app": name}
	const replicas = 4
	deployment := &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}
	manifest, err := json.Marshal(deployment)
	if err != nil {
		t.Fatal(err)
	}
	planned := map[string]int{}
	for _, pod := range ns.Planned(t, string(manifest), "-f", "-").Pods {
		planned[pod.Node]++
	}
	if _, err := ns.Client.AppsV1().Deployments(ns.Name).Create(t.Context(), deployment,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitRuns(t, ns, name+"-", replicas)
	pods, err := ns.Client.CoreV1().Pods(ns.Name).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		t.Fatal(err)
	}
	nodes = map[string]int{}
	for i := range pods.Items {
		if pods.Items[i].Status.Phase == corev1.PodRunning {
			nodes[pods.Items[i].Spec.NodeName]++
		}
	}
	counts = slices.Sorted(maps.Values(nodes))
	if want := slices.Sorted(maps.Values(planned)); !slices.Equal(counts, want) {
		t.Errorf("replicas are on %v, planned were %v", nodes, planned)
	}
	return counts, nodes
}

// remove deletes a Deployment, and waits until no pod of the namespace is left: one that ends
// is still one of its node's.
func remove(t *testing.T, ns *harness.Namespace, deployment string) {
	t.Helper()
	if err := ns.Client.AppsV1().Deployments(ns.Name).Delete(t.Context(), deployment, metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "no pods to be left", func(ctx context.Context) error {
		pods, err := ns.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d are", len(pods.Items))
		}
		return err
	})
}

// Replicas go to one node, or round the nodes, as the cluster is set, and a pod that is
// labelled differs.
func TestNodePlacement(t *testing.T) {
	setMode := cluster.Label(t, "whole", ack.NodeLabelSchedule)
	setMode("share")
	ns := cluster.Namespace(t)
	cluster.Publishes(t, "whole", "gpu-0-share", "gpu-1-share", "gpu-2-share", "gpu-3-share")
	t.Cleanup(func() { stopPlacing(t) })

	placeNodes(t, ns, "pack-nodes", func(a *corev1.Affinity) bool { return a.PodAffinity != nil })
	counts, nodes := deploy(t, ns, "packs")
	if !slices.Equal(counts, []int{4}) {
		t.Errorf("replicas that pack are on %v", nodes)
	}
	ns.Template(t, "share", harness.Requests(harness.Share("gpu", "3Gi")))
	apart := harness.Labelled(harness.Pod("apart", "", harness.FromTemplate("share")), placementLabel, "spread")
	apart.Spec.NodeSelector = nil
	ns.Run(t, apart)
	got, err := ns.Client.CoreV1().Pods(ns.Name).Get(t.Context(), "apart", metav1.GetOptions{})
	if err != nil || nodes[got.Spec.NodeName] > 0 {
		t.Errorf("error %v: a pod that spreads is on %s, those that pack on %v", err, got.Spec.NodeName, nodes)
	}
	ns.Delete(t, "apart")
	remove(t, ns, "packs")

	placeNodes(t, ns, "spread-nodes", func(a *corev1.Affinity) bool { return a.PodAntiAffinity != nil })
	if counts, nodes := deploy(t, ns, "spreads"); !slices.Equal(counts, []int{2, 2}) {
		t.Errorf("replicas that spread are on %v", nodes)
	}
	remove(t, ns, "spreads")
	// Without the label a node keeps its mode.
	setMode("default")
	cluster.Publishes(t, "whole", "gpu-0", "gpu-1", "gpu-2", "gpu-3")
}
