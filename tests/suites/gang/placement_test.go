// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// deploy makes a Deployment of four pods with these labels, all of which are nominated before the scheduler looks at
// them, and returns how many of them run on each node that has any, fewest first.
func deploy(t *testing.T, ns *harness.Namespace, name string, labels map[string]string) []int {
	t.Helper()
	const replicas = 4
	pod := harness.Asking("mem 3")
	pod.Labels, pod.Spec.TerminationGracePeriodSeconds = maps.Clone(labels), ptr.To(int64(0))
	pods := func(ctx context.Context) ([]corev1.Pod, error) {
		list, err := ns.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return nil, err
		}
		return list.Items, nil
	}
	cluster.RestartScheduler(t, func() {
		ns.Deploy(t, harness.Deployment(name, replicas, pod))
		harness.Eventually(t, "all replicas to be nominated", func(ctx context.Context) error {
			all, err := pods(ctx)
			all = slices.DeleteFunc(all, func(p corev1.Pod) bool { return p.Status.NominatedNodeName == "" })
			if err == nil && len(all) != replicas {
				err = fmt.Errorf("%d are", len(all))
			}
			return err
		})
	})
	waitRuns(t, ns, name+"-", replicas)
	all, err := pods(t.Context())
	expect.NoError(t, err)
	nodes := map[string]int{}
	for i := range all {
		nodes[all[i].Spec.NodeName]++
	}
	t.Logf("replicas %s are on %v", name, nodes)
	return slices.Sorted(maps.Values(nodes))
}

// remove deletes a Deployment, and waits until no pod of the namespace is left: one that ends
// is still one of its node's.
func remove(t *testing.T, ns *harness.Namespace, deployment string) {
	t.Helper()
	expect.NoError(t, ns.Client.AppsV1().Deployments(ns.Name).Delete(t.Context(), deployment, metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}))
	harness.Eventually(t, "no pods to be left", func(ctx context.Context) error {
		pods, err := ns.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d are", len(pods.Items))
		}
		return err
	})
}

// nominated has two nodes share their GPUs, and the controller nominate nodes by the setting, until the test ends.
// setMode sets the mode of the one that has whole GPUs else.
func nominated(t *testing.T, setting score.Setting, options ...func(*corev1.Namespace)) (ns *harness.Namespace,
	setMode func(string)) {
	t.Helper()
	setMode = cluster.Label(t, "whole", ack.NodeLabelSchedule)
	setMode("share")
	ns = cluster.Namespace(t, options...)
	cluster.Publishes(t, "whole", "gpu-0-share", "gpu-1-share", "gpu-2-share", "gpu-3-share")
	// A controller that started before would use the settings of before for a while, and take gates off without
	// nominations.
	start := cluster.StopController(t)
	nominateBest(t, ns, setting)
	start()
	return ns, setMode
}

// Replicas go to one node, or round the nodes, as the cluster is set, and those that are labelled differ.
func TestNodePlacement(t *testing.T) {
	ns, setMode := nominated(t, score.Spread)
	for _, of := range []struct {
		name   string
		labels map[string]string
		want   []int
	}{
		{"spreads", map[string]string{}, []int{2, 2}},
		{"packs", map[string]string{v1alpha1.LabelNodePlacement: "binpack"}, []int{4}},
	} {
		if counts := deploy(t, ns, of.name, of.labels); !slices.Equal(counts, of.want) {
			t.Errorf("nodes have %v of the replicas %s, want %v", counts, of.name, of.want)
		}
		remove(t, ns, of.name)
	}
	// Without the label a node keeps its mode.
	setMode("default")
	cluster.Publishes(t, "whole", "gpu-0", "gpu-1", "gpu-2", "gpu-3")
}
