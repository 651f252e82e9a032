// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// spread has n2 spread its shares: each of its two GPUs of 22Gi offers one for the moment.
func spread(t *testing.T) why.Input {
	t.Helper()
	in := stage(t)
	machine, limits := &gpu.Machine{}, map[string]gpu.Amount{}
	for i, uuid := range []string{"GPU-n2-a", "GPU-n2-b"} {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: uuid, Model: "NVIDIA-A10", MemoryMiB: 23028})
		limits[uuid] = gpu.Amount{Units: 22, Shares: 1}
	}
	in.Slices[1] = published.Slices("n2", devices.Build(machine, devices.Options{Pool: v1alpha1.PoolName("n2"),
		Mode: mode.Share, Slots: 20, Limits: limits}))[0]
	return in
}

// ofOneGPU is a claim of two containers, each of which asks for a share of one GPU.
func ofOneGPU(memory string) *resourceapi.ResourceClaim {
	claim := asking("team-a", "train-gpu", "share.gpu.aliyun.com", memory)
	other := *claim.Spec.Devices.Requests[0].DeepCopy()
	other.Name = "other"
	claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, other)
	claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{
		MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(v1alpha1.DriverName + "/" + v1alpha1.AttrUUID))}}
	return claim
}

// What a node holds back to spread shares it lets go for who waits: so nobody is told to ask for less.
func TestSharesThatAreHeldBack(t *testing.T) {
	const moment = "- a moment: node n2 spreads shares, and offers more"
	const soon, never = "held back for a moment, as shares are spread", "each request would fit, all at once do not"
	checkAnswers(t, spread, map[string]situation{
		"two shares of one GPU": {func(in *why.Input) { waiting(in, ofOneGPU("2Gi")) },
			[]string{"no node has room for its GPUs now", "n2    2     " + soon + ": what all requests need at once\n", moment},
			[]string{never, "asking for less"}},
		"more than the GPU has": {func(in *why.Input) { waiting(in, ofOneGPU("12Gi")) }, []string{never},
			[]string{soon, moment}},
		"one share of a GPU that is ahead": {func(in *why.Input) {
			hold(in, "team-b", "a", "n2", "gpu-0-share", "1Gi")
			hold(in, "team-b", "b", "n2", "gpu-1-share", "1Gi")
			waiting(in, asking("team-a", "c", "share.gpu.aliyun.com", "2Gi"))
		}, []string{soon + ": all 2 GPUs", moment}, []string{never}},
		"a gang": {func(in *why.Input) { gangOf(in, 4, 1, 4, "10Gi") }, []string{
			"waits for its gang: its own GPUs are free on node n2 (gpu-0-share)", "2 find their GPUs now (2 on node n2): the " +
				"gang waits for what nodes hold back for a moment, as shares are spread.", "- a moment: nodes let shares go"}, nil},
		"a gang that needs more": {func(in *why.Input) { gangOf(in, 4, 1, 4, "15Gi") },
			[]string{"the gang waits for room for 1 more."}, []string{"a moment"}},
	})
}
