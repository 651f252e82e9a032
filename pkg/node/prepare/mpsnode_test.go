// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// What others hold is not taken by the one daemon for a claim that tolerates the taint which keeps claims off, or was
// allocated before. Where claims use it already it has all GPUs.
func TestOneMPSDaemonGetsNoFirstClaimBesideOthers(t *testing.T) {
	first, second := on(sharesOf("u1", 1, 1), "gpu-1-mps"), on(sharesOf("u2", 1, 1), "gpu-1-mps")
	n, dir := oneDaemonNode(t, []*resourceapi.ResourceClaim{first, second})
	var reserved held.Reserved
	n.reserved = func(context.Context, *gpu.Machine) (held.Reserved, error) { return reserved, nil }
	for name, by := range map[string]held.Reserved{
		"a pod":          reserved.Plus("GPU-0", "old/a", held.Taken{Amount: gpu.Amount{Units: 4}}),
		"another driver": reserved.OfDriver("GPU-0", "gpu.nvidia.com", nil),
	} {
		reserved = by
		_, err := n.Prepare(t.Context(), first)
		if err == nil || !strings.Contains(err.Error(), "one MPS control daemon") || !strings.Contains(err.Error(),
			"GPU 0") || ReasonOf(err) != ReasonInUse {
			t.Errorf("%s: %v (%s)", name, err, ReasonOf(err))
		}
		for _, g := range machine().GPUs {
			if use, err := dir.OfNode().Use(g.UUID); err != nil || use != (mps.Use{}) {
				t.Errorf("%s: GPU %d is told to be used as %+v, %v", name, g.Index, use, err)
			}
		}
	}
	n.leavesNothing(t)
	reserved = held.Reserved{}
	n.takes(t, first)
	reserved = reserved.Plus("GPU-0", "old/a", held.Taken{Amount: gpu.Amount{Units: 4}})
	n.takes(t, first, second)
}

// oneDaemonNode is a node with one MPS daemon for all GPUs, which is ready.
func oneDaemonNode(
	t *testing.T, claims []*resourceapi.ResourceClaim, uses ...corev1.ResourceClaim,
) (*node, mps.Dir) {
	t.Helper()
	n := limitedNode(t, claims, uses...)
	n.isolated = map[mode.Mode]string{mode.MPS: mode.IsolationMPSNode}
	dir := mps.Dir(t.TempDir())
	release, err := dir.Hold()
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, release()) })
	for _, g := range machine().GPUs {
		expect.NoError(t, dir.OfNode().SetStatus(g.UUID, mps.Status{State: mps.Ready}))
	}
	n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: string(dir), CGPUProc: "/proc/no_such_module"})
	return n, dir
}

// With one daemon for all GPUs a container has several, by a claim that says it in any way.
func TestWithOneMPSDaemonAContainerHasSeveralGPUs(t *testing.T) {
	requests := func() *resourceapi.ResourceClaim { return on(sharesOf("u1", 0, 1, 7), "gpu-0-mps", "gpu-1-mps") }
	oneRequest := requests()
	oneRequest.Status.Allocation.Devices.Results[1].Request = "r0"
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		uses  []corev1.ResourceClaim
	}{
		"a claim": {requests(), []corev1.ResourceClaim{{Name: "u1"}}},
		"one by one": {requests(), []corev1.ResourceClaim{{Name: "u1", Request: "r0"},
			{Name: "u1", Request: "r1"}}},
		"by configuration": {configured(configured(requests(), "r0", `"container":"a"`), "r1", `"container":"a"`), nil},
		"one request":      {oneRequest, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n, dir := oneDaemonNode(t, []*resourceapi.ResourceClaim{tc.claim}, tc.uses...)
			uuids := []string{"GPU-0", "GPU-1"}
			for range 2 { // the kubelet asks again for a claim that is prepared
				got := n.takes(t, tc.claim)
				want := fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=%s=1075M,%s=7527M", uuids[0], uuids[1])
				for i := range got {
					if env := n.env(t, got[i].CDIDeviceIDs[0]); !slices.Contains(env, want) {
						t.Errorf("environment %q of device %d, want %s in it", env, i, want)
					}
				}
			}
			for i, mib := range []int64{1075, 7527} {
				use, err := dir.OfNode().Use(uuids[i])
				if err != nil || !use.Claimed || use.MemoryMiB != mib {
					t.Errorf("GPU %d is told to be used as %+v, %v", i, use, err)
				}
			}
		})
	}
}
