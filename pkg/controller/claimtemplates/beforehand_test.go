// SPDX-License-Identifier: Apache-2.0

package claimtemplates

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// Whoever is to know of pods before the scheduler does is told while their template is not there.
func TestBeforehand(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client := fake.NewClientset()
	told := 0
	k := newReconciler(Config{Cache: cache.New(cache.Options{Client: client}).Reader(), Client: client.ResourceV1(),
		Events: report.New(record.NewFakeRecorder(10), clock.RealClock{}), Clock: clock.RealClock{},
		Beforehand: func(_ context.Context, pods []*corev1.Pod) {
			if told = len(pods); len(client.Actions()) > 0 {
				t.Errorf("told of pods after %v", client.Actions())
			}
		}})
	_, err := k.make(ctx, mustTemplate(t, "a", three), []*corev1.Pod{pod("a", "one", three)})
	expect.NoError(t, err)
	if told != 1 || len(client.Actions()) != 1 {
		t.Errorf("told of %d pods, want one, and the template made: %v", told, client.Actions())
	}
}
