// SPDX-License-Identifier: Apache-2.0

//go:build !small

package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

// Planned is what `kubectl inspect cgpu plan` says of manifests.
func (n *Namespace) Planned(t *testing.T, stdin string, arguments ...string) *plan.Plan {
	t.Helper()
	got := n.InspectStatus(t, stdin, append([]string{"plan", "-n", n.Name, "-o", "json"}, arguments...)...)
	var made plan.Plan
	if err := json.Unmarshal([]byte(got.Stdout), &made); err != nil {
		t.Fatalf("exit status %d, %v:\n%s%s", got.Status, err, got.Stdout, got.Stderr)
	}
	if want := map[bool]int{true: 0, false: 2}[made.AllFit()]; got.Status != want {
		t.Errorf("exit status %d, want %d", got.Status, want)
	}
	return &made
}

// PlannedPods is what it says of pods.
func (n *Namespace) PlannedPods(t *testing.T, pods ...*corev1.Pod) *plan.Plan {
	t.Helper()
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	for _, pod := range pods {
		pod = pod.DeepCopy()
		pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		list.Items = append(list.Items, *pod)
	}
	manifest, err := json.Marshal(list)
	expect.NoError(t, err)
	return n.Planned(t, string(manifest), "-f", "-")
}

// AsPlanned reports whether as many pods wait as planned, and the others have the devices.
func (n *Namespace) AsPlanned(ctx context.Context, made *plan.Plan) error {
	pods, err := n.Client.CoreV1().Pods(n.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	waits := 0
	for _, pod := range pods.Items {
		if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		}) {
			waits++
		}
	}
	claims, err := n.Client.ResourceV1().ResourceClaims(n.Name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var has, want []string
	for _, claim := range claims.Items {
		if claim.Status.Allocation != nil {
			for _, result := range claim.Status.Allocation.Devices.Results {
				// The pool of a driver is named after its node.
				has = append(has, strings.TrimSuffix(result.Pool, "/gpu")+" "+result.Device)
			}
		}
	}
	for _, pod := range made.Pods {
		for _, device := range pod.Devices {
			want = append(want, pod.Node+" "+device)
		}
	}
	slices.Sort(has)
	slices.Sort(want)
	if waits != made.Waits || !slices.Equal(has, want) {
		return fmt.Errorf("%d of %d wait, and claims have %q: planned were %d and %q", waits, len(pods.Items), has,
			made.Waits, want)
	}
	return nil
}
