// SPDX-License-Identifier: Apache-2.0

package podannotations

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
)

// After a start everything is called for again, and every half an hour.
func TestPodThatTheCacheShowsAsRightCostsNoRequest(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client := fake.NewClientset(pod("main"))
	a := newReconciler(Config{Cache: cache.New(cache.Options{Client: client}).Reader(), Client: client.CoreV1()})
	cached := func(p *corev1.Pod) {
		t.Helper()
		if err := a.pods.Put(p); err != nil {
			t.Fatal(err)
		}
	}
	asked := func() (verbs []string) {
		t.Helper()
		client.ClearActions()
		if err := a.reconcile(ctx, claim(result("main", "gpu-1-share", "3Gi"))); err != nil {
			t.Fatal(err)
		}
		for _, action := range client.Actions() {
			verbs = append(verbs, action.GetVerb())
		}
		return verbs
	}
	without := pod("main")
	cached(without)
	if diff := cmp.Diff([]string{"patch"}, asked()); diff != "" {
		t.Errorf("for a pod without annotations (-want +got):\n%s", diff)
	}
	right := pod("main")
	right.Annotations[ack.AnnotationMemory] = `{"0":{"1":3}}`
	cached(right)
	if got := asked(); len(got) > 0 {
		t.Errorf("for a pod that is right: %v", got)
	}
	// Somebody took the label off it, or it was created again: the cache does not have it.
	if err := a.pods.GetStore().Delete(right); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"get"}, asked()); diff != "" {
		t.Errorf("for a pod that the cache does not have (-want +got):\n%s", diff)
	}
}
