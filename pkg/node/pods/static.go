// SPDX-License-Identifier: Apache-2.0

package pods

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// staticOf returns, for the mirror of a static pod, the UID by which the kubelet knows the static pod; empty for other
// pods.
func staticOf(pod *corev1.Pod) types.UID {
	return types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey])
}

// sameStatic reports whether both are mirrors of one static pod. The static pod runs on when its mirror is deleted, and
// the kubelet makes a new one.
func sameStatic(a, b *corev1.Pod) bool {
	return staticOf(a) != "" && staticOf(a) == staticOf(b) && a.UID != b.UID && a.Namespace == b.Namespace &&
		a.Name == b.Name
}

// runs reports whether the pod has processes on the node. All who may write pods can write the annotation of a mirror,
// so it never hides the processes of the pod's own UID.
func (p *Picture) runs(pod *corev1.Pod) (bool, error) {
	runs, err := p.Running(pod.UID)
	if static := staticOf(pod); !runs && err == nil && static != "" {
		return p.Running(static)
	}
	return runs, err
}
