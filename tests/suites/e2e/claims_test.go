// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

func TestOneClaimForTwoPods(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	ns.Claim(t, "ours", harness.Requests(harness.Share("gpu", "3Gi")))
	ns.Run(t, harness.Pod("a", "share", harness.FromClaim("ours")), harness.Pod("b", "share", harness.FromClaim("ours")))

	grants := ns.Granted(t, "a")
	for _, pod := range []string{"a", "b"} {
		ns.SeesItsGPUs(t, pod, "main", grants)
		ns.HasEnv(t, pod, "main", harness.LegacyEnv(3, 22, 3, grants[0].GPU.Index))
	}
	if n := recordsOf(t, ns, "share"); n != 1 {
		t.Errorf("the node keeps %d state files for the claim, want 1", n)
	}

	// The claim stays as long as one of them does.
	ns.Delete(t, "a")
	ns.SeesItsGPUs(t, "b", "main", grants)
	if n := recordsOf(t, ns, "share"); n != 1 {
		t.Errorf("after one pod of two has gone, the node keeps %d state files for the claim, want 1", n)
	}
	ns.Delete(t, "b")
	harness.Eventually(t, "the claim that nobody uses to leave the node", func(context.Context) error {
		if n := recordsOf(t, ns, "share"); n != 0 {
			return fmt.Errorf("the node keeps %d state files", n)
		}
		return nil
	})
}

func TestContainersWithRequestsOfTheirOwnOnOneGPU(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	packedNode(t, "fill", 4)
	ns := cluster.Namespace(t)
	// The first GPU has room for the small request, but not for both.
	ns.Template(t, "ten", harness.Requests(harness.Share("gpu", "10Gi")))
	ns.Run(t, harness.Pod("other", "fill", harness.FromTemplate("ten")))

	spec := harness.Requests(harness.Share("small", "1Gi"), harness.Share("large", "7Gi"))
	uuid := resourceapi.FullyQualifiedName("gpu.aliyun.com/uuid")
	spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &uuid}}
	ns.Template(t, "pinned", spec)
	ns.Run(t, harness.Pod("a", "fill", harness.FromTemplate("pinned"), harness.PerRequest("small", "large")))

	ns.HasUnits(t, "fill", 10, 8, 0, 0)
	grants := ns.Granted(t, "a")
	ns.SeesItsGPUs(t, "a", "small", grants)
	ns.SeesItsGPUs(t, "a", "large", grants)
	ns.HasEnv(t, "a", "small", harness.LegacyEnv(1, 15, 8, 1))
	ns.HasEnv(t, "a", "large", harness.LegacyEnv(7, 15, 8, 1))
}
