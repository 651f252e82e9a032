// SPDX-License-Identifier: Apache-2.0

package pods

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// staticOf is the UID by which the kubelet knows a static pod, of which the API server has the mirror; empty for other
// pods.
func staticOf(pod *corev1.Pod) types.UID {
	return types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey])
}

// sameStatic reports whether both are mirrors of one static pod. It runs on when its mirror is deleted, which the
// kubelet makes again.
func sameStatic(a, b *corev1.Pod) bool {
	return staticOf(a) != "" && staticOf(a) == staticOf(b) && a.UID != b.UID && a.Namespace == b.Namespace &&
		a.Name == b.Name
}

// runs reports whether the pod has processes on the node. Whoever writes pods can write the annotation of a mirror, so
// it never hides the pod's own.
func (p *Picture) runs(pod *corev1.Pod) (bool, error) {
	runs, err := p.Running(pod.UID)
	if static := staticOf(pod); !runs && err == nil && static != "" {
		return p.Running(static)
	}
	return runs, err
}
