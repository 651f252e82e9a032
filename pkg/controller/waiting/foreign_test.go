// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// What a pod does not ask for is not searched, but for what others have: a GPU that one has whole has no shares.
func TestDevicesThatNobodyAsksForCountWhereTheyAreTaken(t *testing.T) {
	run(t, mode.Dynamic, func(s *site) {
		s.holds("n1", "whole", "gpu-0")
		s.waits("shared", claimOf(share, "6Gi", 1))
		s.nominated("one GPU is taken", "shared", "n1")
		s.nominator.mu.Lock()
		promised := s.nominator.chooser.promises["uid-shared"].allocated
		s.nominator.mu.Unlock()
		if len(promised) != 1 || promised[0].Devices.Results[0].Device != "gpu-1-share" {
			t.Errorf("promised %+v, want gpu-1-share", promised)
		}
		s.holds("n1", "other", "gpu-1")
		s.waits("late", claimOf(share, "6Gi", 1))
		s.nominated("both GPUs are taken", "late", "")
	}, "n1")
}

// A linked set of which others have a GPU is not searched, but for who asks for all sets: one that is taken is missing.
func TestSetsOfTakenGPUs(t *testing.T) {
	n := clusterOf(t.Context(), t, mode.Topology, 1)
	on := n.chooser.known["node-0"]
	on.claims = []*resourceapi.ResourceClaim{{Status: resourceapi.ResourceClaimStatus{
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Driver: v1alpha1.DriverName,
				Pool: v1alpha1.PoolName("node-0"), Device: "gpus-0-1"}}}}}}}
	searched := func(mode resourceapi.DeviceAllocationMode) (names []string) {
		claim := linkedClaim(4)
		claim.Devices.Requests[0].Exactly.AllocationMode = mode
		w := &wish{claims: []*resourceapi.ResourceClaim{{Spec: claim}}}
		question, err := scheduling.Question(&corev1.Pod{}, w.claims)
		expect.NoError(t, err)
		w.kind.question = question
		for _, slice := range on.searched(n.chooser.asked(t.Context(), w)) {
			for _, device := range slice.Spec.Devices {
				names = append(names, device.Name)
			}
		}
		return names
	}
	all := searched(resourceapi.DeviceAllocationModeAll)
	if !slices.Contains(all, "gpus-0-1-2-3") {
		t.Errorf("all sets: %v", all)
	}
	free := slices.DeleteFunc(all, func(name string) bool {
		indices, _, err := devices.ParseDeviceName(name)
		expect.NoError(t, err)
		return name != "gpus-0-1" && indices[0] <= 1
	})
	expect.Equal(t, free, searched(resourceapi.DeviceAllocationModeExactCount), "sets that are searched for one")
}

func TestForeignDevices(t *testing.T) {
	n := clusterOf(t.Context(), t, mode.Share, 1)
	_, offered := n.chooser.offers()
	of := slices.Clone(offered[0][:2])
	of[1].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		v1alpha1.AttrMode: of[0].Attributes[v1alpha1.AttrMode]}
	selecting := func(expression string) resourceapi.ResourceClaimSpec {
		claim := claimOf(share, "6Gi", 1)
		claim.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
		return claim
	}
	for name, test := range map[string]struct {
		claim resourceapi.ResourceClaimSpec
		want  []bool
	}{
		"the class":                    {claimOf(share, "6Gi", 1), []bool{false, false}},
		"another class":                {claimOf(whole, "", 1), []bool{true, true}},
		"no such class":                {claimOf("none", "", 1), []bool{false, false}},
		"more than there is":           {claimOf(share, "60Gi", 1), []bool{true, true}},
		"a selector that one fails on": {selecting(`device.attributes["gpu.aliyun.com"].index == 7`), []bool{true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			got := n.chooser.engine.Foreign(t.Context(), n.chooser.classesOf().all, of,
				[]*resourceapi.ResourceClaim{{Spec: test.claim}})
			expect.Equal(t, test.want, got, "foreign")
		})
	}
}

// A look that has run out of time may have found too little: the next one looks again.
func TestWhatACutLookFoundIsNotKept(t *testing.T) {
	n := clusterOf(t.Context(), t, mode.Share, 1)
	w := &wish{claims: []*resourceapi.ResourceClaim{{Spec: claimOf(share, "6Gi", 1)}}}
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{cut, t.Context()} {
		n.chooser.kindOf(ctx, w)
		if kept := n.chooser.questions.Len(); kept != 0 && ctx == cut {
			t.Errorf("%d questions are kept", kept)
		}
	}
	if k := n.chooser.kindOf(t.Context(), w); k.asks == nil || n.chooser.questions.Len() != 1 {
		t.Errorf("the next look found %+v", k)
	}
}
