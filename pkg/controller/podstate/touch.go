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
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Patch changes a pod, or a subresource of it. It returns false, and no error, if the pod is gone, or is not what the
// patch tests. The API server answers with the metadata of the pod alone: nobody reads the rest.
func Patch(ctx context.Context, client metadata.Interface, pod *corev1.Pod, of types.PatchType, patch any,
	subresources ...string) (bool, error) {
	written, err := json.Marshal(patch)
	if err != nil {
		return false, fmt.Errorf("write a patch: %w", err)
	}
	pods := client.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(pod.Namespace)
	_, err = pods.Patch(ctx, pod.Name, of, written,
		metav1.PatchOptions{FieldManager: v1alpha1.ControllerName}, subresources...)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || of == types.JSONPatchType && apierrors.IsInvalid(err) {
		return false, nil
	}
	return err == nil, err
}

// Annotate changes annotations of the pod with this UID, and of no other pod of its name; nil removes one. It returns
// false, and no error, if the pod is gone.
func Annotate(ctx context.Context, client metadata.Interface, pod *corev1.Pod,
	annotations map[string]*string) (bool, error) {
	return Patch(ctx, client, pod, types.MergePatchType,
		map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": annotations}})
}

// Touch changes an annotation of the pod, as Annotate does, so that all who watch pods look at it again.
func Touch(ctx context.Context, client metadata.Interface, pod *corev1.Pod, now time.Time) error {
	at := now.UTC().Format(time.RFC3339Nano)
	_, err := Annotate(ctx, client, pod, map[string]*string{v1alpha1.AnnotationSyncRequested: &at})
	if err != nil {
		return fmt.Errorf("change its annotation %s: %w", v1alpha1.AnnotationSyncRequested, err)
	}
	return nil
}

// HaveClaimsMade has kube-controller-manager look at a pod whose claims it gave up on for a while, as what they waited
// for is there: since says what that is. It is false where the API server refuses the change, as by a policy for this
// pod, which is logged: that keeps no other pod waiting.
func HaveClaimsMade(ctx context.Context, client metadata.Interface, pod *corev1.Pod, now time.Time, since string) (
	bool, error) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "pod", klog.KObj(pod), "since", since)
	err := Touch(ctx, client, pod, now)
	switch {
	case err == nil:
		logger.V(2).Info("Had the claims of a pod made")
		return true, nil
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		logger.Error(err, "The claims of a pod are not made: will try again")
		return false, nil
	}
	return false, fmt.Errorf("have the claims of pod %s made, since %s: %w", klog.KObj(pod), since, err)
}

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
