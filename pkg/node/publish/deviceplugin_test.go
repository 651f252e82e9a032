// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/watch"
)

// silentKubelet answers when it is told to.
type silentKubelet struct {
	containers map[deviceplugin.Container]deviceplugin.Devices
	err        error
}

func (k *silentKubelet) Devices(context.Context) (map[deviceplugin.Container]deviceplugin.Devices, error) {
	return k.containers, k.err
}

// Where pods are not watched, a kubelet that did not answer at first, as one that is just being started, may still
// know of pods of a device plugin.
func TestKubeletThatDoesNotAnswerAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.mode("default")
		kubelet := &silentKubelet{err: errors.New("it has just been started")}
		b.Pods = watch.KubeletOnly(kubelet)
		b.reconciled(t, false, whole)
		time.Sleep(retryInterval)
		kubelet.err = nil
		kubelet.containers = map[deviceplugin.Container]deviceplugin.Devices{{Namespace: "old", Pod: "p", Name: "c"}: {
			Resources: []corev1.ResourceName{"nvidia.com/gpu"}, IDs: []string{"GPU-0"}}}
		b.reconciled(t, false, "gpu-0! gpu-1")
		time.Sleep(retryInterval)
		kubelet.containers = nil
		b.reconciled(t, true, whole)
	})
}

const migrated = "gpu.aliyun.com/migrated"

// serves sets what the node's kubelet shows of a device plugin's resource; with further
// labels, alternately a key and its value.
func (b *bench) serves(amount string, labels ...string) { b.servesOf(amount, amount, labels...) }

// servesOf is serves where so much of all that the device plugin has is healthy.
func (b *bench) servesOf(healthy, all string, labels ...string) {
	node := serving("share", "aliyun.com/gpu-mem", healthy, all)
	for i := 0; i < len(labels); i += 2 {
		node.Labels[labels[i]] = labels[i+1]
	}
	b.SetNode(node)
}

// serving is the node in a mode, for which the kubelet shows so much of a resource: healthy, and in all.
func serving(mode string, of corev1.ResourceName, healthy, all string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{ack.NodeLabelSchedule: mode}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{of: resource.MustParse(healthy)},
			Capacity: corev1.ResourceList{of: resource.MustParse(all)}},
	}
}

func (b *bench) refusedBecause(t *testing.T, text string) {
	t.Helper()
	expect.Says(t, b.events.current[v1alpha1.ReasonModeNotServed], text)
}

// offersWhenItIsGone checks that the node's shares are offered when its device plugin has been gone for long enough.
func (b *bench) offersWhenItIsGone(t *testing.T) {
	t.Helper()
	b.reconciled(t, false, "")
	b.refusedBecause(t, "until a moment ago")
	b.clock.Step(devicePluginGrace)
	b.reconciled(t, true, shares)
}

// After a reboot the device plugin and this process are started together, and the
// kubelet shows nothing of the former yet.
func TestDevicePluginIsRememberedByTheNextProcess(t *testing.T) {
	b := newBench(t)
	b.serves("30")
	b.reconciled(t, true, "")
	for range 3 {
		b.restart()
		b.serves("0")
		b.clock.Step(time.Hour)
		b.reconciled(t, false, "")
		b.refusedBecause(t, "until a moment ago")
		b.clock.Step(devicePluginGrace / 2)
		b.reconciled(t, false, "")
	}
	b.serves("30")
	b.reconciled(t, true, "")
	b.refusedBecause(t, "a device plugin serves aliyun.com/gpu-mem here")
	b.serves("0")
	b.offersWhenItIsGone(t)
	// It has been gone for good: the next process offers the GPUs at once.
	b.restart()
	b.serves("0")
	b.reconciled(t, true, shares)
}

// A device plugin whose devices are all unhealthy hands them out again when they have recovered. The kubelet shows
// the same of one that was removed, for five minutes.
func TestDevicePluginWhoseDevicesAreAllUnhealthy(t *testing.T) {
	const why = "has devices of aliyun.com/gpu-mem here, all unhealthy, or was removed"
	b := newBench(t)
	b.servesOf("0", "30")
	// Also where it is found so.
	for range 2 {
		b.reconciled(t, true, "")
		b.refusedBecause(t, why)
		b.serves("30")
		b.reconciled(t, true, "")
		b.refusedBecause(t, "a device plugin serves aliyun.com/gpu-mem here")
		b.servesOf("0", "30")
		b.reconciled(t, true, "")
		b.clock.Step(time.Hour)
		b.reconciled(t, true, "")
		b.refusedBecause(t, why)
		b.restart()
		b.servesOf("0", "30")
	}
	b.serves("0")
	b.offersWhenItIsGone(t)
	// One that was taken for gone before, as by the label of a migration, hands out nothing any more.
	b.servesOf("0", "30")
	b.reconciled(t, true, shares)
}

// Where a label tells that a node was moved, the device plugin is known to be gone.
func TestCapacityOfADevicePluginThatTheRequiredLabelKeepsAway(t *testing.T) {
	b := newBench(t)
	b.requiredLabel = migrated
	b.restart()
	b.serves("30")
	b.reconciled(t, true, "")
	b.servesOf("0", "30", migrated, "true")
	b.offersWhenItIsGone(t)
}

func TestDevicePluginThatMayHaveBeenForgotten(t *testing.T) {
	b := newBench(t)
	expect.NoError(t, os.WriteFile(b.nodeFile(), []byte("{"), 0o600))
	b.serves("0")
	b.offersWhenItIsGone(t)
}

// Where nodes are moved by a label, no absence of the device plugin, however long,
// stands for it.
func TestNodeWithoutTheRequiredLabelOffersNothing(t *testing.T) {
	b := newBench(t)
	b.requiredLabel = migrated
	b.restart()
	b.serves("0")
	b.reconciled(t, true, "")
	b.refusedBecause(t, "lacks the label gpu.aliyun.com/migrated")
	b.serves("30")
	b.reconciled(t, true, "")
	b.refusedBecause(t, "a device plugin serves aliyun.com/gpu-mem here")
	b.serves("0")
	b.reconciled(t, false, "")
	b.clock.Step(time.Hour)
	b.reconciled(t, true, "")
	b.refusedBecause(t, "lacks the label gpu.aliyun.com/migrated")

	b.serves("30", migrated, "true")
	b.reconciled(t, true, "")
	b.serves("0", migrated, "true")
	b.offersWhenItIsGone(t)

	// The way back: what is allocated stays published, closed to new claims.
	b.allocate(t, "gpu-0-share", "trainer")
	b.serves("0")
	b.waits(t, shareClosed)
	b.release(t)
	b.clock.Step(time.Minute) // until the claims are listed again
	b.reconciled(t, true, "")
}

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
	b.offersWhenItIsGone(t)
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
			b.pass(t)
			expect.Equal(t, test.want, b.memoryOf(t), "memory")
		})
	}
}
