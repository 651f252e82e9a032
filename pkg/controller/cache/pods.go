// SPDX-License-Identifier: Apache-2.0

package cache

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

// Indexes of pods.
const (
	byAmounts   = "asks for amounts"
	byGang      = "gang"
	byNamespace = "namespace of those without their claims"
	byNode      = "node"
	byTemplate  = "template"
)

// pods are those of which no container runs yet, and where somebody asks for LivePods all that have not ended. They are
// watched together: one that gets a node, or starts, changes then, and does not go and come, and what is said of a pod
// is decoded once.
func (r *Reader) pods() *watched {
	c := r.cache
	selected := func(list *metav1.ListOptions) {
		list.FieldSelector = fields.OneTermEqualSelector("status.phase", string(corev1.PodPending)).String()
		if c.live {
			list.FieldSelector = fields.AndSelectors(
				fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
				fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
			).String()
		}
	}
	return r.need(c.pods("pods", metav1.NamespaceAll, selected, slimPod(c.keepPod), toolscache.Indexers{
		byAmounts: index(func(pod *corev1.Pod) []string {
			return some(byAmounts, unscheduled(pod) && AsksForAmounts(pod))
		}),
		byGang: index(func(pod *corev1.Pod) []string {
			gang, is := podstate.Gang(pod)
			return some(gang.String(), is && unscheduled(pod))
		}),
		byNamespace: index(func(pod *corev1.Pod) []string {
			return some(pod.Namespace, unscheduled(pod) && len(podstate.UnmadeClaims(pod)) > 0)
		}),
		// The node of those without is empty.
		byNode: index(func(pod *corev1.Pod) []string { return []string{pod.Spec.NodeName} }),
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

func pending(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
}

func unscheduled(pod *corev1.Pod) bool { return pending(pod) && pod.Spec.NodeName == "" }

// Unscheduled are the pods without a node: their claims, what the scheduler said of them, what
// extended resources they ask for, and by what they choose nodes; of those that ask for CPUs of
// their own also these; and UnseenBy. Of pods that ask for nothing of the kind next to nothing is kept.
type Unscheduled struct{ *Objects[*corev1.Pod] }

// UnscheduledPods asks for the pods without a node.
func (r *Reader) UnscheduledPods() Unscheduled {
	return Unscheduled{objects(r, r.pods(), unscheduled)}
}

// NominablePods asks for the pods without a node with what a controller that nominates nodes needs: all that is kept of
// LivePods, and the answers of PrefersNodes and NominatedByController.
func (r *Reader) NominablePods() Unscheduled {
	r.cache.live = true
	return r.UnscheduledPods()
}

// List returns them in no order.
func (u Unscheduled) List() []*corev1.Pod { return u.by(byNode, "") }

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

// Starting are the pods that are on a node and of which no container runs yet: what podstate
// reads of them, which is next to nothing of pods without claims, and IsStaticAsking.
type Starting struct{ *Objects[*corev1.Pod] }

// StartingPods asks for the pods that are on a node and have not started.
func (r *Reader) StartingPods() Starting {
	return Starting{objects(r, r.pods(), func(pod *corev1.Pod) bool { return pending(pod) && pod.Spec.NodeName != "" })}
}

// OnNode returns those of a node.
func (s Starting) OnNode(node string) []*corev1.Pod { return s.by(byNode, node) }

// Live are the pods that have not ended.
type Live struct{ *Objects[*corev1.Pod] }

// LivePods asks for all pods that have not ended: what decides who is evicted for whom, and what is kept of Unscheduled
// and Starting ones. Of what its containers ask for, a pod has the sum as the scheduler counts it, as the resources of
// the pod itself. Nodes have all that they can allocate then, CPU and memory, too.
func (r *Reader) LivePods() Live {
	r.cache.live = true
	return Live{objects[*corev1.Pod](r, r.pods(), nil)}
}

// OnNode returns those that are on a node.
func (l Live) OnNode(node string) []*corev1.Pod { return l.by(byNode, node) }
