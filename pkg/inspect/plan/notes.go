// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// mostNamed is how many workloads or pods a note names.
const mostNamed = 5

// notLookedAt says what is not planned of the pods, once.
func notLookedAt(in *Input, pods []*pending) []string {
	seen := map[string][]string{}
	var order []string
	note := func(what string, w *Workload) {
		if seen[what] == nil {
			order = append(order, what)
		}
		if !slices.Contains(seen[what], w.String()) {
			seen[what] = append(seen[what], w.String())
		}
	}
	for _, p := range pods {
		spec := &p.pod.Spec
		if in.NodesUnknown && selectsNodes(&p.from.Created().Spec) {
			note("nodeSelector and node affinity, because you may not read nodes", p.from)
		}
		if usesHostPorts(spec) {
			note("ports of nodes (hostPort, hostNetwork)", p.from)
		}
		// Policies add preferences alone, and those are looked at.
		if a := p.from.Template.Spec.Affinity; a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil) {
			note("affinity towards other pods", p.from)
		}
		if slices.ContainsFunc(spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
			return c.WhenUnsatisfiable == corev1.DoNotSchedule || c.WhenUnsatisfiable == ""
		}) {
			note("topologySpreadConstraints", p.from)
		}
		if slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
		}) {
			note("where volumes can be", p.from)
		}
		admitted := p.from.Admitted != nil
		if p.pod.Annotations[ack.AnnotationCPUSet] == "true" && !admitted {
			note("CPUs of a container's own", p.from)
		}
		if p.pod.Annotations[ack.AnnotationBurst] != "" && !admitted {
			note("virtual nodes (annotation "+ack.AnnotationBurst+")", p.from)
		}
		if group := spec.SchedulingGroup; group != nil && p.gang == "" {
			note("how many pods of its PodGroup are needed at once", p.from)
		}
		if p.gang != "" && in.PodsUnknown {
			note("which pods of its gang run already, because you may not list pods", p.from)
		}
		if p.gang != "" && !admitted {
			note("whether this cluster serves PodGroups, without which gangs are not held", p.from)
		}
	}
	var out []string
	for _, what := range order {
		out = append(out, fmt.Sprintf("Not looked at: %s (%s).", what, text.List(seen[what], mostNamed)))
	}
	var left []string
	for _, p := range pods {
		if said := fmt.Sprintf("%s -n %s: %s.", p.from, p.from.Namespace, p.left); p.left != "" &&
			!slices.Contains(left, said) {
			left = append(left, said)
		}
	}
	out = append(out, left...)
	for i := range in.Workloads {
		if w := &in.Workloads[i]; w.Note != "" {
			out = append(out, fmt.Sprintf("%s (%s): %s.", w, w.Source, w.Note))
		}
	}
	return out
}

// selectsNodes says whether labels of nodes decide where a pod can be.
func selectsNodes(spec *corev1.PodSpec) bool {
	a := spec.Affinity
	return len(spec.NodeSelector) > 0 || a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
}

// usesHostPorts says whether a pod takes ports of its node, of which each is there once.
func usesHostPorts(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(slices.Concat(spec.Containers, spec.InitContainers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 || spec.HostNetwork })
	})
}
