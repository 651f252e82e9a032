// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// The controller's token is good for its own work only.
func TestControllerWritesNothingElse(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, v1alpha1.ControllerName)
	ctx := t.Context()
	pod, err := cluster.Client.CoreV1().Pods(harness.PluginNamespace).Get(ctx, cluster.Leader(t), metav1.GetOptions{})
	expect.NoError(t, err)
	stolen := cluster.ClientOf(t, harness.PluginNamespace, v1alpha1.ControllerName, pod)
	patch := func(content string) error {
		_, err := stolen.CoreV1().Nodes().Patch(ctx, "mixed", types.MergePatchType, []byte(content),
			metav1.PatchOptions{DryRun: harness.DryRun})
		return err
	}
	const labelsOnly = "may change no label of a node but aliyun.accelerator/nvidia_*"
	const noMore = "may change nothing of a node but labels"
	harness.CheckRefusal(t, "a label of the GPUs", "",
		patch(`{"metadata":{"labels":{"aliyun.accelerator/nvidia_name":"x"}}}`))
	harness.CheckRefusal(t, "a label of GPU Feature Discovery's", "",
		patch(`{"metadata":{"labels":{"nvidia.com/gpu.compute.major":"9"}}}`))
	harness.CheckRefusal(t, "a label of the GPU Operator's", labelsOnly,
		patch(`{"metadata":{"labels":{"nvidia.com/gpu.deploy.device-plugin":"false"}}}`))
	harness.CheckRefusal(t, "another label", labelsOnly,
		patch(`{"metadata":{"labels":{"ack.node.gpu.schedule":"share"}}}`))
	harness.CheckRefusal(t, "the removal of a label", labelsOnly,
		patch(`{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`))
	harness.CheckRefusal(t, "an annotation", noMore, patch(`{"metadata":{"annotations":{"a":"b"}}}`))
	harness.CheckRefusal(t, "a taint", noMore, patch(`{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`))
	harness.CheckRefusal(t, "a finalizer", noMore, patch(`{"metadata":{"finalizers":["a.example.com/b"]}}`))

	status := func(content string) error {
		_, err := stolen.CoreV1().Nodes().Patch(ctx, "mixed", types.MergePatchType, []byte(content),
			metav1.PatchOptions{DryRun: harness.DryRun}, "status")
		return err
	}
	const amountsOnly = "may change nothing of a node's status but the amounts of aliyun.com/gpu-mem"
	harness.CheckRefusal(t, "an amount of GPU", "",
		status(`{"status":{"capacity":{"aliyun.com/gpu-mem":"1"},"allocatable":{"aliyun.com/gpu-mem":"1"}}}`))
	harness.CheckRefusal(t, "another amount", amountsOnly, status(`{"status":{"allocatable":{"cpu":"100"}}}`))
	harness.CheckRefusal(t, "another resource", amountsOnly, status(`{"status":{"capacity":{"nvidia.com/gpu":"1"}}}`))
	harness.CheckRefusal(t, "the removal of an amount", amountsOnly, status(`{"status":{"capacity":{"memory":null}}}`))
	harness.CheckRefusal(t, "the removal of all amounts", amountsOnly, status(`{"status":{"allocatable":null}}`))
	harness.CheckRefusal(t, "an address", amountsOnly, status(`{"status":{"addresses":[]}}`))
	harness.CheckRefusal(t, "a condition", amountsOnly, status(`{"status":{"conditions":[]}}`))
	harness.CheckRefusal(t, "a label by way of the status", labelsOnly,
		status(`{"metadata":{"labels":{"ack.node.gpu.schedule":"share"}}}`))
	harness.CheckRefusal(t, "an annotation by way of the status", noMore, status(`{"metadata":{"annotations":{"a":"b"}}}`))

	podPatch := func(content string, subresources ...string) error {
		_, err := stolen.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(content),
			metav1.PatchOptions{DryRun: harness.DryRun}, subresources...)
		return err
	}
	const notesOnly = "may change nothing of a pod but the annotations of ACK's scheduler and " +
		v1alpha1.AnnotationSyncRequested
	harness.CheckRefusal(t, "the annotation that has the kubelet sync a pod", "",
		podPatch(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationSyncRequested+`":"now"}}}`))
	harness.CheckRefusal(t, "an annotation of ACK's", "",
		podPatch(`{"metadata":{"annotations":{"scheduler.framework.gpushare.allocation":"{}"}}}`))
	harness.CheckRefusal(t, "another annotation of a pod", notesOnly, podPatch(`{"metadata":{"annotations":{"a":"b"}}}`))
	harness.CheckRefusal(t, "a pod's label", notesOnly, podPatch(`{"metadata":{"labels":{"a":"b"}}}`))
	harness.CheckRefusal(t, "a pod's image", notesOnly,
		podPatch(`{"spec":{"containers":[{"name":"controller","image":"other"}]}}`))
	harness.CheckRefusal(t, "a pod's status", "forbidden", podPatch(`{"status":{"phase":"Failed"}}`, "status"))

	const classesOnly = "may change no PodGroup, and no DeviceClass but those of *.gpu.aliyun.com, without the label"
	classes := stolen.ResourceV1().DeviceClasses()
	create := func(name string, labels map[string]string) error {
		_, err := classes.Create(ctx, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}},
			metav1.CreateOptions{DryRun: harness.DryRun})
		return err
	}
	ours := map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ControllerName}
	harness.CheckRefusal(t, "a class of a model", "", create("e2e.gpu.aliyun.com", ours))
	harness.CheckRefusal(t, "a class without the label", classesOnly, create("e2e.gpu.aliyun.com", nil))
	harness.CheckRefusal(t, "a class of another driver", classesOnly, create("gpu.nvidia.com", ours))
	harness.CheckRefusal(t, "the removal of a mode's class", classesOnly,
		classes.Delete(ctx, harness.ShareClass, metav1.DeleteOptions{DryRun: harness.DryRun}))
}
