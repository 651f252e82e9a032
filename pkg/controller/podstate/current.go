// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Current returns a pod as the API server has it, nil if it is gone or another pod has its name.
func Current(ctx context.Context, client typedcorev1.PodsGetter, namespace, name string, uid types.UID) (
	*corev1.Pod, error) {
	pod, err := client.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look at pod %s/%s: %w", namespace, name, err)
	case pod.UID != uid:
		return nil, nil
	}
	return pod, nil
}

// ByUID returns the pods by their UIDs.
func ByUID(pods []*corev1.Pod) map[types.UID]*corev1.Pod {
	out := make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		out[pod.UID] = pod
	}
	return out
}
