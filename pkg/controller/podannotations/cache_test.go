// SPDX-License-Identifier: Apache-2.0

package podannotations

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
)

// After a start everything is called for again, and every half an hour.
func TestPodThatTheCacheShowsAsRightCostsNoRequest(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client := fake.NewClientset(pod("main"))
	a := newReconciler(Config{Cache: cache.New(cache.Options{Client: client}).Reader(), Live: client.CoreV1(),
		Changes: apitest.PatchingPods(client)})
	cached := func(p *corev1.Pod) {
		t.Helper()
		expect.NoError(t, a.pods.Put(p))
	}
	asked := func() (verbs []string) {
		t.Helper()
		client.ClearActions()
		expect.NoError(t, a.reconcile(ctx, claim(result("main", "gpu-1-share", "3Gi"))))
		for _, action := range client.Actions() {
			verbs = append(verbs, action.GetVerb())
		}
		return verbs
	}
	without := pod("main")
	cached(without)
	expect.Equal(t, []string{"patch"}, asked(), "for a pod without annotations")
	right := pod("main")
	right.Annotations[ack.AnnotationMemory] = `{"0":{"1":3}}`
	cached(right)
	expect.Equal(t, nil, asked(), "for a pod that is right")
	// Somebody took the label off it, or it was created again: the cache does not have it.
	expect.NoError(t, a.pods.GetStore().Delete(right))
	expect.Equal(t, []string{"get"}, asked(), "for a pod that the cache does not have")
}
