// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Whose release a claim waits for is known whatever of the GPU they hold: they are looked at, for they may be orphans.
func TestWhoseInstanceIsInTheWay(t *testing.T) {
	whole := machine()
	whole.GPUs = append(whole.GPUs, gpu.GPU{Index: 4, UUID: "GPU-4", MemoryMiB: 81920})
	for name, tc := range map[string]struct {
		held   *resourceapi.ResourceClaim
		before *gpu.Machine
		// then is what becomes of the GPUs while the claim holds what it was granted.
		then   func(n *node, d *dynamicGPU)
		wanted *resourceapi.ResourceClaim
		want   string
	}{
		"one in a part of the place": {instanceClaim("q", elsewhere), nil, func(*node, *dynamicGPU) {},
			instanceClaim("p", fourOf), "cannot be made: 1g.10gb at slice 3 is in the way"},
		"one that somebody has destroyed": {instanceClaim("q", elsewhere), nil, func(n *node, d *dynamicGPU) {
			d.instances = nil
			n.has(d.machine())
		}, instanceClaim("p", fourOf), "holds GPU 4's 1g.10gb at slice 3, which is in the way"},
		"one with its id": {instanceClaim("q", "gpu-4-mig-1g-10gb-1"), cut(at(1, "MIG-b")),
			func(n *node, _ *dynamicGPU) { n.has(cut(at(1, "MIG-new"))) },
			instanceClaim("p", "gpu-4-mig-1g-10gb-1"), "holds the instance that was there before"},
		"one, of the whole GPU": {instanceClaim("q", "gpu-4-mig-1g-10gb-1"), cut(at(1, "MIG-b")),
			func(n *node, _ *dynamicGPU) { n.has(whole) },
			wholeGPUs("p", 4), "still holds an instance of it"},
		"the whole GPU, of one": {wholeGPUs("q", 4), whole,
			func(n *node, _ *dynamicGPU) { n.has(cut(at(1, "MIG-b"))) },
			instanceClaim("p", "gpu-4-mig-1g-10gb-1"), "holds the GPU as it was before"},
	} {
		t.Run(name, func(t *testing.T) {
			n, d := newNode(t), &dynamicGPU{}
			n.cuts(d)
			if tc.before != nil {
				n.has(tc.before)
			}
			n.prepared(t, t.Context(), wholeGPUs("beside", 0), tc.held)
			tc.then(n, d)
			_, err := n.Prepare(t.Context(), tc.wanted)
			fails(t, err, tc.want)
			if by := HeldBy(err); !slices.Equal(by, []types.UID{"q"}) {
				t.Errorf("held by %q, want claim q", by)
			}
		})
	}
}
