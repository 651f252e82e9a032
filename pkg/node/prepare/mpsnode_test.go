// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

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
			_, ctx := ktesting.NewTestContext(t)
			n := limitedNode(t, []*resourceapi.ResourceClaim{tc.claim}, tc.uses...)
			n.isolated = map[mode.Mode]string{mode.MPS: isolation.NameMPSNode}
			dir := mps.Dir(t.TempDir())
			release, err := dir.Hold()
			if err != nil {
				t.Fatal(err)
			}
			defer release() //nolint:errcheck // It is the test's own.
			var uuids []string
			for _, g := range machine().GPUs[:2] {
				uuids = append(uuids, g.UUID)
				if err := dir.OfNode().SetStatus(g.UUID, mps.Status{State: mps.Ready}); err != nil {
					t.Fatal(err)
				}
			}
			n.options.Isolation = isolation.NewRegistry(isolation.Config{MPSDir: string(dir), CGPUProc: "/proc/no_such_module"})
			for range 2 { // the kubelet asks again for a claim that is prepared
				got, err := n.Prepare(ctx, tc.claim)
				if err != nil {
					t.Fatal(err)
				}
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
