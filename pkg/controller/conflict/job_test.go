// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestJobOutlivesAnEvictedPod(t *testing.T) {
	rule := func(action batchv1.PodFailurePolicyAction,
		conditions ...corev1.PodConditionType) batchv1.PodFailurePolicyRule {
		r := batchv1.PodFailurePolicyRule{Action: action}
		for _, c := range conditions {
			r.OnPodConditions = append(r.OnPodConditions,
				batchv1.PodFailurePolicyOnPodConditionsPattern{Type: c, Status: corev1.ConditionTrue})
		}
		return r
	}
	policy := func(rules ...batchv1.PodFailurePolicyRule) *batchv1.PodFailurePolicy {
		return &batchv1.PodFailurePolicy{Rules: rules}
	}
	failed := func(n int32) batchv1.JobStatus { return batchv1.JobStatus{Failed: n} }
	for name, test := range map[string]struct {
		spec    batchv1.JobSpec
		status  batchv1.JobStatus
		ofIndex string // how often its index has failed
		goesOn  bool
	}{
		"by default":              {batchv1.JobSpec{}, failed(0), "", true},
		"the last of the default": {batchv1.JobSpec{}, failed(6), "", false},
		"no failure allowed":      {batchv1.JobSpec{BackoffLimit: ptr.To(int32(0))}, failed(0), "", false},
		"one is left":             {batchv1.JobSpec{BackoffLimit: ptr.To(int32(2))}, failed(1), "", true},
		"one that is not counted yet": {batchv1.JobSpec{BackoffLimit: ptr.To(int32(2))},
			batchv1.JobStatus{Failed: 1, UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{Failed: []types.UID{"a"}}},
			"", false},
		"one that goes": {batchv1.JobSpec{BackoffLimit: ptr.To(int32(1))},
			batchv1.JobStatus{Terminating: ptr.To(int32(1))}, "", false},
		"disruptions are ignored": {batchv1.JobSpec{BackoffLimit: ptr.To(int32(0)), PodFailurePolicy: policy(rule(
			batchv1.PodFailurePolicyActionFailJob, "Other"),
			rule(batchv1.PodFailurePolicyActionIgnore, corev1.DisruptionTarget))}, failed(0), "", true},
		"disruptions end it": {
			batchv1.JobSpec{PodFailurePolicy: policy(rule(batchv1.PodFailurePolicyActionFailJob, corev1.DisruptionTarget),
				rule(batchv1.PodFailurePolicyActionIgnore, corev1.DisruptionTarget))}, failed(0), "", false},
		"disruptions count": {batchv1.JobSpec{BackoffLimit: ptr.To(int32(1)), PodFailurePolicy: policy(rule(
			batchv1.PodFailurePolicyActionCount, corev1.DisruptionTarget))}, failed(0), "", true},
		"disruptions count, none is left": {batchv1.JobSpec{BackoffLimit: ptr.To(int32(1)), PodFailurePolicy: policy(rule(
			batchv1.PodFailurePolicyActionCount, corev1.DisruptionTarget))}, failed(1), "", false},
		"of an index":              {batchv1.JobSpec{BackoffLimitPerIndex: ptr.To(int32(1))}, failed(9), "0", true},
		"the last of an index":     {batchv1.JobSpec{BackoffLimitPerIndex: ptr.To(int32(1))}, failed(0), "1", false},
		"an index without a count": {batchv1.JobSpec{BackoffLimitPerIndex: ptr.To(int32(1))}, failed(9), "", true},
		"an index with a count of others": {batchv1.JobSpec{BackoffLimitPerIndex: ptr.To(int32(1))}, failed(0), "many",
			false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			if test.ofIndex != "" {
				pod.Annotations = map[string]string{batchv1.JobIndexFailureCountAnnotation: test.ofIndex}
			}
			if got := Outlives(&batchv1.Job{Spec: test.spec, Status: test.status}, pod); got != test.goesOn {
				t.Errorf("it goes on: %v, want %v", got, test.goesOn)
			}
		})
	}
}

func TestJobsOfOthersAreNotAsked(t *testing.T) {
	for owner, want := range map[metav1.OwnerReference]bool{
		{APIVersion: "batch/v1", Kind: "Job"}:                  true,
		{APIVersion: "batch.volcano.sh/v1alpha1", Kind: "Job"}: false,
		{APIVersion: "apps/v1", Kind: "ReplicaSet"}:            false,
	} {
		if got := isJob(&owner); got != want {
			t.Errorf("%s %s: %v, want %v", owner.APIVersion, owner.Kind, got, want)
		}
	}
}
