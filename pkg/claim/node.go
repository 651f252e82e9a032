// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// AllocatedFrom is the node whose GPUs a claim was allocated; empty where it has none
// of the driver.
func AllocatedFrom(claim *resourceapi.ResourceClaim) string {
	if claim.Status.Allocation == nil {
		return ""
	}
	results := claim.Status.Allocation.Devices.Results
	i := slices.IndexFunc(results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == v1alpha1.DriverName
	})
	if i < 0 {
		return ""
	}
	return strings.TrimSuffix(results[i].Pool, v1alpha1.PoolName(""))
}
