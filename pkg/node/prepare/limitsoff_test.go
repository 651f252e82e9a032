// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
)

// Who switches limits off is the administrators' to say; what is not off is limited, and the
// pods are told.
func TestWhoSwitchesLimitsOff(t *testing.T) {
	const off, keeps = `"disableIsolation":true`, `"disableIsolation":false`
	byPod := func(n *node) {
		n.api.user.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CGPU_DISABLE", Value: "true"}}
	}
	byNode := func(n *node) { n.SetIsolationDisabled(true) }
	nothing := func(*node) {}
	share := func() *resourceapi.ResourceClaim { return on(sharesOf("u1", 0, 3), "gpu-0-mps") }
	byClaim := func(fields string) *resourceapi.ResourceClaim { return configured(share(), "r0", fields) }
	byClass := func() *resourceapi.ResourceClaim {
		c := byClaim(off)
		c.Status.Allocation.Devices.Config[0].Source = resourceapi.AllocationConfigSourceClass
		return c
	}
	type who = []claim.LimitsOffBy
	all := who{"", claim.LimitsOffByClaims, claim.LimitsOffByClasses, claim.LimitsOffByNodes}
	for name, tc := range map[string]struct {
		claim *resourceapi.ResourceClaim
		more  func(*node)
		off   who // with these settings the limits are off
		told  who // with these the pods are told that they are not
	}{
		"nobody":                      {share(), nothing, nil, nil},
		"a container":                 {share(), byPod, all[:2], all[2:]},
		"the claim":                   {byClaim(off), nothing, all[:2], all[2:]},
		"the claim, which keeps them": {byClaim(keeps), nothing, nil, nil},
		"the class":                   {byClass(), nothing, all[:3], all[3:]},
		"the class, not the claim":    {configured(byClass(), "r0", keeps), nothing, nil, nil},
		"the class and the claim":     {configured(byClass(), "r0", off), nothing, all[:3], all[3:]},
		"the class and a container":   {byClass(), byPod, all[:3], all[3:]},
		"the node":                    {share(), byNode, all, nil},
		"the node and a container":    {share(), func(n *node) { byPod(n); byNode(n) }, all, nil},
	} {
		for _, setting := range all {
			t.Run(name+" with "+string(setting), func(t *testing.T) {
				n := limitedNode(t, []*resourceapi.ResourceClaim{tc.claim}, corev1.ResourceClaim{Name: "u1"})
				tc.more(n)
				n.options.LimitsOffBy = setting
				got := n.takes(t, tc.claim)
				env := n.env(t, got[0].CDIDeviceIDs[0])
				if limited := slices.Contains(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=3226M"); limited == slices.Contains(
					tc.off, setting) {
					t.Errorf("environment %q", env)
				}
				expect.Equal(t, slices.Contains(tc.off, setting), slices.Contains(env, "CGPU_DISABLE=true"), "environment %q", env)
				var want []string
				if slices.Contains(tc.told, setting) {
					want = []string{"r0"}
				}
				expect.Equal(t, want, n.limitsKept, "told")
			})
		}
	}
}
