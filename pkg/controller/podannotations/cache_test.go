// SPDX-License-Identifier: Apache-2.0

package podannotations

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// After a start everything is called for again, and every half an hour.
func TestPodThatTheCacheShowsAsRightCostsNoRequest(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client := fake.NewClientset(pod("main"))
	a := &annotator{Config{Client: client.CoreV1(),
		Pods: informers.NewSharedInformerFactory(client, 0).Core().V1().Pods().Informer()}}
	cached := func(p *corev1.Pod) {
		t.Helper()
		kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
		Keep(p, kept)
		if err := a.Pods.GetStore().Add(kept); err != nil {
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
	// Somebody took the label off it, or it was made anew: the cache does not have it.
	if err := a.Pods.GetStore().Delete(right); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"get"}, asked()); diff != "" {
		t.Errorf("for a pod that the cache does not have (-want +got):\n%s", diff)
	}
}

func TestLittleIsKeptOfAPod(t *testing.T) {
	p := pod("main")
	p.Annotations[ack.AnnotationMemory] = strings.Repeat("x", 1<<18)
	p.Spec.Containers[0].Image = "image"
	kept := &corev1.Pod{}
	Keep(p, kept)
	if len(kept.Annotations) != 1 || len(kept.Annotations[ack.AnnotationMemory]) > annotationMost {
		t.Errorf("%d annotations are kept, of one %d bytes", len(kept.Annotations),
			len(kept.Annotations[ack.AnnotationMemory]))
	}
	if diff := cmp.Diff([]corev1.Container{{Name: "main"}}, kept.Spec.Containers); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
}
