// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// A pod with a share of one GPU and the whole of another: a dynamic node has both.
func TestShareAndWholeGPUInOnePod(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, dynamicNode)
	ns := cluster.Namespace(t)
	for name, limits := range map[string][]string{
		"one": {"mem 3 nvidia.com/gpu 1"}, "two": {"mem 3", "nvidia.com/gpu 1"},
	} {
		pod := harness.On(dynamicNode, harness.Asking(limits...))[0]
		pod.Name = name
		ns.Run(t, pod)
	}
}

func TestShareAndWholeGPUWhereNoNodeHasBoth(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	pod := harness.On("share", harness.Asking("mem 3 nvidia.com/gpu 1"))[0]
	ns.Create(t, pod)
	ns.WaitPodEvent(t, pod.Name, "GPUClaimWaiting", "a node that gives it both is in mode dynamic")
}
