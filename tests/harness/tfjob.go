// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TFReplica is the part of a TFJob that says how many pods of which template.
type TFReplica struct {
	Replicas int                    `json:"replicas"`
	Template corev1.PodTemplateSpec `json:"template"`
}

// TFJob is the job of the document on ack-co-scheduler: a parameter server and workers,
// which name one gang.
func TFJob(t *testing.T) (ps, worker TFReplica) {
	t.Helper()
	job := Document[struct {
		metav1.TypeMeta
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Replicas struct{ PS, Worker TFReplica } `json:"tfReplicaSpecs"`
		} `json:"spec"`
	}](t, "ack-co-scheduler", "tf-smoke-gpu.yaml")
	return job.Spec.Replicas.PS, job.Spec.Replicas.Worker
}
