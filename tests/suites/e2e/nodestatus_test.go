// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
	expect.NoError(t, err)
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
	expect.NoError(t, err)
}

// Tools of either version of ACK's sharing read amounts of nodes and annotations of pods, which say what the pods have:
// docs/internals/migrate-details.md#tools-made-for-ack.
func TestPodsAreAnnotatedForLegacyTools(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	packedNode(t, "fill", 4)
	ns := cluster.Namespace(t)
	cluster.ShowsAmounts(t, "fill", "60 4 0 0")
	annotated := func(name, second, index, units string) {
		t.Helper()
		ns.WaitPod(t, name, "to be annotated for both versions", func(pod *corev1.Pod) error {
			var got []string
			for _, key := range []string{ack.AnnotationMemory, ack.AnnotationV1Index, ack.AnnotationV1Pod} {
				got = append(got, pod.Annotations[key])
			}
			return expect.Diff([]string{second, index, units}, got)
		})
	}
	// ACK's own example: eight pods of 3 on four GPUs of 15.
	legacyTemplate(t, ns, "three", harness.Share("main", "3Gi"))
	pods := harness.Pods(8, "p", "fill", harness.FromTemplate("three"))
	ns.Run(t, pods...)
	for _, pod := range pods {
		index := strconv.FormatInt(ns.Granted(t, pod.Name)[0].GPU.Index, 10)
		annotated(pod.Name, `{"0":{"`+index+`":3}}`, index, "3")
	}
	ns.HasUnits(t, "fill", 15, 9, 0, 0)

	// Two containers on one GPU, which has 6 left on the second and 15 on the third.
	legacyTemplate(t, ns, "two", harness.Share("c0", "1Gi"), harness.Share("c1", "7Gi"))
	ns.Run(t, harness.Pod("two", "fill", harness.FromTemplate("two"), harness.PerRequest("c0", "c1")))
	annotated("two", `{"0":{"2":1},"1":{"2":7}}`, "2", "8")
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
		if diff := expect.Diff(map[string][]string{"0": gpus}, topology.AllocatedGPUs); diff != nil {
			return fmt.Errorf("allocation %v", diff)
		}
		if got := pod.Annotations["topology.kubernetes.io/gpu-group"]; got != strings.Join(gpus, ",") {
			return fmt.Errorf("group is %q", got)
		}
		return nil
	})
}
