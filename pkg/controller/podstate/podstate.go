// SPDX-License-Identifier: Apache-2.0

// Package podstate is what several controllers ask of a pod: what the scheduler said of it,
// whether its claims have been prepared, which claims and which gang it has; and how to have it
// looked at again.
package podstate

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
)

// NoDevices is what the scheduler says of a node that it finds no devices on.
const NoDevices = "cannot allocate all claims"

// Unschedulable is what the scheduler said when it found no node for a pod; false where
// it was not asked yet, or the pod does not wait for it, or for nothing that there is
// something to say of.
func Unschedulable(pod *corev1.Pod) (string, bool) {
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

// Gang is the PodGroup that the scheduler places a pod with; false where it has none.
func Gang(pod *corev1.Pod) (cache.ObjectName, bool) {
	if pod.Spec.SchedulingGroup == nil {
		return cache.ObjectName{}, false
	}
	name := ptr.Deref(pod.Spec.SchedulingGroup.PodGroupName, "")
	return cache.NewObjectName(pod.Namespace, name), name != ""
}

// NamedGang is the gang that a pod names in ACK's manner, whether it belongs to it or not.
func NamedGang(pod *corev1.Pod) cache.ObjectName {
	return cache.NewObjectName(pod.Namespace, pod.Labels[ack.LabelPodGroup])
}

// GangAnnotations are those by which pods name a gang of their scheduler: Koordinator's and Volcano's.
func GangAnnotations() []string { return []string{ack.AnnotationGang, "scheduling.k8s.io/group-name"} }

// InGangOfOthers reports whether another scheduler than the default one places the pod with a gang, which it names by
// one of GangAnnotations, or by the label of ACK or of scheduler-plugins' coscheduling.
func InGangOfOthers(pod *corev1.Pod) bool {
	named := func(in map[string]string) func(string) bool {
		return func(key string) bool { return in[key] != "" }
	}
	return cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName) != corev1.DefaultSchedulerName &&
		(slices.ContainsFunc([]string{ack.LabelPodGroup, "scheduling.x-k8s.io/pod-group"}, named(pod.Labels)) ||
			slices.ContainsFunc(GangAnnotations(), named(pod.Annotations)))
}

// IsMirror reports whether a pod is the mirror of a static one. A kubelet writes those, into any namespace, and nobody
// else.
func IsMirror(pod *corev1.Pod) bool {
	_, is := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return is
}

// ByAge compares pods by their creation, and those of the same moment by their names.
func ByAge(a, b *corev1.Pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// AwaitsClaims reports whether a pod is on a node and, as far as it shows, none of its
// claims has been prepared: it is the kubelet's and the driver's turn.
func AwaitsClaims(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" || pod.Status.Phase != corev1.PodPending || started(pod) {
		return false
	}
	for range resourceclaim.PodClaims(pod) {
		return true
	}
	return false
}

// started reports whether the pod's sandbox is there or a container ever was. The kubelet
// has all claims prepared before it makes the sandbox, and a sandbox that is lost leaves
// the containers' states.
func started(pod *corev1.Pod) bool {
	return deviceplugin.Started(pod) || slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
	})
}
