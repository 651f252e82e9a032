// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/allocatortest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// freeNodes are nodes of eight GPUs without claims, with a claim that fits, and the allocations that this may cost the
// stock allocator.
func freeNodes(t testing.TB) map[string]freeNode {
	dgx1, share := machine(t, "dgx1"), claimOf(request("gpu", mode.Share, amounts{v1alpha1.CapMemory: "1Gi"}))
	shares := allocatortest.NewNode("n1", v1alpha1.DriverName, build(dgx1, mode.Share), modeClasses(t))
	whole := allocatortest.NewNode("n1", v1alpha1.DriverName, build(dgx1, mode.Exclusive), modeClasses(t))
	return map[string]freeNode{
		"whole GPUs":  {whole, claimOf(request("gpu", mode.Exclusive, nil)), 170},
		"shares":      {shares, share, 210},
		"linked sets": {topologyNode(t, dgx1), newGPUs(4), 1130},
		"dynamic":     {dynamicNode(t, dgx1), share, 360},
	}
}

type freeNode struct {
	*allocatortest.Node
	claim resourceapi.DeviceClaim
	most  float64
}

// allocate allocates the claim, and gives back what it got.
func (n freeNode) allocate(t testing.TB) {
	got, err := n.Allocate(quiet(t), n.claim)
	expect.NoError(t, err)
	if got == nil {
		t.Fatal("the claim does not fit")
	}
	n.Release(got)
}

// Attributes, selectors and devices that cost the scheduler more show in its allocations first, on a busy machine, too.
func TestFreeNodeStaysCheap(t *testing.T) {
	for name, n := range freeNodes(t) {
		if got := testing.AllocsPerRun(50, func() { n.allocate(t) }); got > n.most {
			t.Errorf("%s: a claim on a free node costs %.0f allocations, more than %.0f", name, got, n.most)
		}
	}
}

func BenchmarkFreeNode(b *testing.B) {
	for name, n := range freeNodes(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n.allocate(b)
			}
		})
	}
}
