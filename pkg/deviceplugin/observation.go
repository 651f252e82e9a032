// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// Observation is what a pod was first seen with on the node. What is written in it later
// changes nothing: its owner can write that, and its container has what it has.
type Observation struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Annotations are those that say which GPUs it has. The scheduler writes them
	// before it binds the pod.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Lost says that they are not known any more: those of now may be anybody's.
	Lost bool `json:"lost,omitempty"`
	// Devices are what the kubelet listed of its containers, by name. They are nil until
	// it lists one that has any.
	Devices map[string]Devices `json:"devices,omitempty"`
	// Pod is the pod as it was when they were listed, trimmed: it may be deleted before it ends.
	Pod *corev1.Pod `json:"pod,omitempty"`

	// since is when it was first seen: a kubelet that was asked before may have meant another pod of
	// that name.
	since time.Time
	// fixed says that Annotations are not followed any more.
	fixed bool
}

// Observations are what pods were first seen with, by UID.
type Observations map[types.UID]Observation

// mostAnnotation bounds what is kept of an annotation, in bytes. That of eight
// containers on eight GPUs has some 500.
const mostAnnotation = 4 << 10

// Observe notes what a pod is seen with. It is to be told of each version of each pod of the
// node, in order. Until a pod has one of the annotations, or a container of it has
// started, the annotations are followed.
func (s Observations) Observe(pod *corev1.Pod, now time.Time) {
	if !Holds(pod) {
		delete(s, pod.UID)
		return
	}
	seen, ok := s[pod.UID]
	if ok && (seen.fixed || seen.Lost || seen.Devices != nil) {
		return
	}
	if !ok {
		seen.since = now
	}
	seen = Observation{Namespace: pod.Namespace, Name: pod.Name, Annotations: annotationsOf(pod), since: seen.since}
	seen.fixed = len(seen.Annotations) > 0 || Started(pod)
	s[pod.UID] = seen
}

// NeedKubelet reports whether the kubelet may have something to tell of the pod that is not known
// yet, if it is not asked before that time.
func (s Observations) NeedKubelet(pod *corev1.Pod) (need bool, notBefore time.Time) {
	seen := s[pod.UID]
	return seen.Devices == nil, seen.since
}

// AddDevices notes what the kubelet says of the pods; they are trimmed. It returns whether there was anything
// new; a pod that has no devices is none of the news.
func (s Observations) AddDevices(pods []*corev1.Pod, kubelet Kubelet) (news bool) {
	for _, pod := range pods {
		seen, ok := s[pod.UID]
		if ok && seen.Devices != nil && seen.Pod == nil {
			// It is of a version that did not keep it.
			seen.Pod, news = pod, true
			s[pod.UID] = seen
		}
		if !ok || seen.Devices != nil || kubelet.Err != nil || kubelet.Asked.Before(seen.since) {
			continue
		}
		devices, given := devicesOf(pod, kubelet)
		if !given {
			continue
		}
		seen.Devices, seen.Pod, seen.fixed = devices, pod, true
		s[pod.UID] = seen
		news = true
	}
	return news
}

// devicesOf is what the kubelet says of the containers that it lists of the pod, and
// whether that is all that they were given, and anything. It gives devices to one
// container after the other, before it starts the first.
func devicesOf(pod *corev1.Pod, kubelet Kubelet) (devices map[string]Devices, given bool) {
	devices = map[string]Devices{}
	waits := false
	for _, c := range all(pod) {
		d, listed := kubelet.Containers[containerOf(pod, c)]
		if !listed {
			continue
		}
		devices[c.Name] = d
		given = given || len(d.Resources) > 0
		waits = waits || len(d.Resources) == 0 && asks(pod, c)
	}
	return devices, given && (!waits || Started(pod))
}

// asks reports whether the container has a limit that only a device plugin can serve.
func asks(pod *corev1.Pod, c corev1.Container) bool {
	return native(pod, c) > 0 || asksScheduler(c)
}

// annotationsOf are the pod's annotations that say which GPUs it has.
func annotationsOf(pod *corev1.Pod) map[string]string {
	var found map[string]string
	for _, key := range []string{
		ack.AnnotationMemory, ack.AnnotationCores, ack.AnnotationV1Index, ack.AnnotationTopology, ack.AnnotationGroup,
	} {
		value, ok := pod.Annotations[key]
		if !ok {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = value[:min(len(value), mostAnnotation+1)]
	}
	return found
}
