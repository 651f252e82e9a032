// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// gatedMost is how long a pod may be at the gate of the option best-node-gate: a leader takes it off within 5 s, and
// another one leads within 16 s.
const gatedMost = time.Minute

// gates looks for pods whose gate nobody takes off.
func gates(s *Snapshot) []Finding {
	var held []string
	only := []string{v1alpha1.GateBestNode}
	if s.nobodyJudges() {
		only = append(only, v1alpha1.GateCostlyClaims)
	}
	for _, pod := range s.Pods {
		if isGated(pod, only) && s.Now.Sub(pod.CreationTimestamp.Time) > gatedMost {
			held = append(held, pod.Namespace+"/"+pod.Name)
		}
	}
	if len(held) == 0 {
		return nil
	}
	return []Finding{{Level: Error, Text: fmt.Sprintf("%d pods are held at the scheduling gate %s, which "+
		"gpu-compat-controller should remove: %s", len(held), strings.Join(only, " or "), text.List(held, nodesNamed)),
		Do: "see in their Events and the log of gpu-compat-controller what keeps it from this; or gate no further pods, " +
			"and remove the gate from these: docs/packing.md#the-gate"}}
}

// isGated reports whether these gates alone keep a pod from the scheduler.
func isGated(pod *corev1.Pod, gates []string) bool {
	of := pod.Spec.SchedulingGates
	return pod.DeletionTimestamp == nil && len(of) > 0 && !slices.ContainsFunc(of,
		func(g corev1.PodSchedulingGate) bool { return !slices.Contains(gates, g.Name) })
}

// nobodyJudges reports whether no controller finds out what the claims of a pod cost: none runs, or its setting
// BEST_NODE is off. While one does, pods may wait at the gate of costly claims for long, and Events tell them why.
func (s *Snapshot) nobodyJudges() bool {
	return !s.cannotRead("deployments.apps") && !slices.ContainsFunc(s.Deployments, func(d *appsv1.Deployment) bool {
		return d.Labels[labelComponent] == controller && d.Status.ReadyReplicas > 0 &&
			slices.ContainsFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
				value, known := s.setting(d.Namespace, &c, "BEST_NODE")
				on, _ := strconv.ParseBool(value)
				return on || !known
			})
	})
}
