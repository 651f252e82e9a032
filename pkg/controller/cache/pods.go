// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Indexes of pods.
const (
	byAmounts   = "asks for amounts"
	byGang      = "gang"
	byNamespace = "namespace of those without their claims"
	byNode      = "node of those that await their claims"
	byTemplate  = "template"
)

// pending are the pods of which no container runs yet. Those with a node and those without are
// watched together: a pod that gets a node changes then, and does not go and come.
func (r *Reader) pending() *watched {
	selector := fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)).String()
	return r.need(r.cache.pods("pods that have not started", metav1.NamespaceAll, withFields(selector),
		slimPod(r.cache.keepPending), toolscache.Indexers{
			byAmounts: index(func(pod *corev1.Pod) []string {
				return some(byAmounts, unscheduled(pod) && AsksForAmounts(pod))
			}),
			byGang: index(func(pod *corev1.Pod) []string {
				gang, is := podstate.Gang(pod)
				return some(gang.String(), is && unscheduled(pod))
			}),
			byNamespace: index(func(pod *corev1.Pod) []string {
				return some(pod.Namespace, len(podstate.UnmadeClaims(pod)) > 0)
			}),
			byNode: index(func(pod *corev1.Pod) []string {
				return some(pod.Spec.NodeName, podstate.AwaitsClaims(pod))
			}),
			byTemplate: index(func(pod *corev1.Pod) []string {
				if !unscheduled(pod) {
					return nil
				}
				return podstate.Templates(pod)
			}),
		}))
}

func some(value string, is bool) []string {
	if is {
		return []string{value}
	}
	return nil
}

func unscheduled(pod *corev1.Pod) bool { return pod.Spec.NodeName == "" }

func (c *Cache) keepPending(pod, kept *corev1.Pod) {
	if unscheduled(pod) {
		keepUnscheduled(pod, kept)
		if c.nominations {
			keepNomination(pod, kept)
		}
	} else {
		keepStarting(pod, kept)
	}
}

// unseenBy is what UnseenBy reads of a pod, an annotation that the cache alone has.
const unseenBy = "unseen by"

// Unscheduled are the pods without a node: their claims, what the scheduler said of them, what
// extended resources they ask for, and by what they choose nodes; of those that ask for CPUs of
// their own also these; and UnseenBy. Of pods that ask for nothing of the kind next to nothing is kept.
type Unscheduled struct{ *Objects[*corev1.Pod] }

// UnscheduledPods asks for the pods without a node.
func (r *Reader) UnscheduledPods() Unscheduled {
	return Unscheduled{objects(r, r.pending(), unscheduled)}
}

// Gang returns those of a gang.
func (u Unscheduled) Gang(name toolscache.ObjectName) []*corev1.Pod {
	return u.by(byGang, name.String())
}

// WithoutClaims returns those of a namespace whose claims are not all made.
func (u Unscheduled) WithoutClaims(namespace string) []*corev1.Pod {
	return u.by(byNamespace, namespace)
}

// WithTemplate returns those whose claim is to be made of a template, by its key.
func (u Unscheduled) WithTemplate(key string) []*corev1.Pod { return u.by(byTemplate, key) }

// AskForAmounts lists the keys of those whose containers ask for resources of ACK's themselves. It
// is cheap: each node asks.
func (u Unscheduled) AskForAmounts() []string {
	keys, _ := u.GetIndexer().IndexKeys(byAmounts, byAmounts)
	return keys
}

func keepUnscheduled(pod, kept *corev1.Pod) {
	_, asksForCPUs := pod.Annotations[v1alpha1.AnnotationCPUSet]
	spec := corev1.PodSpec{
		NodeName: pod.Spec.NodeName, ResourceClaims: pod.Spec.ResourceClaims, SchedulingGates: pod.Spec.SchedulingGates,
		NodeSelector: pod.Spec.NodeSelector, Affinity: nodeAffinity(pod.Spec.Affinity),
		SchedulingGroup: pod.Spec.SchedulingGroup, Tolerations: pod.Spec.Tolerations,
		InitContainers: asking(pod.Spec.InitContainers), Containers: asking(pod.Spec.Containers),
	}
	if asksForCPUs {
		kept.Annotations = map[string]string{}
		for _, key := range []string{v1alpha1.AnnotationCPUSet, ack.AnnotationBurst} {
			if value, is := pod.Annotations[key]; is {
				kept.Annotations[key] = value
			}
		}
		spec.Containers = withCPUs(pod.Spec.Containers)
	}
	if len(spec.ResourceClaims)+len(spec.InitContainers)+len(spec.Containers) == 0 && !placement.AtGate(pod) &&
		!advice.Concerns(&corev1.Pod{Spec: spec}) {
		return
	}
	kept.Spec = spec
	if scheduler := advice.SilentScheduler(pod); scheduler != "" && hasATurn(pod) {
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, unseenBy, scheduler)
	}
	kept.Status.Phase, kept.Status.ResourceClaimStatuses = pod.Status.Phase, pod.Status.ResourceClaimStatuses
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled {
			kept.Status.Conditions = []corev1.PodCondition{condition}
		}
	}
}

// UnseenBy is the scheduler that an Unscheduled pod names and that has said nothing of it. It is empty for the default
// one, for pods that do not ask for GPUs by limits, and for those of a gang, which may be in that scheduler's queue for
// long.
func UnseenBy(pod *corev1.Pod) string { return pod.Annotations[unseenBy] }

// hasATurn reports whether the scheduler of a pod that asks for GPUs by limits could look at it now.
func hasATurn(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && len(pod.Spec.SchedulingGates) == 0 && !podstate.InGangOfOthers(pod) &&
		(pod.Labels[v1alpha1.LabelLegacy] == "true" || advice.Concerns(pod))
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

// nodeAffinity is the part of an affinity that says on which nodes a pod can be.
func nodeAffinity(a *corev1.Affinity) *corev1.Affinity {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
	}}
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

// Starting are the pods that are on a node and of which no container runs yet: what podstate
// reads of them, which is next to nothing of pods without claims, and IsStaticAsking.
type Starting struct{ *Objects[*corev1.Pod] }

// StartingPods asks for the pods that are on a node and have not started.
func (r *Reader) StartingPods() Starting {
	return Starting{objects(r, r.pending(), func(pod *corev1.Pod) bool { return !unscheduled(pod) })}
}

// OnNode returns those of a node that await their claims.
func (s Starting) OnNode(node string) []*corev1.Pod { return s.by(byNode, node) }

// IsStaticAsking reports whether a Starting pod is the mirror of a static one that asks for resources of ACK's.
func IsStaticAsking(pod *corev1.Pod) bool {
	return pod.Annotations[corev1.MirrorPodAnnotationKey] != ""
}

func keepStarting(pod, kept *corev1.Pod) {
	kept.Spec.NodeName = pod.Spec.NodeName
	if pod.Annotations[corev1.MirrorPodAnnotationKey] != "" && AsksForAmounts(pod) {
		kept.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "asks"}
	}
	if len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil {
		kept.Spec.ResourceClaims = pod.Spec.ResourceClaims
		kept.Status = pod.Status
	}
}

// legacyLabel selects the pods that were converted and the templates that were made for them.
var legacyLabel = labels.Set{v1alpha1.LabelLegacy: "true"}.String()

// annotationMost is how much of an annotation of ACK's is kept: what is longer nobody of ours wrote.
const annotationMost = 4096

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
	for _, key := range ack.Annotations() {
		value, is := pod.Annotations[key]
		if !is {
			continue
		}
		if kept.Annotations == nil {
			kept.Annotations = map[string]string{}
		}
		kept.Annotations[key] = strings.Clone(value[:min(len(value), annotationMost)])
	}
	kept.Spec = corev1.PodSpec{ResourceClaims: pod.Spec.ResourceClaims, Containers: users(pod.Spec.Containers),
		InitContainers: users(pod.Spec.InitContainers)}
	kept.Status.Phase = pod.Status.Phase
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
	if gang, ok := pod.Annotations[v1alpha1.AnnotationGang]; ok {
		kept.Annotations = map[string]string{v1alpha1.AnnotationGang: gang}
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{{UID: owner.UID, Controller: owner.Controller}}
	}
	kept.Spec.NodeName = pod.Spec.NodeName
	kept.Spec.ResourceClaims = podstate.UnmadeClaims(pod)
	kept.Spec.SchedulingGroup = pod.Spec.SchedulingGroup
	kept.Spec.PriorityClassName = pod.Spec.PriorityClassName
	kept.Status.Phase = pod.Status.Phase
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
