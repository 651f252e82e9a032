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

// Touch changes the pod's annotation, of the pod with this UID and no other of its name, so
// that who watches pods looks at it again. A pod that is gone is no error.
func Touch(ctx context.Context, client typedcorev1.PodsGetter, pod *corev1.Pod, now time.Time) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         pod.UID,
		"annotations": map[string]string{v1alpha1.AnnotationSyncRequested: now.UTC().Format(time.RFC3339Nano)},
	}})
	if err != nil {
		return fmt.Errorf("write a patch: %w", err)
	}
	options := metav1.PatchOptions{FieldManager: v1alpha1.ControllerName}
	_, err = client.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, options)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It is gone, or another one has its name.
		return nil
	}
	if err != nil {
		return fmt.Errorf("change its annotation %s: %w", v1alpha1.AnnotationSyncRequested, err)
	}
	return nil
}
