// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// The Deployment for a node pool: pods with a GPU each, on tainted nodes of the pool
// only. Scaled beyond the pool's GPUs, a pod waits for a node to be added, which is
// the cluster autoscaler's part.
func TestDocumentOnNodePools(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "mixed")
	cluster.Label(t, "mixed", "gpu-spec")("NVIDIA-A10")
	taint(t, "mixed", `[{"key":"scaler","value":"gpu","effect":"NoSchedule"}]`)
	ns := cluster.Namespace(t)
	ns.MustKubectl(t, "apply", "-f", harness.DemoLegacy("gpu-deployment.yaml"))
	const name = "gpu-auto-scaler"
	ns.PodsOf(t, name, 2)
	ns.Scale(t, name, 4)
	held := map[string]int{}
	for _, pod := range ns.PodsOf(t, name, 4) {
		held[pod] = 1
	}
	for pod := range held {
		for _, grant := range ns.Granted(t, pod) {
			if grant.GPU.Node != "mixed" {
				t.Errorf("pod %s has a GPU of node %s", pod, grant.GPU.Node)
			}
			ns.SeesItsGPUs(t, pod, name, []harness.Grant{grant})
		}
	}
	ns.Scale(t, name, 5)
	var fifth string
	harness.Eventually(t, "the fifth pod", func(ctx context.Context) error {
		pods, err := ns.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if held[pod.Name] == 0 {
				fifth = pod.Name
				return nil
			}
		}
		return errors.New("it is not there")
	})
	// The condition is what the autoscaler looks at; the Event tells people.
	ns.WaitUnschedulable(t, fifth, noRoom)
	ns.Scale(t, name, 1)
	ns.PodsOf(t, name, 1)
}

// taint sets the taints of a node until the test ends; it has none otherwise.
func taint(t *testing.T, node, taints string) {
	t.Helper()
	set := func(ctx context.Context, taints string) error {
		_, err := cluster.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"taints":%s}}`, taints), metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() {
		if err := set(harness.Context(t), "null"); err != nil {
			t.Errorf("take the taints of node %s away: %v", node, err)
		}
	})
	expect.NoError(t, set(t.Context(), taints))
}

// Pods of ack-co-scheduler that ask for no GPU are the default scheduler's, and
// nothing else is changed of them.
func TestDocumentOnACKsScheduler(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	for _, test := range []struct{ file, annotation, value string }{
		{"nginx-numa.yaml", "cpuset-scheduler", "true"},
		{"nginx.yaml", "alibabacloud.com/burst-resource", "eci"},
	} {
		template := harness.Document[appsv1.Deployment](t, "ack-co-scheduler", test.file).Spec.Template
		pod := isScheduledByDefault(t, ns, template)
		if pod.Annotations[test.annotation] != test.value {
			t.Errorf("%s: its annotations became %v", test.file, pod.Annotations)
		}
	}
	// The cluster has no driver for CPUs; with one see tests/suites/gang.
	numa := harness.Document[appsv1.Deployment](t, "ack-co-scheduler", "nginx-numa.yaml").Spec.Template
	numa.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "e2e.gpu.aliyun.com/gate"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "numa", Annotations: numa.Annotations}, Spec: numa.Spec}
	ns.Create(t, pod)
	ns.WaitPodEvent(t, pod.Name, "GPUCPUsNotGiven", "the cluster has no DeviceClass dra.cpu")
	ps, worker := harness.TFJob(t)
	for _, of := range []harness.TFReplica{ps, worker} {
		pod := isScheduledByDefault(t, ns, of.Template)
		if pod.Labels["pod-group.scheduling.sigs.k8s.io/min-available"] != "2" {
			t.Errorf("the labels of a pod of the gang became %v", pod.Labels)
		}
	}
}

// isScheduledByDefault has a pod made of a template, as what owns the template does,
// and returns it.
func isScheduledByDefault(t *testing.T, ns *harness.Namespace, template corev1.PodTemplateSpec) *corev1.Pod {
	t.Helper()
	pod, err := ns.Admitted(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Labels: template.Labels, Annotations: template.Annotations},
		Spec:       template.Spec,
	})
	expect.NoError(t, err)
	if pod.Spec.SchedulerName != corev1.DefaultSchedulerName || len(pod.Spec.ResourceClaims) > 0 {
		t.Errorf("it is for the scheduler %s, with the claims %v", pod.Spec.SchedulerName, pod.Spec.ResourceClaims)
	}
	return pod
}
