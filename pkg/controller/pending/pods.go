// SPDX-License-Identifier: Apache-2.0

package pending

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Selector selects the pods that are not bound to a node.
func Selector() string {
	return fields.AndSelectors(
		fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)),
		fields.OneTermEqualSelector("spec.nodeName", ""),
	).String()
}

// Transform is a transform for an informer of the pods: it leaves of each what
// this package reads, and package admission, which is next to nothing of pods that ask for
// nothing but what Kubernetes itself knows.
func Transform(object any) (any, error) {
	return informer.SlimPod(object, func(pod, kept *corev1.Pod) {
		spec := corev1.PodSpec{
			NodeName: pod.Spec.NodeName, ResourceClaims: pod.Spec.ResourceClaims, SchedulingGates: pod.Spec.SchedulingGates,
			NodeSelector: pod.Spec.NodeSelector, Affinity: nodeAffinity(pod.Spec.Affinity),
			SchedulingGroup: pod.Spec.SchedulingGroup, Tolerations: pod.Spec.Tolerations,
			InitContainers: asking(pod.Spec.InitContainers), Containers: asking(pod.Spec.Containers),
		}
		if len(spec.ResourceClaims)+len(spec.InitContainers)+len(spec.Containers) == 0 &&
			!advice.Concerns(&corev1.Pod{Spec: spec}) {
			return
		}
		kept.Spec = spec
		if least, ok := pod.Labels[ack.LabelMinAvailable]; ok && spec.SchedulingGroup != nil {
			kept.Labels = map[string]string{ack.LabelMinAvailable: least}
		}
		kept.Status.ResourceClaimStatuses = pod.Status.ResourceClaimStatuses
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled {
				kept.Status.Conditions = []corev1.PodCondition{condition}
			}
		}
	})
}

// asking are the containers that ask for extended resources, with what they ask for.
func asking(containers []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range containers {
		requests := corev1.ResourceList{}
		for name, amount := range c.Resources.Requests {
			if scheduling.Extended(name) {
				requests[name] = amount
			}
		}
		if len(requests) > 0 {
			out = append(out, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy,
				Resources: corev1.ResourceRequirements{Requests: requests}})
		}
	}
	return out
}

// nodeAffinity is the part of an affinity that says on which nodes a pod can be.
func nodeAffinity(a *corev1.Affinity) *corev1.Affinity {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
	}}
}

// Refusal is what the scheduler said when it found no node for a pod; false where
// it was not asked yet, or the pod does not wait for it, or for nothing that there is
// something to say of.
func Refusal(pod *corev1.Pod) (string, bool) {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" || len(pod.Spec.SchedulingGates) > 0 {
		return "", false
	}
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			c.Reason != corev1.PodReasonSchedulingGated
	})
	if i < 0 {
		return "", false
	}
	return pod.Status.Conditions[i].Message, true
}
