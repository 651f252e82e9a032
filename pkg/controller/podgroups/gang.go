// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// gang is what the pods of a gang ask for together.
type gang struct {
	// minCount is how many of its pods have to be scheduled together at least.
	minCount int32
	// priorityClass is that of its pods, which the scheduler wants the group to have.
	priorityClass string
	// waiting are those of its pods that have no node, in the order of their names; placed is whether others have one.
	waiting []*corev1.Pod
	placed  bool
	// newest is when the pod was created by which the gang goes.
	newest metav1.Time
	// again is after how long fewer pods than they say will be enough, if no others come; zero where they will not.
	again time.Duration
}

// gangOfPods is what the pods that name a gang ask for. Pods that have ended ask for
// nothing; where the others differ, the newest counts: a Job whose template was changed
// makes new pods. None has come for as long as it has been quiet. It is nil where no pod belongs to
// the gang. Those that name it without belonging to it, although the policy looked at them, are alone.
func gangOfPods(name string, pods []*corev1.Pod, quiet time.Duration) (g *gang, alone []*corev1.Pod) {
	var newest *corev1.Pod
	var waiting []*corev1.Pod
	placed, left := false, 0
	for _, pod := range pods {
		if gpuclaim.Ended(pod) || podstate.IsMirror(pod) {
			continue
		}
		waits := pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil
		if pod.Spec.SchedulingGroup == nil && pod.DeletionTimestamp == nil && lookedAt(pod) {
			alone = append(alone, pod)
		}
		if group, grouped := podstate.Gang(pod); !grouped || group.Name != name {
			continue
		}
		left++
		if waits {
			waiting = append(waiting, pod)
		}
		placed = placed || pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil
		// Labels can be changed after the policy has read them.
		if _, err := legacy.MinAvailable(pod); err == nil && (newest == nil || podstate.ByAge(pod, newest) > 0) {
			newest = pod
		}
	}
	if newest == nil {
		return nil, alone
	}
	n, err := legacy.MinAvailable(newest)
	if err != nil {
		return nil, alone
	}
	slices.SortFunc(waiting, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	g = &gang{
		minCount: n, priorityClass: newest.Spec.PriorityClassName, waiting: waiting, placed: placed,
		newest: newest.CreationTimestamp,
	}
	if left < int(n) && succeededOf(metav1.GetControllerOfNoCopy(newest), pods) {
		g.lower(int32(left), quiet)
	}
	return g, alone
}

// succeededOf reports whether one of the pods of a controller has succeeded: it makes no other in its place.
func succeededOf(job *metav1.OwnerReference, pods []*corev1.Pod) bool {
	return job != nil && slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		of := metav1.GetControllerOfNoCopy(pod)
		return pod.Status.Phase == corev1.PodSucceeded && of != nil && of.UID == job.UID
	})
}

// lower has the pods that are left be enough, where some wait and no others have come for a while.
// The scheduler counts no pod that has ended: the last ones of a Job, fewer than they say, would wait
// for ever.
func (g *gang) lower(left int32, quiet time.Duration) {
	switch wait := grace - quiet; {
	case len(g.waiting) == 0:
	case wait > 0:
		g.again = wait
	default:
		g.minCount = left
	}
}

// lookedAt reports whether the admission policy was there when the pod was created, and has not
// left it alone.
func lookedAt(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[v1alpha1.AnnotationGang]
	return ok
}

// whyAlone says why a pod that names a gang does not belong to it, where the cluster has
// gangs, in words for its author.
func whyAlone(pod *corev1.Pod) string {
	name := pod.Labels[ack.LabelPodGroup]
	if _, err := legacy.MinAvailable(pod); err != nil {
		return err.Error()
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Sprintf("its label %s is %q, which cannot be the name of a PodGroup: %s", ack.LabelPodGroup, name,
			strings.Join(problems, "; "))
	}
	return "the cluster did not serve PodGroups when it was created, and it cannot be given to one afterwards: create " +
		"it again"
}
