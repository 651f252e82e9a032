// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	burstAnnotation = "alibabacloud.com/burst-resource"
	virtualNodeType = "virtual-kubelet"
	// elasticLabel keeps the pods of the test to its two nodes.
	elasticLabel = "e2e.gpushare/elastic"
)

// The Deployment for elastic instances: with room for two of four replicas on ordinary
// nodes, two are there and two on the virtual node. A Node object plays it; nothing runs.
func TestDocumentOnElasticInstances(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "mixed")
	cluster.Label(t, "mixed", elasticLabel)("yes")
	ns := cluster.Namespace(t)
	virtual := virtualNode(t, ns)

	d := harness.Document[appsv1.Deployment](t, "ack-co-scheduler", "nginx.yaml")
	// Two take four fifths of the node; a third does not fit.
	share := resource.NewMilliQuantity(freeCPU(t, "mixed")*2/5, resource.DecimalSI)
	for _, list := range []corev1.ResourceList{d.Spec.Template.Spec.Containers[0].Resources.Limits,
		d.Spec.Template.Spec.Containers[0].Resources.Requests} {
		list[corev1.ResourceCPU] = *share
	}
	d.Spec.Template.Spec.NodeSelector = map[string]string{elasticLabel: "yes"}
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To(int64(5))
	manifest, err := json.Marshal(d)
	expect.NoError(t, err)
	// A new node has a taint until it is looked at.
	harness.Eventually(t, "two pods to be planned on either node", func(context.Context) error {
		planned := map[string]int{}
		for _, pod := range ns.Planned(t, string(manifest), "-f", "-").Pods {
			planned[pod.Node]++
		}
		if want := map[string]int{"mixed": 2, virtual: 2}; !maps.Equal(planned, want) {
			return fmt.Errorf("they are planned on %v, want %v", planned, want)
		}
		return nil
	})
	ns.Deploy(t, d)
	harness.Eventually(t, "two pods on either node", func(ctx context.Context) error {
		on, err := podsByNode(ctx, ns)
		if want := map[string]int{"mixed": 2, virtual: 2}; err == nil && !maps.Equal(on, want) {
			err = fmt.Errorf("they are on %v, want %v", on, want)
		}
		return err
	})

	only := harness.Pod("only", virtual)
	only.Spec.NodeSelector = map[string]string{elasticLabel: "yes"}
	only.Annotations = map[string]string{burstAnnotation: "eci_only"}
	ns.Create(t, only)
	ns.WaitPod(t, "only", "to be bound to a virtual node", func(pod *corev1.Pod) error {
		if pod.Spec.NodeName != virtual {
			return fmt.Errorf("it is on node %q", pod.Spec.NodeName)
		}
		return nil
	})
	shared := harness.Pod("shared", virtual)
	shared.Annotations = map[string]string{burstAnnotation: "eci_only"}
	shared.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"aliyun.com/gpu-mem": resource.MustParse("3")}
	_, err = ns.Admitted(t.Context(), shared)
	harness.CheckRefusal(t, "a share of a virtual node's GPU", "which have no GPUs to share", err)
}

// podsByNode counts the pods of the Deployment.
func podsByNode(ctx context.Context, ns *harness.Namespace) (map[string]int, error) {
	pods, err := ns.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=nginx"})
	if err != nil {
		return nil, err
	}
	on := map[string]int{}
	for _, pod := range pods.Items {
		on[pod.Spec.NodeName]++
	}
	return on, nil
}

// freeCPU is what no pod of a node has requested, in thousandths.
func freeCPU(t *testing.T, node string) int64 {
	t.Helper()
	object := harness.Get(t, cluster.Client.CoreV1().Nodes(), node)
	pods, err := cluster.Client.CoreV1().Pods(metav1.NamespaceAll).List(t.Context(),
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	expect.NoError(t, err)
	free := object.Status.Allocatable.Cpu().MilliValue()
	for _, pod := range pods.Items {
		for _, c := range pod.Spec.Containers {
			free -= c.Resources.Requests.Cpu().MilliValue()
		}
	}
	return free
}

// virtualNode makes a Node object as Virtual Kubelet does, and says that it is up until the
// test ends. Then it is taken away with the pods that are bound to it, which no kubelet does.
func virtualNode(t *testing.T, ns *harness.Namespace) (name string) {
	t.Helper()
	nodes, name := ns.Client.CoreV1().Nodes(), ns.Name
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"type": virtualNodeType, corev1.LabelHostname: name, corev1.LabelOSStable: "linux", elasticLabel: "yes"}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "virtual-kubelet.io/provider", Value: "alibabacloud", Effect: corev1.TaintEffectNoSchedule}}},
	}
	harness.Make(t, nodes, node)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		removeVirtualNode(t, ns, name)
	})
	room := map[corev1.ResourceName]string{
		corev1.ResourceCPU: "64", corev1.ResourceMemory: "256Gi", corev1.ResourcePods: "100"}
	// A patch: the controllers write the new node, too.
	status, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": room, "allocatable": room,
		"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}}})
	expect.NoError(t, err)
	harness.Patch(t, nodes, name, types.StrategicMergePatchType, string(status), "status")
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		// One that could not be renewed is renewed the next time.
		_ = renew(ctx, ns, name)
	}, 5*time.Second)
	return name
}

func renew(ctx context.Context, ns *harness.Namespace, node string) error {
	leases := ns.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NowMicro()
	lease, err := leases.Get(ctx, node, metav1.GetOptions{})
	if err == nil {
		lease.Spec.RenewTime = &now
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	}
	_, err = leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: ptr.To(int32(40)),
			RenewTime: &now},
	}, metav1.CreateOptions{})
	return err
}

func removeVirtualNode(t *testing.T, ns *harness.Namespace, name string) {
	ctx := harness.Context(t)
	api := ns.Client.CoreV1()
	if err := ns.Client.AppsV1().Deployments(ns.Name).DeleteCollection(ctx,
		metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)},
		metav1.ListOptions{}); err != nil {
		t.Errorf("delete the Deployment: %v", err)
	}
	err := harness.Poll(ctx, harness.Timeout, func(ctx context.Context) error {
		sets, err := ns.Client.AppsV1().ReplicaSets(ns.Name).List(ctx, metav1.ListOptions{})
		if err == nil && len(sets.Items) > 0 {
			err = fmt.Errorf("its ReplicaSet is still there")
		}
		return err
	})
	if err == nil {
		err = api.Pods(ns.Name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))},
			metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
	}
	if err != nil {
		t.Errorf("delete the pods of node %s: %v", name, err)
	}
	if err := api.Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete node %s: %v", name, err)
	}
	if err := ns.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name,
		metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("delete the lease of node %s: %v", name, err)
	}
}
