// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// pending is a pod that is to be placed.
type pending struct {
	from *Workload
	pod  *corev1.Pod
	// refused says why there would be no such pod, or none that the scheduler looks at.
	refused string
	// left says why it stays as it is, where its pod as on ACK is not converted.
	left string
	// gang names what it is placed with, of which least are placed together or none.
	gang  string
	least int
}

// expand makes the pods, in the order of the manifests.
func expand(ctx context.Context, in *Input) []*pending {
	var out []*pending
	for i := range in.Workloads {
		w := &in.Workloads[i]
		if w.PerNode {
			for _, node := range in.Nodes {
				if pod := in.newPod(w, w.Name+"-"+node.Name); pinTo(ctx, pod, node) {
					out = append(out, in.pending(w, pod))
				}
			}
			continue
		}
		for n := range w.Pods {
			name := w.Name
			if w.Kind != "pod" {
				name += "-" + strconv.Itoa(w.First+n)
			}
			out = append(out, in.pending(w, in.newPod(w, name)))
		}
	}
	return out
}

func (in *Input) newPod(w *Workload, name string) *corev1.Pod {
	from := w.Created()
	pod := &corev1.Pod{ObjectMeta: *from.ObjectMeta.DeepCopy(), Spec: *from.Spec.DeepCopy()}
	pod.Name, pod.Namespace = name, w.Namespace
	if in.NodesUnknown {
		// Nobody knows what the labels of nodes say: notLookedAt names the pods.
		pod.Spec.NodeSelector = nil
		if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
			a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
		}
	}
	// The API server takes the limit where nothing is requested.
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			r, requests := &containers[i].Resources, corev1.ResourceList{}
			maps.Copy(requests, r.Limits)
			maps.Copy(requests, r.Requests)
			r.Requests = requests
		}
	}
	return pod
}

// pending finds out what would be made of the pod when it is created.
func (in *Input) pending(w *Workload, pod *corev1.Pod) *pending {
	p := &pending{from: w, pod: pod, refused: w.Refused}
	if w.Admitted == nil || pod.Spec.SchedulingGroup != nil {
		p.gang, p.least = legacy.GangOf(pod)
	}
	why, _ := in.policies.LeftAlone(pod, in.labelsOf(pod.Namespace))
	switch option := advice.Option(pod); {
	case w.Refused != "":
	case !legacy.Asks(pod):
		if !in.NodesUnknown {
			p.refused = advice.Unserved(pod, in.Nodes, scheduling.ClassOf(in.Snapshot.Classes))
		}
		if w.Admitted == nil && why == "" && option != "" {
			p.refused = option + ". Only a dry run tells how: plan on a cluster with the option, as a user who may create pods"
		}
	case w.Admitted != nil:
		p.left = notConverted + cmp.Or(why, "the cluster's policies leave it as it is")
	default:
		var left, refused string
		if p.pod, left, refused = in.policies.Admit(pod, in.labelsOf(pod.Namespace)); left != "" {
			p.left = notConverted + left
		} else if refused != "" {
			p.refused = "it would be refused: " + refused
		}
	}
	if pod.Spec.NodeName != "" && p.refused == "" {
		p.refused = "it names its node in spec.nodeName, so that the scheduler, which allocates, does not look at it: " +
			"use a nodeSelector"
	}
	return p
}

// admitted returns a claim, made by the object of that kind and name, as the API server creates it: as admission
// changes it, if that is known, and with defaults.
func (in *Input) admitted(kind, name string, claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	claim = claim.DeepCopy()
	if spec, known := in.AdmittedClaims[kind+"/"+claim.Namespace+"/"+name]; known {
		claim.Spec = *spec.DeepCopy()
	}
	fill := func(mode *resourceapi.DeviceAllocationMode, count *int64) {
		*mode = cmp.Or(*mode, resourceapi.DeviceAllocationModeExactCount)
		if *mode == resourceapi.DeviceAllocationModeExactCount {
			*count = cmp.Or(*count, 1)
		}
	}
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if r.Exactly != nil {
			fill(&r.Exactly.AllocationMode, &r.Exactly.Count)
		}
		for j := range r.FirstAvailable {
			fill(&r.FirstAvailable[j].AllocationMode, &r.FirstAvailable[j].Count)
		}
	}
	return claim
}

// Template is the one of the name: of the manifests, or of the cluster, or the one that
// gpu-compat-controller would make for what the policies convert pods to; nil if there is none.
func (in *Input) Template(namespace, name string) *resourceapi.ResourceClaimTemplate {
	if t := scheduling.Named(slices.Concat(in.Manifests.Templates, in.KnownTemplates), namespace, name); t != nil {
		return t
	}
	if request, err := legacy.ParseName(name); err == nil {
		return request.Template(namespace)
	}
	return nil
}

// pinTo makes of a DaemonSet's pod the one for a node; false where it has none there.
func pinTo(ctx context.Context, pod *corev1.Pod, node *corev1.Node) bool {
	for key, effect := range map[string]corev1.TaintEffect{
		corev1.TaintNodeNotReady: corev1.TaintEffectNoExecute, corev1.TaintNodeUnreachable: corev1.TaintEffectNoExecute,
		corev1.TaintNodeDiskPressure:   corev1.TaintEffectNoSchedule,
		corev1.TaintNodeMemoryPressure: corev1.TaintEffectNoSchedule,
		corev1.TaintNodePIDPressure:    corev1.TaintEffectNoSchedule,
		corev1.TaintNodeUnschedulable:  corev1.TaintEffectNoSchedule,
	} {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations,
			corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect})
	}
	if scheduling.ClosedTo(ctx, node, pod, scheduling.Wanted(pod)).By != scheduling.Open {
		return false
	}
	if pod.Spec.Affinity != nil {
		pod.Spec.Affinity.NodeAffinity = nil // it is met, and the DaemonSet's controller replaces it
	}
	pod.Spec.NodeSelector, pod.Spec.Affinity = nil, scheduling.PinnedTo(node.Name, pod.Spec.Affinity)
	return true
}
