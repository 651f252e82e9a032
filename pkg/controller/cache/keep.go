// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"bytes"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// What is noted of a pod, as annotations that the cache alone has.
const (
	prefersNodes = "prefers nodes"
	nominatedBy  = "nominated by " + v1alpha1.ControllerName
	staticAsking = "static, asks for amounts"
	unseenBy     = "unseen by"
)

// PrefersNodes reports whether a pod of NominablePods chooses among the nodes that it can be on, or depends on the pods
// there: a nomination would decide in place of what it says.
func PrefersNodes(pod *corev1.Pod) bool { return pod.Annotations[prefersNodes] != "" }

// NominatedByController reports whether gpu-compat-controller nominated the node of a pod of NominablePods.
func NominatedByController(pod *corev1.Pod) bool { return pod.Annotations[nominatedBy] != "" }

// IsStaticAsking reports whether a Starting pod is the mirror of a static one that asks for resources of ACK's.
func IsStaticAsking(pod *corev1.Pod) bool { return pod.Annotations[staticAsking] != "" }

// UnseenBy is the scheduler that an Unscheduled pod names and that has said nothing of it. It is empty for the default
// one, for pods that do not ask for GPUs by limits, and for those of a gang, which may be in that scheduler's queue for
// long.
func UnseenBy(pod *corev1.Pod) string { return pod.Annotations[unseenBy] }

// keepPod copies what is kept of a pod that has not ended.
func (c *Cache) keepPod(pod, kept *corev1.Pod) {
	kept.Spec.NodeName = pod.Spec.NodeName
	switch {
	case unscheduled(pod):
		keepUnscheduled(pod, kept)
	case pending(pod):
		keepStarting(pod, kept)
	}
	if c.live {
		keepLive(pod, kept)
	}
}

func keepUnscheduled(pod, kept *corev1.Pod) {
	_, asksForCPUs := pod.Annotations[v1alpha1.AnnotationCPUSet]
	spec := corev1.PodSpec{
		ResourceClaims: pod.Spec.ResourceClaims, SchedulingGates: pod.Spec.SchedulingGates,
		NodeSelector: pod.Spec.NodeSelector, SchedulingGroup: pod.Spec.SchedulingGroup, Tolerations: pod.Spec.Tolerations,
		InitContainers: asking(pod.Spec.InitContainers), Containers: asking(pod.Spec.Containers),
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		}}
	}
	if asksForCPUs {
		keepAnnotations(pod, kept, v1alpha1.AnnotationCPUSet, ack.AnnotationBurst)
		spec.Containers = withCPUs(pod.Spec.Containers)
	}
	silent := advice.SilentScheduler(pod)
	if silent != "" {
		keepAnnotations(pod, kept, advice.Annotations()...)
	}
	if len(spec.ResourceClaims)+len(spec.InitContainers)+len(spec.Containers) == 0 && !placement.AtGate(pod) &&
		!advice.Concerns(&corev1.Pod{ObjectMeta: kept.ObjectMeta, Spec: spec}) {
		return
	}
	kept.Spec, kept.Status.ResourceClaimStatuses = spec, pod.Status.ResourceClaimStatuses
	keepOwner(pod, kept)
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled {
			kept.Status.Conditions = []corev1.PodCondition{condition}
		}
	}
	if silent != "" && hasATurn(pod) {
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, unseenBy, silent)
	}
	if choosesNodes(&pod.Spec) {
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, prefersNodes, "true")
	}
	if pod.Status.NominatedNodeName != "" && slices.ContainsFunc(pod.ManagedFields, ofNomination) {
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, nominatedBy, "true")
	}
}

// hasATurn reports whether the scheduler of a pod that asks for GPUs by limits could look at it now.
func hasATurn(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 && !podstate.InGangOfOthers(pod) &&
		(pod.Labels[v1alpha1.LabelLegacy] == "true" || advice.Concerns(pod))
}

// keepOwner keeps who makes a new pod when this one goes.
func keepOwner(pod, kept *corev1.Pod) {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{*owner}
	}
}

// annotationMost is how much of an annotation is kept: what is longer nobody wrote who is to be understood.
const annotationMost = 4096

func keepAnnotations(pod, kept *corev1.Pod, keys ...string) {
	for _, key := range keys {
		if value, is := pod.Annotations[key]; is {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, strings.Clone(value[:min(len(value), annotationMost)]))
		}
	}
}

// asking are the containers that ask for extended resources, with what they ask for.
func asking(containers []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range containers {
		if requests := extended(c.Resources.Requests); len(requests) > 0 {
			out = append(out, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy,
				Resources: corev1.ResourceRequirements{Requests: requests}})
		}
	}
	return out
}

func extended(list corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, amount := range list {
		if scheduling.Extended(name) {
			out[name] = amount
		}
	}
	return out
}

// withCPUs are all containers, with their CPUs and claims besides: which of them a claim is for
// uses their order.
func withCPUs(containers []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range containers {
		kept := corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, Resources: corev1.ResourceRequirements{
			Requests: extended(c.Resources.Requests), Limits: corev1.ResourceList{}, Claims: c.Resources.Claims}}
		if amount, is := c.Resources.Requests[corev1.ResourceCPU]; is {
			kept.Resources.Requests[corev1.ResourceCPU] = amount
		}
		if amount, is := c.Resources.Limits[corev1.ResourceCPU]; is {
			kept.Resources.Limits[corev1.ResourceCPU] = amount
		}
		out = append(out, kept)
	}
	return out
}

func choosesNodes(spec *corev1.PodSpec) bool {
	a := spec.Affinity
	return len(spec.TopologySpreadConstraints) > 0 || spec.HostNetwork ||
		a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil ||
			a.NodeAffinity != nil && len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0) ||
		scheduling.HasHostPort(spec)
}

func ofNomination(entry metav1.ManagedFieldsEntry) bool {
	return entry.Manager == v1alpha1.ControllerName && entry.FieldsV1 != nil &&
		bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(`"f:nominatedNodeName"`))
}

// AsksForAmounts reports whether containers of a pod ask for resources of ACK's themselves.
func AsksForAmounts(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(legacy.Names(), func(name corev1.ResourceName) bool {
			amount := c.Resources.Requests[name]
			return !amount.IsZero()
		})
	})
}

func keepStarting(pod, kept *corev1.Pod) {
	if pod.Annotations[corev1.MirrorPodAnnotationKey] != "" && AsksForAmounts(pod) {
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, staticAsking, "true")
	}
	if len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil {
		kept.Spec.ResourceClaims = pod.Spec.ResourceClaims
		kept.Status = pod.Status
	}
}

func keepLive(pod, kept *corev1.Pod) {
	kept.DeletionGracePeriodSeconds = pod.DeletionGracePeriodSeconds
	keepOwner(pod, kept)
	// PodDisruptionBudgets and other pods' affinities select by them.
	kept.Labels = pod.Labels
	keepAnnotations(pod, kept, append(podstate.GangAnnotations(), corev1.MirrorPodAnnotationKey)...)
	spec := &kept.Spec
	spec.Priority, spec.PreemptionPolicy = pod.Spec.Priority, pod.Spec.PreemptionPolicy
	spec.SchedulerName, spec.SchedulingGroup = pod.Spec.SchedulerName, pod.Spec.SchedulingGroup
	spec.SchedulingGates, spec.ResourceClaims = pod.Spec.SchedulingGates, pod.Spec.ResourceClaims
	spec.TerminationGracePeriodSeconds = pod.Spec.TerminationGracePeriodSeconds
	spec.Resources = &corev1.ResourceRequirements{Requests: scheduling.RequestsOf(pod)}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		if spec.Affinity == nil {
			spec.Affinity = &corev1.Affinity{}
		}
		spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		}
	}
	kept.Status.NominatedNodeName, kept.Status.StartTime = pod.Status.NominatedNodeName, pod.Status.StartTime
}
