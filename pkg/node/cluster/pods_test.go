// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// usedBy makes a claim of so many pods, and the pods.
func usedBy(n int) (*resourceapi.ResourceClaim, *fake.Clientset) {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "shared"}}
	client := fake.NewClientset()
	for i := range n {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("pod-%03d", i),
			UID: types.UID(fmt.Sprint(i))}}
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		if i%2 == 0 {
			_ = client.Tracker().Add(pod)
		}
	}
	return c, client
}

func TestPodsOfAClaimWithManyUsers(t *testing.T) {
	c, client := usedBy(256)
	pods, err := Reader{Client: client}.Pods(t.Context(), c)
	if err != nil || len(pods) != 128 {
		t.Fatalf("%d pods, want the 128 that exist: %v", len(pods), err)
	}
	for i, pod := range pods {
		if want := fmt.Sprintf("pod-%03d", 2*i); pod.Name != want {
			t.Errorf("pod %d is %s, want %s: what a claim's pods make of it must not depend on who answers first", i, pod.Name,
				want)
		}
	}
}

// The reads wait for each other here: one after the other they would never end.
func TestReadsAreSideBySideAndBounded(t *testing.T) {
	var running, most atomic.Int64
	full := make(chan struct{})
	isFull := sync.OnceFunc(func() { close(full) })
	_, err := readEach(t.Context(), make([]int, 4*readsAtOnce), func(ctx context.Context, _ int) (int, error) {
		defer running.Add(-1)
		now := running.Add(1)
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
		}
		if now == readsAtOnce {
			isFull()
		}
		select {
		case <-full:
			return 0, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	})
	if err != nil || most.Load() != readsAtOnce {
		t.Errorf("at most %d reads were side by side, want %d: %v", most.Load(), readsAtOnce, err)
	}
}

func TestReadsEndWithTheKubeletsCall(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := readEach(ctx, make([]int, 256), func(ctx context.Context, _ int) (int, error) {
		cancel(fmt.Errorf("the kubelet gave up"))
		<-ctx.Done()
		return 0, context.Cause(ctx)
	})
	expect.Error(t, err, "the kubelet gave up")
}
