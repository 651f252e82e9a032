// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// Pods that the kubelet took after the last device plugin left hold nothing that the kubelet
// does not list.
func TestWhenTheDevicePluginLeft(t *testing.T) {
	b := newBench(t)
	b.serves("30")
	b.reconciled(t, true, "")
	if !b.left.IsZero() {
		t.Errorf("it left %s, and is there", b.left)
	}
	b.serves("0")
	b.reconciled(t, false, "")
	b.clock.Step(devicePluginGrace)
	b.reconciled(t, true, shares)
	left := b.clock.Now().UTC()
	for range 2 {
		if !b.left.Equal(left) {
			t.Errorf("it left %s, want %s", b.left, left)
		}
		b.clock.Step(time.Hour)
		b.restart()
		b.serves("0")
		b.reconciled(t, true, shares)
	}
	late := oldPod("late", "0", "aliyun.com/gpu-mem", "4")
	late.Status.StartTime = ptr.To(metav1.NewTime(left.Add(time.Minute)))
	b.pods = []*corev1.Pod{late}
	b.reconciled(t, true, shares)
	expect.Equal(t, "15Gi 15Gi", b.memoryOf(t), "memory")
}

// The version before did not remember it: what ran when it was replaced may be of a
// device plugin.
func TestWhenTheDevicePluginLeftIsNotRemembered(t *testing.T) {
	b := newBench(t)
	expect.NoError(t, os.WriteFile(b.nodeFile(),
		[]byte(`{"wanted":"share","published":"share","isolation":{"share":"none"}}`), 0o600))
	b.clock.Step(time.Hour)
	b.restart()
	b.serves("0")
	b.pods = []*corev1.Pod{oldPod("a", "0", "aliyun.com/gpu-mem", "4")}
	b.pods[0].Status.StartTime = ptr.To(metav1.NewTime(b.clock.Now()))
	b.reconciled(t, true, shares)
	if got := b.memoryOf(t); got != "11Gi 15Gi" || !b.left.Equal(b.clock.Now()) {
		t.Errorf("memory %s, left %s", got, b.left)
	}
}

// Whoever can name a node in a pod gets it started there, whatever the node offers. Where there
// has never been a device plugin such a pod holds nothing, also one that came before the driver.
func TestNodeThatNeverHadADevicePlugin(t *testing.T) {
	for name, test := range map[string]struct {
		capacity corev1.ResourceList
		manager  string
		want     string
	}{
		"never": {nil, "", "15Gi 15Gi"},
		"the controller's amounts": {corev1.ResourceList{ack.ResourceMemory: resource.MustParse("30")},
			"gpu-compat-controller", "15Gi 15Gi"},
		"before": {corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}, "kubelet", "0 0"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.clock.Step(time.Hour)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{
				ack.NodeLabelSchedule: "share"}}}
			node.Status.Capacity = test.capacity
			node.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: test.manager,
				FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:capacity":{"f:aliyun.com/gpu-mem":{}}}}`)}}
			b.SetNode(node)
			pinned := oldPod("pinned", "")
			pinned.Status.StartTime = ptr.To(metav1.NewTime(b.clock.Now().Add(-time.Minute)))
			pinned.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}}
			b.pods = []*corev1.Pod{pinned}
			_, ctx := ktesting.NewTestContext(t)
			_, err := b.reconcile(ctx)
			expect.NoError(t, err)
			expect.Equal(t, test.want, b.memoryOf(t), "memory")
		})
	}
}
