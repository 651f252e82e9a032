// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// ToleratesSwitch says whether the claim may have been allocated from the pool although
// its devices were closed to new claims, since the node waits to change its mode: all
// that it holds there tolerates that. Where anything does not, it was allocated before.
func ToleratesSwitch(c *resourceapi.ResourceClaim, pool string) bool {
	if c.Status.Allocation == nil {
		return false
	}
	taint := resourceapi.DeviceTaint{Key: v1alpha1.TaintSwitching, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	tolerates := false
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver != v1alpha1.DriverName || r.Pool != pool || ptr.Deref(r.AdminAccess, false) {
			continue
		}
		if !slices.ContainsFunc(r.Tolerations, func(t resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(t, taint)
		}) {
			return false
		}
		tolerates = true
	}
	return tolerates
}
