// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Annotate changes annotations of the pod with this UID, and of no other pod of its name; nil removes one. It returns
// false, and no error, if the pod is gone.
func Annotate(ctx context.Context, client typedcorev1.PodsGetter, pod *corev1.Pod,
	annotations map[string]*string) (bool, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": annotations}})
	if err != nil {
		return false, fmt.Errorf("write a patch: %w", err)
	}
	_, err = client.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: v1alpha1.ControllerName})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It is gone, or another one has its name.
		return false, nil
	}
	return err == nil, err
}

// Touch changes an annotation of the pod, as Annotate does, so that all who watch pods look at it again.
func Touch(ctx context.Context, client typedcorev1.PodsGetter, pod *corev1.Pod, now time.Time) error {
	at := now.UTC().Format(time.RFC3339Nano)
	_, err := Annotate(ctx, client, pod, map[string]*string{v1alpha1.AnnotationSyncRequested: &at})
	if err != nil {
		return fmt.Errorf("change its annotation %s: %w", v1alpha1.AnnotationSyncRequested, err)
	}
	return nil
}
