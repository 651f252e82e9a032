// SPDX-License-Identifier: Apache-2.0

// Package fromack makes of a cluster whose GPUs device plugins serve, as on ACK, what it would be after a migration,
// for a plan. What is known of the GPUs is what labels and amounts of nodes say. It is pure.
package fromack

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// mostNamed is how many nodes a note names.
const mostNamed = 5

// fromCluster is where pods come from that are there.
const fromCluster = "the cluster"

// Move makes of a cluster what it is when all nodes have moved from ACK's device plugins to the driver, and plans those
// of its pods that ask for GPUs and have no claim.
func Move(in *plan.Input, pods []*corev1.Pod) error {
	moved, err := moveNodes(in)
	if err == nil {
		planPods(in, pods, moved)
	}
	return err
}

// moveNodes has the driver serve all nodes. Where it did so before, they have moved.
func moveNodes(in *plan.Input) (moved map[string]bool, err error) {
	var models, unlinked, cut, vague []string
	nodes := slices.Clone(in.Nodes)
	moved = map[string]bool{}
	note := func(format string, args ...any) { in.Notes = append(in.Notes, fmt.Sprintf(format, args...)) }
	for i, node := range nodes {
		if moved[node.Name] = offers(in, node.Name); moved[node.Name] || !has(node) {
			continue
		}
		of, err := read(node)
		if err != nil {
			note("Node %s is left out: %v.", node.Name, err)
			continue
		}
		offered, err := published.Of(node, &of.Machine, true)
		if err != nil {
			note("Node %s is left out, as the driver would not serve it: %v.", node.Name, err)
			continue
		}
		if node.Labels[ack.NodeLabelSchedule] == "topology" {
			unlinked = append(unlinked, node.Name)
		}
		if len(of.Partitioned) > 0 {
			cut = append(cut, node.Name)
		}
		if of.vague {
			vague = append(vague, node.Name)
		}
		if len(of.others) > 0 {
			note("Of node %s is left out, as the driver offers whole MIG instances: %s.", node.Name,
				text.List(of.others, mostNamed))
		}
		in.Slices = slices.DeleteFunc(slices.Clone(in.Slices), func(s *resourceapi.ResourceSlice) bool {
			return s.Spec.Driver == v1alpha1.DriverName && s.Spec.Pool.Name == v1alpha1.PoolName(node.Name)
		})
		in.Slices, nodes[i] = append(in.Slices, offered...), without(node)
		for _, g := range of.GPUs {
			models = append(models, g.Model)
		}
	}
	in.Nodes = nodes
	for _, of := range []struct {
		nodes []string
		says  string
	}{
		{cut, "Which GPU each MIG instance of %s is part of is not known: numbers of GPUs and slices are made up. " +
			"Multiprocessors and engines are not known either."},
		{vague, "The memory of MIG instances of %s is taken from the names of their profiles, and may be a little less: " +
			"the labels " + v1alpha1.MIGResourcePrefix + "….memory are missing."},
		{unlinked, "How the GPUs of %s are linked is not known: single GPUs are planned."},
	} {
		if len(of.nodes) > 0 {
			note(of.says, text.List(of.nodes, mostNamed))
		}
	}
	classes, err := deviceclasses.With(models)
	for _, class := range classes {
		if !slices.ContainsFunc(in.Snapshot.Classes, func(c *resourceapi.DeviceClass) bool { return c.Name == class.Name }) {
			in.Snapshot.Classes = append(slices.Clone(in.Snapshot.Classes), class)
		}
	}
	return moved, err
}

// planPods plans the pods, the oldest first, each on its node if it has room there. Those that do not ask count in
// their gangs alone, and so do those on nodes which had moved before: what they hold is not offered there, and they
// keep it.
func planPods(in *plan.Input, pods []*corev1.Pod, moved map[string]bool) {
	plans := func(pod *corev1.Pod) bool { return asksPlugin(pod) && !moved[pod.Spec.NodeName] }
	var planned []*corev1.Pod
	for _, pod := range pods {
		if plans(pod) {
			planned = append(planned, pod)
		}
	}
	slices.SortStableFunc(planned, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name))
	})
	workloads := make([]plan.Workload, 0, len(planned)+len(in.Workloads))
	for _, pod := range planned {
		w := plan.Workload{Source: plan.Source{File: fromCluster},
			Kind: "pod", Namespace: pod.Namespace, Name: pod.Name, Pods: 1,
			On: pod.Spec.NodeName, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: *pod.Spec.DeepCopy()}}
		w.Template.Spec.NodeName = ""
		workloads = append(workloads, w)
	}
	in.Workloads = append(workloads, in.Workloads...)
	in.Bound = slices.DeleteFunc(slices.Clone(in.Bound), plans)
	for _, pod := range pods {
		// Those on nodes are among Bound.
		if pod.Spec.NodeName == "" && !plans(pod) {
			in.Beside = append(in.Beside, pod)
		}
	}
}

// asksPlugin reports whether a pod asks for GPUs that a device plugin gives, and has no claim.
func asksPlugin(pod *corev1.Pod) bool {
	if pod.Status.ExtendedResourceClaimStatus != nil {
		return false
	}
	if legacy.Asks(pod) {
		return true
	}
	return slices.ContainsFunc(slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers), func(c corev1.Container) bool {
		for name, amount := range c.Resources.Limits {
			if deviceplugin.Native(name) && !amount.IsZero() {
				return true
			}
		}
		return false
	})
}

// offers reports whether the driver offers GPUs on a node already.
func offers(in *plan.Input, node string) bool {
	return slices.ContainsFunc(in.Slices, func(s *resourceapi.ResourceSlice) bool {
		return s.Spec.Driver == v1alpha1.DriverName && s.Spec.Pool.Name == v1alpha1.PoolName(node) && len(s.Spec.Devices) > 0
	})
}
