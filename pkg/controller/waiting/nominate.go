// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

const nominatedPath = "/status/nominatedNodeName"

// patchOf nominates a node for a pod, none where it is empty. The API server takes the patch only while the pod is this
// one, without a node, and nominated is what it was when the node was chosen.
func patchOf(pod *corev1.Pod, node string) ([]byte, error) {
	test := func(path, value string) operation {
		if value == "" {
			return operation{"test", path, nil}
		}
		return operation{"test", path, value}
	}
	write := operation{"add", nominatedPath, node}
	if node == "" {
		write = operation{"remove", nominatedPath, nil}
	}
	return json.Marshal([]operation{test("/metadata/uid", string(pod.UID)), test("/spec/nodeName", ""),
		test(nominatedPath, pod.Status.NominatedNodeName), write})
}

// nominate writes a pod's nomination. It is false where the pod has changed meanwhile, or is gone.
func nominate(ctx context.Context, client typedcorev1.PodsGetter, pod *corev1.Pod, node string) (bool, error) {
	patch, err := patchOf(pod, node)
	if err != nil {
		return false, fmt.Errorf("write a patch: %w", err)
	}
	_, err = client.Pods(pod.Namespace).Patch(ctx, pod.Name, types.JSONPatchType, patch,
		metav1.PatchOptions{FieldManager: v1alpha1.ControllerName}, "status")
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("nominate node %q for pod %s/%s: %w", node, pod.Namespace, pod.Name, err)
	}
	return true, nil
}
