// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Pods that were created after the last device plugin left hold nothing that the kubelet
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
	late.CreationTimestamp.Time = left.Add(time.Minute)
	b.pods = []*corev1.Pod{late}
	b.reconciled(t, true, shares)
	if got := b.memoryOf(t); got != "15Gi 15Gi" {
		t.Errorf("memory %s", got)
	}
}

// The version before did not remember it: what ran when it was replaced may be of a
// device plugin.
func TestWhenTheDevicePluginLeftIsNotRemembered(t *testing.T) {
	b := newBench(t)
	if err := os.WriteFile(string(b.checkpointFile),
		[]byte(`{"wanted":"share","published":"share","isolation":{"share":"none"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	b.clock.Step(time.Hour)
	b.restart()
	b.serves("0")
	b.pods = []*corev1.Pod{oldPod("a", "0", "aliyun.com/gpu-mem", "4")}
	b.pods[0].CreationTimestamp.Time = b.clock.Now()
	b.reconciled(t, true, shares)
	if got := b.memoryOf(t); got != "11Gi 15Gi" || !b.left.Equal(b.clock.Now()) {
		t.Errorf("memory %s, left %s", got, b.left)
	}
}
