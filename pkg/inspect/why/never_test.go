// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
)

// Nothing that is given back helps these.
func TestPodsThatOnlyAnotherRequestHelps(t *testing.T) {
	checkAnswers(t, stage, map[string]situation{
		"a capacity by a name that GPUs have not": {func(in *why.Input) {
			claim := asking("team-a", "c", "share.gpu.aliyun.com", "")
			claim.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{
				Requests: map[resourceapi.QualifiedName]resource.Quantity{"mem": resource.MustParse("2Gi")}}
			waiting(in, claim)
		}, []string{"request gpu: 2Gi of mem asked for; the GPUs that match have the capacities",
			"mem: no such capacity", "- asking for a capacity that GPUs have: cores, memory, slots"},
			[]string{"has 0", "larger GPUs"}},
		"more at once than any node has": {func(in *why.Input) {
			hold(in, "team-b", "whole", "n1", "gpu-0", "")
			one := asking("team-a", "c", "exclusive.gpu.aliyun.com", "").Spec.Devices.Requests[0]
			two := asking("team-a", "c", "exclusive.gpu.aliyun.com", "")
			one.Name = "more"
			two.Spec.Devices.Requests = append(two.Spec.Devices.Requests, one)
			waiting(in, two)
		}, []string{"waits: the pod can never be scheduled on this cluster as it is: no node has all requested " +
			"devices at once", "- asking for fewer at once, or a node with more such GPUs"}, []string{"given back"}},
		"one claim by two names": {func(in *why.Input) {
			claim := hold(in, "team-a", "train", "n2", "gpu-0-share", "2Gi")
			claim.Status.ReservedFor = nil
			waiting(in, claim, claim)
			for _, name := range []string{"a", "b"} {
				in.Pod.Spec.ResourceClaims = append(in.Pod.Spec.ResourceClaims,
					corev1.PodResourceClaim{Name: name, ResourceClaimName: &claim.Name})
			}
		}, []string{"waits: its resourceClaims a and b are one ResourceClaim, train-gpu, which the scheduler cannot " +
			"reserve for a pod twice: name it once, and let several containers use that name"}, []string{"about to place it"}},
	})
}
