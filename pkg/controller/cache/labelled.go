// SPDX-License-Identifier: Apache-2.0

package cache

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

// legacyLabel selects the pods that were converted and the templates that were made for them.
var legacyLabel = labels.Set{v1alpha1.LabelLegacy: "true"}.String()

// Converted are the pods that asked in ACK's manner and were given claims: their claims, ACK's
// annotations and which container uses which request.
type Converted struct{ *Objects[*corev1.Pod] }

// ConvertedPods asks for the pods that were converted, in whatever phase.
func (r *Reader) ConvertedPods() Converted {
	return Converted{objects[*corev1.Pod](r, r.need(r.cache.pods("converted pods", metav1.NamespaceAll,
		withLabels(legacyLabel), slimPod(keepConverted),
		toolscache.Indexers{byTemplate: index(podstate.Templates)})), nil)}
}

// WithTemplate returns those that have not ended and whose claim is made of a template, by its key.
func (c Converted) WithTemplate(key string) []*corev1.Pod { return c.by(byTemplate, key) }

func keepConverted(pod, kept *corev1.Pod) {
	keepAnnotations(pod, kept, ack.Annotations()...)
	kept.Spec = corev1.PodSpec{ResourceClaims: pod.Spec.ResourceClaims, Containers: users(pod.Spec.Containers),
		InitContainers: users(pod.Spec.InitContainers)}
}

func users(containers []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range containers {
		out = append(out, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy,
			Resources: corev1.ResourceRequirements{Claims: c.Resources.Claims}})
	}
	return out
}

// OfGangs are the pods that name a gang in ACK's manner: of their claims those that are not made, of
// their controller its UID.
type OfGangs struct{ *Objects[*corev1.Pod] }

// PodsOfGangs asks for the pods that name a gang in ACK's manner.
func (r *Reader) PodsOfGangs() OfGangs {
	return OfGangs{objects[*corev1.Pod](r, r.need(r.cache.pods("pods of gangs", metav1.NamespaceAll,
		withLabels(ack.LabelPodGroup), slimPod(keepOfGangs), toolscache.Indexers{
			byGang: index(func(pod *corev1.Pod) []string { return []string{podstate.NamedGang(pod).String()} }),
		})), nil)}
}

// Gang returns those that name a gang.
func (g OfGangs) Gang(name toolscache.ObjectName) []*corev1.Pod { return g.by(byGang, name.String()) }

func keepOfGangs(pod, kept *corev1.Pod) {
	kept.Labels = map[string]string{}
	for _, label := range []string{ack.LabelPodGroup, ack.LabelMinAvailable} {
		if value, ok := pod.Labels[label]; ok {
			kept.Labels[label] = value
		}
	}
	keepAnnotations(pod, kept, v1alpha1.AnnotationGang, corev1.MirrorPodAnnotationKey)
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{{UID: owner.UID, Controller: owner.Controller}}
	}
	kept.Spec.NodeName = pod.Spec.NodeName
	kept.Spec.ResourceClaims = podstate.UnmadeClaims(pod)
	kept.Spec.SchedulingGroup = pod.Spec.SchedulingGroup
	kept.Spec.PriorityClassName = pod.Spec.PriorityClassName
}

// pluginLabel selects the pods of the node agents.
const pluginLabel = "app.kubernetes.io/component=gpu-kubelet-plugin"

// PluginPods asks for the pods of the driver's node agents: whether their containers are ready.
// The reader does not wait for them.
func (r *Reader) PluginPods() *Objects[*corev1.Pod] {
	return objects[*corev1.Pod](r, r.cache.pods("the pods of gpu-kubelet-plugin", r.cache.Namespace,
		withLabels(pluginLabel), slimPod(func(pod, kept *corev1.Pod) {
			kept.Spec.NodeName, kept.Status.ContainerStatuses = pod.Spec.NodeName, pod.Status.ContainerStatuses
		}), nil), nil)
}
