// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// What a plan of 100 pods costs on 1000 nodes of 8 GPUs.
func BenchmarkPlanOnManyNodes(b *testing.B) {
	s := newSite(b)
	for i := range 1000 {
		s.node(fmt.Sprintf("n%04d", i), 8, mode.Share)
	}
	s.read(b, workload("Deployment", 100, "aliyun.com/gpu-mem: 8"))
	for b.Loop() {
		made, err := plan.Of(b.Context(), s.Input)
		if err != nil || made.Fits != 100 {
			b.Fatalf("%v, %v", made, err)
		}
	}
}
