// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"cmp"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// defaultBackoffLimit is what a Job has that does not say it.
const defaultBackoffLimit = 6

// Outlives says whether a Job goes on when the pod, which is its own and has not
// started, is evicted. For a Job that is a failure of the pod, unless its
// podFailurePolicy ignores disruptions.
func Outlives(job *batchv1.Job, pod *corev1.Pod) bool {
	if policy := job.Spec.PodFailurePolicy; policy != nil {
		// The first rule that matches counts. The pod has no exit codes.
		for _, rule := range policy.Rules {
			if !slices.ContainsFunc(rule.OnPodConditions, isDisruption) {
				continue
			}
			if rule.Action == batchv1.PodFailurePolicyActionIgnore {
				return true
			}
			if rule.Action != batchv1.PodFailurePolicyActionCount {
				return false
			}
			break
		}
	}
	if most := job.Spec.BackoffLimitPerIndex; most != nil {
		failed, err := strconv.ParseInt(cmp.Or(pod.Annotations[batchv1.JobIndexFailureCountAnnotation], "0"), 10, 32)
		return err == nil && int32(failed) < *most
	}
	failed := job.Status.Failed
	if uncounted := job.Status.UncountedTerminatedPods; uncounted != nil {
		failed += int32(len(uncounted.Failed))
	}
	// Pods that are going may come to be failures.
	return failed+ptr.Deref(job.Status.Terminating, 0) < ptr.Deref(job.Spec.BackoffLimit, defaultBackoffLimit)
}

func isDisruption(p batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
	return p.Type == corev1.DisruptionTarget && (p.Status == "" || p.Status == corev1.ConditionTrue)
}
