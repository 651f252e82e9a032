// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// readsAtOnce is how many objects are read side by side: a claim has up to 256
	// users, and one after the other they would take longer than the kubelet waits.
	readsAtOnce = 16
	// readsLimit leaves the kubelet, which waits 45 s, the time to be told why.
	readsLimit = 30 * time.Second
)

// Pods reads the pods that use the claim and still exist, in the claim's order. A pod that
// was created again under the name of one of them is not among them.
func (r Reader) Pods(ctx context.Context, c *resourceapi.ResourceClaim) ([]*corev1.Pod, error) {
	pods, err := readEach(ctx, PodsOf(c), func(ctx context.Context, ref corev1.ObjectReference) (*corev1.Pod, error) {
		pod, err := r.Client.CoreV1().Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) || err == nil && pod.UID != ref.UID:
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("read pod %s/%s, which uses claim %s: %w", ref.Namespace, ref.Name, c.Name, err)
		}
		return pod, nil
	})
	return slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return pod == nil }), err
}

// readEach calls read for each key, some at a time, and returns the results in the
// keys' order. The first error ends it.
func readEach[K, V any](ctx context.Context, keys []K, read func(context.Context, K) (V, error)) ([]V, error) {
	ctx, cancel := context.WithTimeout(ctx, readsLimit)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	out := make([]V, len(keys))
	for i, key := range keys {
		group.Go(func() (err error) {
			out[i], err = read(ctx, key)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return out, nil
}
