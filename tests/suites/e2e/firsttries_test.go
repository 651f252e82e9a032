// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// The first of a pod's Events is not a Warning about a template that is there a moment
// later.
func TestLegacyPodsStartWithoutAWarning(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	pod := harness.Asking("mem 1")
	ns.Run(t, harness.On("share", pod)...)
	events, err := ns.Client.CoreV1().Events(ns.Name).List(t.Context(),
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
	expect.NoError(t, err)
	for _, event := range events.Items {
		// On a machine with much to do the template may come after the eighth try.
		if event.Reason == "FailedResourceClaimCreation" && event.Count <= 8 {
			t.Errorf("pod %s, which runs, has the Event %s of %d tries: %s", pod.Name, event.Reason, event.Count, event.Message)
		}
	}
}
