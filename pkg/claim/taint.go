// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
)

// ToleratesSwitch reports whether the claim may have been allocated from the pool although
// its devices were closed to new claims, since the node waits to change its mode: all
// that it holds there tolerates that. Where anything does not, it was allocated before.
// MIG instances tell nothing of it: they are never closed for that.
func ToleratesSwitch(c *resourceapi.ResourceClaim, pool string) bool {
	taint := resourceapi.DeviceTaint{Key: v1alpha1.TaintSwitching, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	held := slices.DeleteFunc(Held(c, pool), func(r resourceapi.DeviceRequestAllocationResult) bool {
		_, m, err := devices.ParseDeviceName(r.Device)
		return err == nil && !m.OfNode()
	})
	return len(held) > 0 && !slices.ContainsFunc(held, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return !slices.ContainsFunc(r.Tolerations, func(t resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(t, taint)
		})
	})
}
