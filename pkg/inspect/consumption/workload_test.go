// SPDX-License-Identifier: Apache-2.0

package consumption_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/consumption"
)

// owned is a pod of a controller, "Kind/name", empty for none.
func owned(name, controller string, labels ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name,
		CreationTimestamp: metav1.NewTime(time.Unix(29834000*60+30, 0))}}
	if kind, owner, is := strings.Cut(controller, "/"); is {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, Controller: ptr.To(true)}}
	}
	for _, hash := range labels {
		pod.Labels = map[string]string{"pod-template-hash": hash}
	}
	return pod
}

func TestTopController(t *testing.T) {
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"a Deployment's":         {owned("infer-7d9f-x2x4v", "ReplicaSet/infer-7d9f", "7d9f"), "deployment/infer"},
		"a ReplicaSet's":         {owned("infer-x2x4v", "ReplicaSet/infer"), "replicaset/infer"},
		"a ReplicaSet's, a hash": {owned("infer-x2x4v", "ReplicaSet/infer", "7d9f"), "replicaset/infer"},
		"a StatefulSet's":        {owned("db-0", "StatefulSet/db"), "statefulset/db"},
		"a DaemonSet's":          {owned("probe-x2x4v", "DaemonSet/probe"), "daemonset/probe"},
		"a Job's":                {owned("train-x2x4v", "Job/train"), "job/train"},
		"a CronJob's":            {owned("nightly-29834000-x2x4v", "Job/nightly-29834000"), "cronjob/nightly"},
		"a Job's with a date":    {owned("train-20261129-x2x4v", "Job/train-20261129"), "job/train-20261129"},
		"another controller's":   {owned("ray-head", "RayCluster/ray"), "raycluster/ray"},
		"nobody's":               {owned("notebook", ""), "pod/notebook"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := consumption.Of(test.pod); got.String() != test.want || got.Namespace != "team" {
				t.Errorf("got %v, want %s", got, test.want)
			}
		})
	}
}

// A pod that is gone is known by its name, if it ends as its workload's pods do; a longer name of a workload is nearer.
func TestWorkloadsOfPodsThatAreGone(t *testing.T) {
	long := strings.Repeat("l", 60)
	indexed := owned("sweep-3-x2x4v", "Job/sweep")
	indexed.Labels = map[string]string{"batch.kubernetes.io/job-completion-index": "3"}
	known := consumption.NewWorkloads([]*corev1.Pod{
		owned("train-6d4b75cb6d-x2x4v", "ReplicaSet/train-6d4b75cb6d", "6d4b75cb6d"),
		owned("train-eval-0", "StatefulSet/train-eval"), owned("l-0", "Job/"+long), owned("db-0", "StatefulSet/db"),
		owned("fit-x2x4v", "Job/fit"), indexed, owned("note", ""), owned("ray-head", "RayCluster/ray"),
		owned("nightly-29834000-x2x4v", "Job/nightly-29834000"), owned("probe-x2x4v", "DaemonSet/probe"),
		owned("both-6d4b75cb6d-x2x4v", "ReplicaSet/both-6d4b75cb6d", "6d4b75cb6d"), owned("both-0", "StatefulSet/both")})
	for pod, want := range map[string]string{
		"team/train-6d4b75cb6d-x2x4v":  "deployment/train",
		"team/train-55c8f97bb-9zzzz":   "deployment/train",
		"team/train-eval-7":            "statefulset/train-eval",
		"team/training":                "pod/training",
		"other/train-6d4b75cb6d-x2x4v": "pod/train-6d4b75cb6d-x2x4v",
		"team/" + long[:58] + "x2x4v":  "job/" + long,
		"team/fit-9zzzz":               "job/fit",
		"team/sweep-12-9zzzz":          "job/sweep",
		"team/nightly-29834060-9zzzz":  "cronjob/nightly",
		"team/probe-9zzzz":             "daemonset/probe",
		"team/both-55c8f97bb-9zzzz":    "deployment/both",
		"team/both-4":                  "statefulset/both",
		// Who makes pods is free to name them.
		"team/ray-group-worker-9zzzz": "raycluster/ray",
		// Other workloads' that are gone, whose names begin alike.
		"team/train-v2-55c8f97bb-9zzzz":              "pod/train-v2-55c8f97bb-9zzzz",
		"team/train-dev-9zzzz":                       "pod/train-dev-9zzzz",
		"team/train-eval-55c8f97bb-9zzzz":            "pod/train-eval-55c8f97bb-9zzzz",
		"team/fit-2-9zzzz":                           "pod/fit-2-9zzzz",
		"team/nightly-full-29834000-9zzzz":           "pod/nightly-full-29834000-9zzzz",
		"team/db-replica-1":                          "pod/db-replica-1",
		"team/note-2":                                "pod/note-2",
		"team/claim:note-gpu-9zzzz":                  "pod/note",
		"team/claim:train-55c8f97bb-9zzzz-gpu-x2x4v": "deployment/train",
		"team/claim:shared":                          "resourceclaim/shared",
	} {
		namespace, name, _ := strings.Cut(pod, "/")
		got := known.Pod(namespace, name)
		if claim, is := strings.CutPrefix(name, "claim:"); is {
			got = known.Claim(namespace, claim)
		}
		if got.String() != want || got.Namespace != namespace {
			t.Errorf("%s is of %v, want %s", pod, got, want)
		}
	}
}
