// SPDX-License-Identifier: Apache-2.0

// Package advice knows the ways in which published manifests ask for GPUs, made for
// the device plugins, schedulers and drivers of others, and says what to write here
// instead. It is pure.
//
// Each way is a row of a table: of resources (rules), of node labels (labelRules) and
// of DeviceClasses (classRules). One project asks by annotations.
package advice

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// Cluster is what there is to use besides the pod.
type Cluster struct {
	// Served reports whether a node offers a resource, or Kubernetes hands it out by a
	// DeviceClass: a pod that waits for it is none of this package's.
	Served func(corev1.ResourceName) bool
	// OnSomeNode reports whether any node has a label with the key.
	OnSomeNode func(key string) bool
}

// listMost is how many containers and labels are named: an Event is to be read in a
// terminal.
const listMost = 3

// seeAlso is where it is all told.
const seeAlso = "docs/legacy.md lists the requests that are served"

// Of says what to write instead of what a waiting pod says, a sentence for each of its
// containers and labels; nothing where the pod says nothing of the kind.
func Of(pod *corev1.Pod, c Cluster) string {
	var sentences []string
	again := false
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		text, isOld := forContainer(&container, c)
		if text != "" {
			sentences = append(sentences, text)
		}
		again = again || isOld
	}
	if text := ofAnnotations(pod); text != "" {
		sentences = append(sentences, text)
	}
	about := len(sentences) > 0
	for _, n := range needs(&pod.Spec, c.OnSomeNode) {
		r, _ := labelRuleFor(n.key)
		sentences = append(sentences, fmt.Sprintf("no node has the label %s: select %s", n.key, r.write(n.values)))
	}
	if len(sentences) > listMost {
		sentences = append(sentences[:listMost], fmt.Sprintf("and %d more of this kind", len(sentences)-listMost))
	}
	if about {
		sentences = append(sentences, seeAlso)
	}
	if again {
		sentences = append(sentences, "the pod was created before the policies that convert what it asks for, or past "+
			"them: delete it and create it again")
	}
	return strings.Join(sentences, ". ")
}

// Unserved is Of for a pod that is not created yet. It is empty where some node says what it has: what that lacks is
// found when the pod is placed.
func Unserved(pod *corev1.Pod, nodes []*corev1.Node,
	classOf func(corev1.ResourceName) *resourceapi.DeviceClass) string {
	if slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return len(n.Status.Allocatable) > 0 }) {
		return ""
	}
	return Of(pod, Cluster{
		Served: func(name corev1.ResourceName) bool { return classOf(name) != nil },
		// Which labels nodes have is not known.
		OnSomeNode: func(string) bool { return true },
	})
}

// Concerns reports whether a pod may be one of which Of has something to say, whatever
// the cluster is like.
func Concerns(pod *corev1.Pod) bool {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range container.Resources.Requests {
			if _, _, known := find(name); known || slices.Contains(legacy.Names(), name) {
				return true
			}
		}
	}
	return ofAnnotations(pod) != "" || len(needs(&pod.Spec, func(string) bool { return false })) > 0
}

// SilentScheduler returns the scheduler that a pod names and that has said nothing of it; nothing where that is the
// default one, which runs.
func SilentScheduler(pod *corev1.Pod) string {
	said := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled
	})
	if said || pod.Spec.SchedulerName == corev1.DefaultSchedulerName {
		return ""
	}
	return pod.Spec.SchedulerName
}

// OfSilence says what to do about a SilentScheduler, to follow an article.
func OfSilence(scheduler string) string {
	return "scheduler " + scheduler + ", which the pod names, has not reported on it: if it does not run, create the " +
		"pod without schedulerName"
}

// forContainer is what one container is to ask for instead, and whether it asks for
// what would have been converted.
func forContainer(container *corev1.Container, c Cluster) (text string, again bool) {
	requests := container.Resources.Requests
	var a ask
	var foreign []string
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		amount := requests[name]
		switch r, parts, known := find(name); {
		case amount.IsZero() || name == wholeGPU || c.Served(name):
		case slices.Contains(legacy.Names(), name):
			again = true
		case known:
			r.read(&a, amount.Value(), parts)
			foreign = append(foreign, string(name))
		}
	}
	gpus := requests[wholeGPU]
	switch {
	case len(foreign) > 0 && !gpus.IsZero():
		// Beside amounts of other resources it is how many GPUs these are of.
		a.gpus = max(a.gpus, gpus.Value())
		foreign = append(foreign, string(wholeGPU))
		slices.Sort(foreign)
	case !gpus.IsZero() && !c.Served(wholeGPU):
		return fmt.Sprintf("container %s asks for %s, which no DeviceClass hands out: apply "+
			"deviceclasses/exclusive.gpu.aliyun.com.yaml of the driver", container.Name, wholeGPU), again
	}
	if len(foreign) == 0 {
		return "", again
	}
	why := "which no node serves. Write these limits instead:"
	ofMIG := func(name string) bool { return strings.HasPrefix(name, v1alpha1.MIGResourcePrefix) }
	if slices.ContainsFunc(foreign, ofMIG) {
		why = "and no node offers a MIG instance of that profile. Have a GPU cut into such instances (docs/mig.md), or " +
			"write these limits instead:"
	}
	return fmt.Sprintf("container %s asks for %s, %s %s", container.Name, strings.Join(foreign, ", "), why,
		a.written()), again
}

// written is an ask in the words that are understood here.
func (a ask) written() string {
	gpus := max(1, a.gpus)
	if !a.shares {
		return fmt.Sprintf("%s: %d", wholeGPU, gpus)
	}
	memory, explained := "GIB", ", GIB being the memory that it is to have"
	if a.memoryGiB > 0 {
		memory, explained = strconv.FormatInt(a.memoryGiB*gpus, 10), ""
	}
	text := "aliyun.com/gpu-mem: " + memory
	if a.cores > 0 {
		text += fmt.Sprintf(" and aliyun.com/gpu-core.percentage: %d", a.cores*gpus)
	}
	text += " (GiB" + explained
	if gpus > 1 {
		text += fmt.Sprintf("; of %d GPUs together, with the pod's label aliyun.com/gpu-count: %q", gpus,
			strconv.FormatInt(gpus, 10))
	}
	return text + ")"
}

// optionNVIDIA tells users which option serves claims for NVIDIA's DRA driver.
const optionNVIDIA = "the option nvidia-dra serves it as it is (docs/nvidia-dra.md)"

// classRules say which of the driver's DeviceClasses gives what a class of another
// driver does.
var classRules = map[string]string{
	"gpu.nvidia.com":      "exclusive.gpu.aliyun.com, a whole GPU, or cgpu.gpu.aliyun.com, a part of one; " + optionNVIDIA,
	"vfio.gpu.nvidia.com": "exclusive.gpu.aliyun.com, a whole GPU, for containers only",
	"mig.nvidia.com": "mig.gpu.aliyun.com, a MIG instance that an administrator has cut, or core-mem.gpu.aliyun.com, a " +
		"part of a GPU with limits; " + optionNVIDIA,
	"hami-core-gpu.project-hami.io": "core-mem.gpu.aliyun.com or share.gpu.aliyun.com, a part of a GPU",
	"vgpu-manager":                  "core-mem.gpu.aliyun.com or cgpu.gpu.aliyun.com, a part of a GPU",
	"gpu-manager":                   "exclusive.gpu.aliyun.com, a whole GPU, or share.gpu.aliyun.com, a part of one",
	"gpu.example.com":               "exclusive.gpu.aliyun.com, a whole GPU",
}

// Class says which DeviceClass to name instead of one of another driver; nothing where
// it is not known what that one would be for.
func Class(name string) string { return classRules[name] }

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
