// SPDX-License-Identifier: Apache-2.0

// Package consumption adds up what pods have of GPUs, and what they use of it, by namespace, workload or pod: now, or
// over a period of which Prometheus has series. It asks nobody: see packages cluster and series for that.
package consumption

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
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

// generatedMost is how much of a name the API server keeps that it adds a random end to, of randomLong characters.
const generatedMost, randomLong = 58, 5

// Random ends and hashes of templates have no vowels, so that few words look like them.
const (
	letter = `[bcdfghjklmnpqrstvwxz2456789]`
	random = letter + `{5}$`
)

// endings are how the names of pods end after that of their workload, by its kind. Other kinds name them as they like.
var endings = map[string]*regexp.Regexp{
	"cronjob":     regexp.MustCompile(`^[0-9]{8,9}-([0-9]+-)?` + random),
	"daemonset":   regexp.MustCompile(`^` + random),
	"deployment":  regexp.MustCompile(`^` + letter + `{6,10}-` + random),
	"job":         regexp.MustCompile(`^` + random),
	"replicaset":  regexp.MustCompile(`^` + random),
	"statefulset": regexp.MustCompile(`^[0-9]+$`),
}

// indexed is how those of a Job end that numbers its pods.
var indexed = regexp.MustCompile(`^[0-9]+-` + random)

// maker is a workload, and how the names of its pods end; nil for as they like.
type maker struct {
	Workload
	ends *regexp.Regexp
}

func makerOf(pod *corev1.Pod) maker {
	of := Of(pod)
	if _, numbered := pod.Labels[batchv1.JobCompletionIndexAnnotation]; numbered && of.Kind == "job" {
		return maker{of, indexed}
	}
	return maker{of, endings[of.Kind]}
}

// makes reports whether it gives pods such a name, by its end after its own. Long names have lost a part of that.
func (m maker) makes(pod, end string) bool {
	return m.Kind != KindPod && (m.ends == nil || m.ends.MatchString(end) || len(pod) == generatedMost+randomLong)
}

// name is one in a namespace.
type name struct{ namespace, name string }

// Workloads are those of pods that are there, by which also pods are known that are gone.
type Workloads struct {
	pods map[name]Workload
	// begins are the workloads by what the names of their pods begin with.
	begins map[name][]maker
}

// NewWorkloads finds the workloads of pods.
func NewWorkloads(pods []*corev1.Pod) Workloads {
	found := Workloads{pods: map[name]Workload{}, begins: map[name][]maker{}}
	for _, pod := range pods {
		made := makerOf(pod)
		found.pods[name{pod.Namespace, pod.Name}] = made.Workload
		begin := made.Name + "-"
		of := name{made.Namespace, begin[:min(len(begin), generatedMost)]}
		if !slices.Contains(found.begins[of], made) {
			found.begins[of] = append(found.begins[of], made)
		}
	}
	for _, all := range found.begins {
		slices.SortFunc(all, func(a, b maker) int { return cmp.Compare(a.String(), b.String()) })
	}
	return found
}

// There reports whether a pod is among them.
func (w Workloads) There(namespace, pod string) bool {
	_, known := w.pods[name{namespace, pod}]
	return known
}

// Pod is the workload of a pod. One that is gone is of the workload that names its pods so, if there is one: a peak
// that counts for another workload makes that keep what it has, one that is lost takes from its own.
func (w Workloads) Pod(namespace, pod string) Workload {
	if found, known := w.pods[name{namespace, pod}]; known {
		return found
	}
	return w.named(Workload{namespace, KindPod, pod}, maker.makes)
}

// Claim is the workload of a claim that no single pod uses, which is named after it or its pods.
func (w Workloads) Claim(namespace, claim string) Workload {
	return w.named(Workload{namespace, "resourceclaim", claim}, func(maker, string, string) bool { return true })
}

// named is the workload with the longest name that the one of something begins with and that is its maker by the rest;
// itself if there is none.
func (w Workloads) named(gone Workload, is func(m maker, whole, end string) bool) Workload {
	for at := len(gone.Name); at > 0; at-- {
		for _, known := range w.begins[name{gone.Namespace, gone.Name[:at]}] {
			if is(known, gone.Name, gone.Name[at:]) {
				return known.Workload
			}
		}
	}
	return gone
}
