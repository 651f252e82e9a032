// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// highestOfUsers is the highest priority that a PriorityClass of users may have: what is
	// above belongs to the system.
	highestOfUsers = 1_000_000_000
	systemSpace    = metav1.NamespaceSystem
)

// counted is what the scheduler counts of a pod of the cache.
func counted(pod *corev1.Pod) corev1.ResourceList { return pod.Spec.Resources.Requests }

// startedAt is since when a pod has run, as the scheduler counts.
func startedAt(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// asksForDevices says whether a pod of the cache may wait for devices.
func asksForDevices(pod *corev1.Pod) bool {
	if len(pod.Spec.ResourceClaims) > 0 {
		return true
	}
	for name := range counted(pod) {
		if scheduling.Extended(name) {
			return true
		}
	}
	return false
}

// waitsForDevices says whether a pod is one to look at. Its scheduler found no node for it: preempts
// asks for that.
func waitsForDevices(pod *corev1.Pod) bool { return preempts(pod) && asksForDevices(pod) }

// insufficient is in what the scheduler says of a pod that nodes lack other resources. What its plugins beside those
// of Kubernetes lack, such as "Insufficient quotas", is no node's.
var insufficient = regexp.MustCompile(`[:,.] \d+ Insufficient `)

// preempts says whether others may be evicted for a pod: it waits, the scheduler found no
// devices for it or no room beside them, and nothing else is under way for it.
func preempts(pod *corev1.Pod) bool {
	said, waits := podstate.Unschedulable(pod)
	return waits && (strings.Contains(said, podstate.NoDevices) || insufficient.MatchString(said)) &&
		ptr.Deref(pod.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) != corev1.PreemptNever &&
		// The scheduler evicts others for it already.
		pod.Status.NominatedNodeName == "" &&
		// It is placed with its group, of which this package does not know how much is missing.
		pod.Spec.SchedulingGroup == nil && !podstate.InGangOfOthers(pod)
}

// inQueueOrder sorts pods as the scheduler's queue does.
func inQueueOrder(pods []*corev1.Pod) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(corev1helpers.PodPriority(b), corev1helpers.PodPriority(a)),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
}

// expendable says whether a pod may be evicted for one of such a priority.
func (s situation) expendable(pod *corev1.Pod, than int32) bool {
	priority := corev1helpers.PodPriority(pod)
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return priority < than && priority <= highestOfUsers && pod.Namespace != systemSpace && !mirror &&
		(pod.DeletionTimestamp == nil || s.overstays(pod))
}

// lacking is in what the scheduler says of a pod the number of nodes that have no devices for
// it.
var lacking = regexp.MustCompile(`[:,.] (\d+) ` + regexp.QuoteMeta(podstate.NoDevices))

// nodesLackingDevices is how many nodes have all that a pod needs but devices, by what the
// scheduler said: it looks for devices last.
func nodesLackingDevices(said string) int {
	said, _, _ = strings.Cut(said, " preemption: ")
	found := lacking.FindStringSubmatch(said)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		return 0
	}
	return n
}

// plain says whether a pod asks for nothing of a node that is not looked at here, so that it
// is certain to fit where its resources and devices do.
func plain(pod *corev1.Pod) bool {
	if ownTerms(pod) {
		return false
	}
	for _, v := range pod.Spec.Volumes {
		if v.ConfigMap == nil && v.Secret == nil && v.EmptyDir == nil && v.DownwardAPI == nil && v.Projected == nil &&
			v.HostPath == nil && v.Image == nil {
			return false
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
			return p.HostPort != 0 ||
				pod.Spec.HostNetwork
		}) {
			return false
		}
	}
	return true
}

// ownTerms says whether a pod cares where other pods are.
func ownTerms(pod *corev1.Pod) bool {
	if slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == corev1.DoNotSchedule
	}) {
		return true
	}
	return needsOthers(pod) || len(antiAffinityOf(pod)) > 0
}

// needsOthers says whether a pod has to be beside others: they could be the victims.
func needsOthers(pod *corev1.Pod) bool {
	a := pod.Spec.Affinity
	return a != nil && a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0
}
