// SPDX-License-Identifier: Apache-2.0

// Package consumption adds up what pods have of GPUs, and what they use of it, by namespace, workload or pod: now, or
// over a period of which Prometheus has series. It asks nobody: see packages cluster and series for that.
package consumption

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// labelTemplateHash is what a Deployment adds to the names and the labels of its ReplicaSets and their pods.
const labelTemplateHash = "pod-template-hash"

// KindPod is the kind of a Workload that is a pod of nobody's.
const KindPod = "pod"

// Workload is what makes pods, or a pod that nothing makes.
type Workload struct {
	Namespace string
	// Kind is as kubectl takes it, such as deployment.
	Kind, Name string
}

// String is how kubectl names it.
func (w Workload) String() string { return w.Kind + "/" + w.Name }

// Of is the top controller of a pod. A ReplicaSet's Deployment and a Job's CronJob are known by the names that
// Kubernetes gives what they make, so that neither has to be read.
func Of(pod *corev1.Pod) Workload {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return Workload{pod.Namespace, KindPod, pod.Name}
	}
	made := Workload{pod.Namespace, strings.ToLower(owner.Kind), owner.Name}
	if hash := pod.Labels[labelTemplateHash]; made.Kind == "replicaset" && hash != "" {
		if name, cut := strings.CutSuffix(owner.Name, "-"+hash); cut {
			return Workload{pod.Namespace, "deployment", name}
		}
	}
	if made.Kind == "job" {
		if name, scheduled := cronJob(owner.Name, pod.CreationTimestamp.Time); scheduled {
			return Workload{pod.Namespace, "cronjob", name}
		}
	}
	return made
}

// jobTime is the end of the name of a CronJob's Job: the minutes from 1970 until it was due.
var jobTime = regexp.MustCompile(`^(.+)-([0-9]{8,9})$`)

// lateMost is how long after that its pods may be created.
const lateMost = 7 * 24 * time.Hour

// cronJob is the CronJob of a Job with a pod of this age, if it has one.
func cronJob(job string, created time.Time) (name string, scheduled bool) {
	parts := jobTime.FindStringSubmatch(job)
	if parts == nil {
		return "", false
	}
	minutes, err := strconv.ParseInt(parts[2], 10, 64)
	late := created.Sub(time.Unix(60*minutes, 0))
	return parts[1], err == nil && late > -time.Hour && late < lateMost
}

// generatedMost is how much of a name the API server keeps that it adds a random end to.
const generatedMost = 58

// name is one in a namespace.
type name struct{ namespace, name string }

// Workloads are those of pods that are there, by which also pods are known that are gone.
type Workloads struct {
	pods map[name]Workload
	// begins are the workloads by what the names of their pods begin with.
	begins map[name]Workload
}

// NewWorkloads finds the workloads of pods.
func NewWorkloads(pods []*corev1.Pod) Workloads {
	found := Workloads{pods: map[name]Workload{}, begins: map[name]Workload{}}
	for _, pod := range pods {
		w := Of(pod)
		found.pods[name{pod.Namespace, pod.Name}] = w
		begin := w.Name + "-"
		of := name{w.Namespace, begin[:min(len(begin), generatedMost)]}
		if other, known := found.begins[of]; !known || w.String() < other.String() {
			found.begins[of] = w
		}
	}
	return found
}

// There reports whether a pod is among them.
func (w Workloads) There(namespace, pod string) bool {
	_, known := w.pods[name{namespace, pod}]
	return known
}

// Pod is the workload of a pod. One that is gone is of the workload after which it is named, if there is one: a peak
// that counts for another workload makes that keep what it has, one that is lost takes from its own.
func (w Workloads) Pod(namespace, pod string) Workload {
	if found, known := w.pods[name{namespace, pod}]; known {
		return found
	}
	return w.named(Workload{namespace, KindPod, pod})
}

// Claim is the workload of a claim that no single pod uses, which is named after it or its pods.
func (w Workloads) Claim(namespace, claim string) Workload {
	return w.named(Workload{namespace, "resourceclaim", claim})
}

// named is the workload with the longest name that the one of something begins with; itself if there is none.
func (w Workloads) named(gone Workload) Workload {
	for end := len(gone.Name); end > 0; end-- {
		if known, is := w.begins[name{gone.Namespace, gone.Name[:end]}]; is {
			return known
		}
	}
	return gone
}
