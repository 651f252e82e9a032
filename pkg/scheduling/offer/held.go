// SPDX-License-Identifier: Apache-2.0

package offer

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
)

// Held is what a pod with these allocations asked for, as far as they tell, and the places of the GPUs that it has some
// of; nothing where others than these GPUs are among them.
func (o *GPUs) Held(results []resourceapi.DeviceRequestAllocationResult) (of []score.Request, gpus []int) {
	for _, r := range results {
		p, ours := o.parts[r.Device]
		if !ours || r.Driver != v1alpha1.DriverName {
			return nil, nil
		}
		gpus = append(gpus, p.gpus...)
	}
	slices.Sort(gpus)
	return o.granted(results), slices.Compact(gpus)
}
