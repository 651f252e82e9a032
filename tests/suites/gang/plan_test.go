// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/cpu"
)

// comesToPass creates pods, and waits until they are where they were planned.
func comesToPass(t *testing.T, ns *harness.Namespace, made *plan.Plan, pods ...*corev1.Pod) {
	t.Helper()
	ns.Create(t, pods...)
	harness.Eventually(t, "the pods to be where they were planned",
		func(ctx context.Context) error { return ns.AsPlanned(ctx, made) })
}

// plannedWith checks that a pod was planned with such a request.
func plannedWith(t *testing.T, made *plan.Plan, pod int, text string) {
	t.Helper()
	if asked := strings.Join(made.Pods[pod].Asked, "\n"); !strings.Contains(asked, text) {
		t.Errorf("pod %s was planned with\n%s\nwithout %s", made.Pods[pod].Name, asked, text)
	}
}

// A plan uses what this cluster's policies make of pods.
func TestPlansGoByThePolicies(t *testing.T) {
	t.Run("gangs", func(t *testing.T) {
		ns := cluster.Namespace(t)
		pods := members("held", 5, 5, "share", "mem 15")
		made := ns.PlannedPods(t, pods...)
		if made.Waits != 5 || len(made.Notes) > 0 {
			t.Errorf("of a gang of five %d wait, want all: there is room for four; notes %q", made.Waits, made.Notes)
		}
		ns.Create(t, pods...)
		waitsWhole(t, ns, "held-", "held-0")
	})
	t.Run("CPUs of a container's own", func(t *testing.T) {
		serveCPUs(t, "share", map[int64]int64{0: 1})
		classOfCPUs(t)
		ns := cluster.Namespace(t)
		harness.Eventually(t, "the policy to give claims for CPUs", func(ctx context.Context) error {
			pod, err := ns.Admitted(ctx, pinned("probe", "share", ""))
			if err == nil && len(pod.Spec.ResourceClaims) == 0 {
				err = errors.New("it does not use the DeviceClass yet")
			}
			return err
		})
		harness.Eventually(t, "the CPUs to be published", func(ctx context.Context) error {
			published, err := ns.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
				FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + cpu.DriverName})
			if err == nil && len(published.Items) == 0 {
				err = errors.New("they are not")
			}
			return err
		})
		pods := []*corev1.Pod{pinned("first", "share", "mem 3"), pinned("second", "share", "mem 3")}
		made := ns.PlannedPods(t, pods...)
		if made.Fits != 1 || made.Pods[0].Node == "" {
			t.Errorf("planned were %+v, want the first alone: there is one CPU", made.Pods)
		}
		plannedWith(t, made, 1, "class dra.cpu")
		comesToPass(t, ns, made, pods...)
	})
	t.Run("nvidia.com/gpu", func(t *testing.T) {
		ns := cluster.Namespace(t)
		asClaims(t, ns)
		var pods []*corev1.Pod
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			pods = append(pods, harness.GoingTo(harness.Asking("nvidia.com/gpu 1"), name, "whole"))
		}
		made := ns.PlannedPods(t, pods...)
		if made.Fits != 4 {
			t.Errorf("%d fit, want one for each of the 4 GPUs", made.Fits)
		}
		plannedWith(t, made, 0, "claim a-gpushare-nvidia")
		comesToPass(t, ns, made, pods...)
	})
}
