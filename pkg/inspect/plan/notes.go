// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// mostNamed is how many workloads or pods a note names.
const mostNamed = 5

// notLookedAt says what is not planned of the pods, once, and what is special about workloads.
func notLookedAt(in *Input, pods []*pending) []string {
	seen := map[string][]string{}
	var order, out, left []string
	for _, p := range pods {
		spec, admitted, a := &p.pod.Spec, p.from.Admitted != nil, p.pod.Spec.Affinity
		for _, of := range []struct {
			is   bool
			what string
		}{
			{in.NodesUnknown && selectsNodes(&p.from.Created().Spec),
				"nodeSelector and node affinity, because you may not read nodes"},
			{scheduling.HasHostPort(spec), "ports of nodes (hostPort, hostNetwork)"},
			{a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil), "affinity towards other pods"},
			{slices.ContainsFunc(spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
				return c.WhenUnsatisfiable == corev1.DoNotSchedule || c.WhenUnsatisfiable == ""
			}), "topologySpreadConstraints"},
			{slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
				return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
			}), "where volumes can be"},
			{p.pod.Annotations[ack.AnnotationCPUSet] == "true" && !admitted, "CPUs of a container's own"},
			{p.pod.Annotations[ack.AnnotationBurst] != "" && !admitted,
				"virtual nodes (annotation " + ack.AnnotationBurst + ")"},
			{spec.SchedulingGroup != nil && p.gang == "", "how many pods of its PodGroup are needed at once"},
			{p.gang != "" && in.PodsUnknown, "which pods of its gang run already, because you may not list pods"},
			{p.gang != "" && !admitted, "whether this cluster serves PodGroups, without which gangs are not held"},
		} {
			if !of.is {
				continue
			}
			if seen[of.what] == nil {
				order = append(order, of.what)
			}
			if !slices.Contains(seen[of.what], p.from.String()) {
				seen[of.what] = append(seen[of.what], p.from.String())
			}
		}
		if said := fmt.Sprintf("%s -n %s: %s.", p.from, p.from.Namespace, p.left); p.left != "" &&
			!slices.Contains(left, said) {
			left = append(left, said)
		}
	}
	for _, what := range order {
		out = append(out, fmt.Sprintf("Not looked at: %s (%s).", what, text.List(seen[what], mostNamed)))
	}
	out = append(out, left...)
	for i := range in.Workloads {
		if w := &in.Workloads[i]; w.Note != "" {
			out = append(out, fmt.Sprintf("%s (%s): %s.", w, w.Source, w.Note))
		}
	}
	return out
}

// selectsNodes reports whether labels of nodes decide where a pod can be.
func selectsNodes(spec *corev1.PodSpec) bool {
	a := spec.Affinity
	return len(spec.NodeSelector) > 0 || a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
}
