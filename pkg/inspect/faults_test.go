// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// empty is what the driver publishes where it offers nothing.
func empty(node string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: ptr.To(node), Pool: resourceapi.ResourcePool{Name: v1alpha1.PoolName(node)},
	}}
}

func nodeEvent(node, kind, reason string, at int64) corev1.Event {
	return corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node}, Type: kind, Reason: reason, Message: "of " + reason,
		LastTimestamp: metav1.NewTime(time.Unix(at, 0)),
	}
}

func TestNodesWithoutGPUsAreNamedWithTheirFault(t *testing.T) {
	in := inspect.Input{
		Slices: append(publish("good", mode.Share, v100), empty("a"), empty("b"), empty("c")),
		Events: []corev1.Event{
			nodeEvent("a", corev1.EventTypeWarning, "GPUDriverUnavailable", 2),
			nodeEvent("a", corev1.EventTypeWarning, "GPUModeNotServed", 1),
			nodeEvent("a", corev1.EventTypeNormal, "Other", 3),
			// A plugin that still runs says what it can no longer read, in the same second or later.
			nodeEvent("b", corev1.EventTypeWarning, "GPUUnhealthy", 1),
			nodeEvent("b", corev1.EventTypeWarning, "GPUDriverUnavailable", 1),
			nodeEvent("b", corev1.EventTypeWarning, "GPUUnhealthy", 2),
			nodeEvent("good", corev1.EventTypeWarning, "GPULeftOut", 1),
			// It publishes nothing until its GPUs are read.
			nodeEvent("unread", corev1.EventTypeWarning, "GPUDriverUnavailable", 1),
		},
	}
	want := []string{
		"Nodes a, b, unread offer no GPUs: GPUDriverUnavailable: of GPUDriverUnavailable",
		"Node c offers no GPUs: see its Events with `kubectl describe node c`",
	}
	expect.Equal(t, want, inspect.New(in).Notes, "notes")
}

func TestFewOfManyNodesWithoutGPUsAreNamed(t *testing.T) {
	var in inspect.Input
	for i := range 9 {
		name := fmt.Sprintf("n%d", i)
		in.Slices = append(in.Slices, empty(name))
		in.Events = append(in.Events, nodeEvent(name, corev1.EventTypeWarning, "R", 1))
	}
	want := []string{"Nodes n0, n1, n2, n3, n4 and 4 more offer no GPUs: R: of R"}
	expect.Equal(t, want, inspect.New(in).Notes, "notes")
}

func TestAWaitingModeSwitchIsShown(t *testing.T) {
	published := publish("n1", mode.Share, v100, v100)
	for i := range published[0].Spec.Devices {
		published[0].Spec.Devices[i].Taints = []resourceapi.DeviceTaint{
			{Key: v1alpha1.TaintSwitching, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	in := inspect.Input{
		Slices: append(published, publish("n2", mode.Share, v100)...),
		Nodes: []*corev1.Node{
			{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"ack.node.gpu.schedule": "mps"}}}},
	}
	table := inspect.New(in)
	want := []string{"Node n1 takes no new claims: it waits to change its mode (label ack.node.gpu.schedule=mps). " +
		"`kubectl describe node n1` says for which pods."}
	if !slices.Equal(table.Notes, want) || !table.Nodes[0].Switching || table.Nodes[1].Switching {
		t.Errorf("notes %q, want %q; nodes %+v", table.Notes, want, table.Nodes)
	}
}
