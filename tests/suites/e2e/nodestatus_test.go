// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

func TestNodesShowTheirAmounts(t *testing.T) {
	t.Parallel()
	for _, node := range []string{"dynamic", "fill", "modes"} {
		cluster.Share(t, node)
	}
	cluster.Whole(t, "switch")
	for _, node := range []string{"topo", "whole"} {
		cluster.Share(t, node)
	}
	for node, want := range map[string]string{
		"fill":    "60 4 0 0",
		"modes":   "60 4 0 0",
		"whole":   "0 0 0 0",
		"topo":    "0 0 0 8",
		"dynamic": "640 8 800 0",
	} {
		cluster.ShowsAmounts(t, node, want)
	}
	setMode := cluster.Label(t, "switch", modeLabel)
	setMode("share")
	cluster.ShowsAmounts(t, "switch", "15 1 0 0")
	cluster.Publishes(t, "switch", "gpu-0-share")
	setMode("core_mem")
	cluster.ShowsAmounts(t, "switch", "15 1 100 0")
	setMode("default")
	cluster.ShowsAmounts(t, "switch", "0 0 0 0")
	cluster.Publishes(t, "switch", "gpu-0")
}

// statusAsKubelet changes an amount as the node's kubelet does.
func statusAsKubelet(t *testing.T, node, amount string) {
	t.Helper()
	patch := fmt.Sprintf(`{"status":{"capacity":{"aliyun.com/gpu-mem":%q},"allocatable":{"aliyun.com/gpu-mem":%q}}}`,
		amount, amount)
	_, err := cluster.Client.CoreV1().Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: "kubelet"}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

func TestDevicePluginsAreToldFromTheAmountsShown(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "old")
	cluster.ShowsAmounts(t, "old", "60 4 0 0")

	// What a kubelet zeroes when it registers again, is written again; the GPUs stay.
	statusAsKubelet(t, "old", "0")
	cluster.ShowsAmounts(t, "old", "60 4 0 0")
	cluster.Tool(t, "node", "restart-kubelet", "old")
	cluster.ShowsAmounts(t, "old", "60 4 0 0")
	cluster.Publishes(t, "old", "gpu-0-share", "gpu-1-share", "gpu-2-share", "gpu-3-share")

	began := time.Now()
	stop := cluster.DevicePlugin(t, "old", "aliyun.com/gpu-mem", 7)
	cluster.WaitNodeEvent(t, "old", began, "GPUAmountsNotOurs", "aliyun.com/gpu-mem is 7, written by kubelet")
	cluster.WaitNodeEvent(t, "old", began, "GPUModeNotServed", "a device plugin serves aliyun.com/gpu-mem here")
	cluster.Publishes(t, "old")
	cluster.ShowsAmounts(t, "old", "7 4 0 0")

	stop()
	cluster.Publishes(t, "old", "gpu-0-share", "gpu-1-share", "gpu-2-share", "gpu-3-share")
	cluster.ShowsAmounts(t, "old", "60 4 0 0")
}

// legacyTemplate is a template as one stands for a request in ACK's manner.
func legacyTemplate(t *testing.T, ns *harness.Namespace, name string, requests ...resourceapi.DeviceRequest) {
	t.Helper()
	uuid := resourceapi.FullyQualifiedName("gpu.aliyun.com/uuid")
	spec := harness.Requests(requests...)
	if len(requests) > 1 {
		spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &uuid}}
	}
	labels := map[string]string{"gpu.aliyun.com/legacy": "true"}
	_, err := cluster.Client.ResourceV1().ResourceClaimTemplates(ns.Name).Create(t.Context(),
		&resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       resourceapi.ResourceClaimTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// legacyTable is a node's line as kubectl-inspect-gpushare, the known tool, computes it
// from the node's allocatable, the pods' limits and their annotations, and nothing else:
// used/total of each GPU, and of the node. Where a pod lacks the annotation of the second
// version it uses that of the first.
func legacyTable(node *corev1.Node, pods []corev1.Pod) (string, error) {
	return annotatedTable(node, slices.DeleteFunc(slices.Clone(pods), func(pod corev1.Pod) bool {
		return memoryLimits(
			&pod) == 0
	}))
}

// memoryLimits is the sum of what a pod's containers ask for of aliyun.com/gpu-mem. Pods
// that were converted ask for nothing.
func memoryLimits(pod *corev1.Pod) int64 {
	var units int64
	for _, c := range pod.Spec.Containers {
		limit := c.Resources.Limits[ack.ResourceMemory]
		units += limit.Value()
	}
	return units
}

// annotatedTable is the same by a tool that uses annotations alone: it counts every pod
// that has one.
func annotatedTable(node *corev1.Node, pods []corev1.Pod) (string, error) {
	total, count := node.Status.Allocatable["aliyun.com/gpu-mem"], node.Status.Allocatable["aliyun.com/gpu-count"]
	if count.IsZero() {
		return "", fmt.Errorf("node %s has no aliyun.com/gpu-count", node.Name)
	}
	used, sum := make([]int64, count.Value()), int64(0)
	for _, pod := range pods {
		if pod.Spec.NodeName != node.Name || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		allocation, err := legacyAllocation(&pod)
		if err != nil {
			return "", fmt.Errorf("pod %s: %w", pod.Name, err)
		}
		for _, gpus := range allocation {
			for index, units := range gpus {
				i, err := strconv.Atoi(index)
				if err != nil || i >= len(used) {
					return "", fmt.Errorf("pod %s is on GPU %s of %d", pod.Name, index, len(used))
				}
				used[i] += units
				sum += units
			}
		}
	}
	var line strings.Builder
	for _, units := range used {
		fmt.Fprintf(&line, "%d/%d ", units, total.Value()/count.Value())
	}
	fmt.Fprintf(&line, "%d/%d", sum, total.Value())
	return line.String(), nil
}

// legacyAllocation is what a pod's annotations say, by container and GPU.
func legacyAllocation(pod *corev1.Pod) (map[int]map[string]int64, error) {
	if text, ok := pod.Annotations[ack.AnnotationMemory]; ok {
		var allocation map[int]map[string]int64
		err := json.Unmarshal([]byte(text), &allocation)
		return allocation, err
	}
	index, ok := pod.Annotations[ack.AnnotationV1Index]
	if !ok {
		return nil, nil
	}
	var err error
	units := memoryLimits(pod)
	if units == 0 {
		units, err = strconv.ParseInt(pod.Annotations[ack.AnnotationV1Pod], 10, 64)
	}
	return map[int]map[string]int64{0: {index: units}}, err
}

// inFirstVersion are pods without the annotation of the second version.
func inFirstVersion(pods []corev1.Pod) []corev1.Pod {
	var out []corev1.Pod
	for _, pod := range pods {
		copied := pod.DeepCopy()
		delete(copied.Annotations, ack.AnnotationMemory)
		out = append(out, *copied)
	}
	return out
}

// unconverted are the pods of a node with the limits that those with an annotation had
// before they were converted.
func unconverted(node *corev1.Node, pods []corev1.Pod) ([]corev1.Pod, error) {
	var out []corev1.Pod
	for _, pod := range pods {
		if pod.Spec.NodeName != node.Name {
			continue
		}
		copied := pod.DeepCopy()
		allocation, err := legacyAllocation(copied)
		if err != nil {
			return nil, err
		}
		for container, gpus := range allocation {
			var units int64
			for _, amount := range gpus {
				units += amount
			}
			copied.Spec.Containers[container].Resources.Limits = corev1.ResourceList{
				ack.ResourceMemory: *resource.NewQuantity(units, resource.DecimalSI)}
		}
		out = append(out, *copied)
	}
	return out, nil
}

// checkTables checks what tools make of a node and pods: want is what the pods have. The
// known tool sees that of pods with limits, and of those that were converted only what the
// node has in all, docs/migrate.md#tools-made-for-ack.
func checkTables(node *corev1.Node, pods []corev1.Pod, want, idle string) error {
	limited, err := unconverted(node, pods)
	if err != nil {
		return err
	}
	var errs []error
	for name, test := range map[string]struct {
		table func(*corev1.Node, []corev1.Pod) (string, error)
		pods  []corev1.Pod
		want  string
	}{
		"by annotations":                              {annotatedTable, pods, want},
		"by annotations of the first version":         {annotatedTable, inFirstVersion(pods), want},
		"the known tool, of pods that were converted": {legacyTable, pods, idle},
		"the known tool, of pods with limits":         {legacyTable, limited, want},
		"the known tool, of the first version's":      {legacyTable, inFirstVersion(limited), want},
	} {
		if got, err := test.table(node, test.pods); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		} else if got != test.want {
			errs = append(errs, fmt.Errorf("%s: it reads %s, want %s", name, got, test.want))
		}
	}
	return errors.Join(errs...)
}

func TestPodsAreAnnotatedForLegacyTools(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	packedNode(t, "fill", 4)
	ns := cluster.Namespace(t)
	cluster.ShowsAmounts(t, "fill", "60 4 0 0")
	reads := func(want string) {
		t.Helper()
		harness.Eventually(t, "legacy tools to read "+want, func(ctx context.Context) error {
			node, err := cluster.Client.CoreV1().Nodes().Get(ctx, "fill", metav1.GetOptions{})
			if err != nil {
				return err
			}
			pods, err := cluster.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			return checkTables(node, pods.Items, want, "0/15 0/15 0/15 0/15 0/60")
		})
	}
	// ACK's own example: eight pods of 3 on four GPUs of 15.
	legacyTemplate(t, ns, "three", harness.Share("main", "3Gi"))
	pods := harness.Pods(8, "p", "fill", harness.FromTemplate("three"))
	ns.Run(t, pods...)
	reads("15/15 9/15 0/15 0/15 24/60")

	// Two containers on one GPU, which has 6 left on the second and 15 on the third.
	legacyTemplate(t, ns, "two", harness.Share("c0", "1Gi"), harness.Share("c1", "7Gi"))
	ns.Run(t, harness.Pod("two", "fill", harness.FromTemplate("two"), harness.PerRequest("c0", "c1")))
	reads("15/15 9/15 8/15 0/15 32/60")
	pod := ns.Get(t, "two")
	if diff := cmp.Diff(`{"0":{"2":1},"1":{"2":7}}`,
		pod.Annotations["scheduler.framework.gpushare.allocation"]); diff != "" {
		t.Errorf("annotation (-want +got):\n%s", diff)
	}
	// Which of the pods lie on the first GPU is not in the order of their names: their claims are
	// made side by side.
	onFirst := slices.IndexFunc(pods, func(pod *corev1.Pod) bool { return ns.Granted(t, pod.Name)[0].GPU.Index == 0 })
	ns.Delete(t, "two", pods[onFirst].Name)
	reads("12/15 9/15 0/15 0/15 21/60")
}

func TestWholeGPUsAreAnnotatedForLegacyTools(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "topo")
	ns := cluster.Namespace(t)
	legacyTemplate(t, ns, "pair", harness.Linked("main", 2, 1))
	ns.Run(t, harness.Pod("pair", "topo", harness.FromTemplate("pair")))
	var gpus []string
	for _, grant := range ns.Granted(t, "pair") {
		gpus = append(gpus, strconv.FormatInt(grant.GPU.Index, 10))
	}
	ns.WaitPod(t, "pair", fmt.Sprintf("to be annotated with GPUs %s", gpus), func(pod *corev1.Pod) error {
		var topology struct{ AllocatedGPUs map[string][]string }
		if err := json.Unmarshal([]byte(pod.Annotations["gputopology.alibabacloud.com/allocation"]), &topology); err != nil {
			return err
		}
		if diff := cmp.Diff(map[string][]string{"0": gpus}, topology.AllocatedGPUs); diff != "" {
			return fmt.Errorf("allocation (-want +got):\n%s", diff)
		}
		if got := pod.Annotations["topology.kubernetes.io/gpu-group"]; got != strings.Join(gpus, ",") {
			return fmt.Errorf("group is %q", got)
		}
		return nil
	})
}
