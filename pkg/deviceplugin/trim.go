// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Trim returns a copy with what this package reads of a pod, small enough to be kept
// of every pod of a node. Of a pod that asks for none of the resources that is little
// more than its name, the claims that its containers use, and by which IDs the runtime
// knows them: others read the same pods (pkg/node/audit).
func Trim(pod *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			ResourceVersion: pod.ResourceVersion},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, StartTime: pod.Status.StartTime},
	}
	claims := len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
	if claims {
		out.Spec.ResourceClaims = pod.Spec.ResourceClaims
		out.Status.ResourceClaimStatuses = pod.Status.ResourceClaimStatuses
		out.Status.ExtendedResourceClaimStatus = pod.Status.ExtendedResourceClaimStatus
	}
	out.Status.ContainerStatuses, out.Status.InitContainerStatuses, out.Status.EphemeralContainerStatuses =
		trimStatuses(pod.Status.ContainerStatuses), trimStatuses(pod.Status.InitContainerStatuses),
		trimStatuses(pod.Status.EphemeralContainerStatuses)
	asks := asksInAnnotations(pod) || asksNative(pod)
	if asks {
		out.Annotations = annotationsOf(pod)
	}
	if uid, is := pod.Annotations[corev1.MirrorPodAnnotationKey]; is && len(uid) <= mostUID {
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[corev1.MirrorPodAnnotationKey] = uid
	}
	if asks || claims {
		out.Spec.Containers, out.Spec.InitContainers = trimContainers(pod.Spec.Containers),
			trimContainers(pod.Spec.InitContainers)
	}
	return out
}

// mostUID is how long the UID of a static pod can be.
const mostUID = 64

// trimContainers keeps all containers, since annotations count them.
func trimContainers(containers []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, 0, len(containers))
	for _, c := range containers {
		out = append(out, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy,
			Resources: corev1.ResourceRequirements{Limits: c.Resources.Limits, Claims: c.Resources.Claims}})
	}
	return out
}

// trimStatuses keeps of each container whether it was ever started, and its last ID.
func trimStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for _, s := range statuses {
		if everStarted(s) {
			out = append(out, corev1.ContainerStatus{Name: s.Name, ContainerID: s.ContainerID,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
		}
	}
	return out
}

// Transform is a transform for informers of pods: they hold a trimmed pod for each.
func Transform(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		return Trim(pod), nil
	}
	return object, nil
}
