// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// priorityClass makes a PriorityClass for the test and returns its name when pods may have it.
func priorityClass(t *testing.T, ns *harness.Namespace, value int32, policy corev1.PreemptionPolicy) string {
	t.Helper()
	name := fmt.Sprintf("e2e-preempt-%s%d", map[bool]string{true: "never-"}[policy == corev1.PreemptNever], value+100)
	classes := cluster.Client.SchedulingV1().PriorityClasses()
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value,
		PreemptionPolicy: &policy}
	harness.Make(t, classes, class)
	t.Cleanup(func() {
		if err := classes.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete PriorityClass %s: %v", name, err)
		}
	})
	// The API server's admission of priorities knows only what its informer has seen.
	harness.Eventually(t, "the API server to take pods of PriorityClass "+name, func(ctx context.Context) error {
		_, err := ns.Admitted(ctx, asks(name, "probe", "whole", ""))
		return err
	})
	return name
}

// asks is a pod on a node with limits as harness.Asking takes them, and a priority.
func asks(class, name, node, limits string) *corev1.Pod {
	pod := harness.GoingTo(harness.Asking(limits), name, node)
	pod.Spec.PriorityClassName = class
	pod.Labels = map[string]string{"app": name}
	return pod
}

// state says of pods whether they run, wait or are gone.
func state(ctx context.Context, ns *harness.Namespace, names ...string) (string, error) {
	var states []string
	for _, name := range names {
		pod, err := ns.Client.CoreV1().Pods(ns.Name).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			states = append(states, name+" gone")
		case err != nil:
			return "", err
		case pod.DeletionTimestamp != nil:
			states = append(states, name+" ends")
		default:
			states = append(states, name+" "+string(pod.Status.Phase))
		}
	}
	return strings.Join(states, ", "), nil
}

func isState(t *testing.T, ns *harness.Namespace, want string) {
	t.Helper()
	var names []string
	for _, part := range strings.Split(want, ", ") {
		name, _, _ := strings.Cut(part, " ")
		names = append(names, name)
	}
	harness.Eventually(t, want, func(ctx context.Context) error {
		got, err := state(ctx, ns, names...)
		if err == nil && got != want {
			err = errors.New(got)
		}
		return err
	})
}

// Pods of lower priority go for whole GPUs, linked sets and shares: the lowest, the fewest, and
// none that a budget keeps. Nobody goes for a pod of equal priority or one that never preempts.
func TestPreemption(t *testing.T) {
	ns := cluster.Namespace(t, harness.Preemption)
	lowest := priorityClass(t, ns, -10, corev1.PreemptLowerPriority)
	low := priorityClass(t, ns, -5, corev1.PreemptLowerPriority)
	high := priorityClass(t, ns, 1000, corev1.PreemptLowerPriority)
	never := priorityClass(t, ns, 2000, corev1.PreemptNever)
	ns.Keep(t, "kept")
	ns.Run(t,
		asks(lowest, "kept", "whole", "nvidia.com/gpu 1"), asks(low, "whole-1", "whole", "nvidia.com/gpu 1"),
		asks("", "whole-2", "whole", "nvidia.com/gpu 1"), asks("", "whole-3", "whole", "nvidia.com/gpu 1"),
		asks(low, "share-0", "share", "mem 8"), asks("", "share-1", "share", "mem 15"),
		asks("", "share-2", "share", "mem 15"), asks("", "share-3", "share", "mem 15"),
		asks(low, "linked-0", "linked", "gpu 4"), asks("", "linked-1", "linked", "gpu 4"))

	// Two for whom nobody goes come first, so that they are looked at first.
	ns.Create(t, asks(never, "never", "share", "mem 15"), asks(low, "equal", "share", "mem 15"))
	ns.WaitUnschedulable(t, "never", "cannot allocate all claims")
	ns.WaitUnschedulable(t, "equal", "cannot allocate all claims")
	ns.Create(t, asks(high, "high-whole", "whole", "nvidia.com/gpu 1"), asks(high, "high-linked", "linked", "gpu 4"))
	ns.WaitRunning(t, "high-whole")
	ns.WaitRunning(t, "high-linked")
	isState(t, ns, "kept Running, whole-1 gone, whole-2 Running, whole-3 Running, linked-0 gone, linked-1 Running")
	ns.WaitPodEvent(t, "high-whole", "GPUPreempting", "1 pod of lower priority is evicted from node whole")
	ns.WaitPodEvent(t, "whole-1", "GPUPreempted", "free GPUs of node whole")
	ns.WaitPodEvent(t, "linked-0", "GPUPreempted", "whose priority is 1000; this pod's is -5")

	isState(t, ns, "share-0 Running, share-1 Running, share-2 Running, share-3 Running, never Pending, equal Pending")
	ns.Delete(t, "never", "equal")
	// For 15 GiB share-0 is enough, which has 8 of a GPU.
	ns.Run(t, asks(high, "high-share", "share", "mem 15"))
	isState(t, ns, "share-0 gone, share-1 Running, share-2 Running, share-3 Running, kept Running")
}
