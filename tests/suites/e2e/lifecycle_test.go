// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

func TestWavesOfPods(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	began := metav1.Now()
	ns := cluster.Namespace(t)
	ns.Template(t, "three", harness.Requests(harness.Share("gpu", "3Gi")))
	const total, wave = 100, 8
	for first := 0; first < total; first += wave {
		var pods []*corev1.Pod
		var names []string
		for i := first; i < min(first+wave, total); i++ {
			pods = append(pods, harness.Pod(fmt.Sprintf("p%d", i), "fill", harness.FromTemplate("three")))
			names = append(names, pods[len(pods)-1].Name)
		}
		ns.Run(t, pods...)
		ns.Delete(t, names...)
	}
	harness.Eventually(t, "all claims to leave the node",
		func(context.Context) error { return cluster.CheckNothingOn("fill") })

	events, err := ns.Client.CoreV1().Events(ns.Name).List(t.Context(), metav1.ListOptions{FieldSelector: "type=Warning"})
	expect.NoError(t, err)
	for _, event := range events.Items {
		// Kubernetes' claim controller may see a pod before its template, and tries again.
		noTemplateYet := event.Reason == "FailedResourceClaimCreation" && strings.HasSuffix(event.Message, "not found")
		if event.Reason != "FailedScheduling" && !noTemplateYet && !harness.NotYetAuthorized(&event) {
			t.Errorf("event of pod %s: %s: %s", event.InvolvedObject.Name, event.Reason, event.Message)
		}
	}
	cluster.LoggedNoError(t, "fill", began)
}
