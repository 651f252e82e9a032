// SPDX-License-Identifier: Apache-2.0

package devices

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// BuildDynamic returns the pool in which each GPU is offered in several modes
// at once, as Build would offer it in each. A device takes its GPU's counter
// while it is allocated, however many claims share it: so the first claim
// decides on the GPU's mode, and the last one to go frees the GPU.
//
// Each is marked as one of several of its GPU: a DeviceClass of several modes that selected all of them would have the
// scheduler try each in turn, which multiplies with the other devices of a pod.
//
// perMode holds the options of each mode, all with the same pool and order.
//
// The counters of a device that is no longer published are not counted
// (kubernetes/kubernetes issue 140802), so a mode that cannot be served at the
// moment is to be tainted, not left out.
func BuildDynamic(m *gpu.Machine, perMode []Options) resourceslice.DriverResources {
	devices := make([]resourceapi.Device, 0, len(m.GPUs)*len(perMode))
	gpus := ordered(m, perMode[0].Order)
	for _, g := range gpus {
		for _, o := range perMode {
			if !Serves(o.Mode, g) {
				continue
			}
			d := device(m, g, o)
			attributes(d.Attributes).setBool(v1alpha1.AttrDynamic, true)
			d.ConsumesCounters = wholeGPUs(g.Index)
			devices = append(devices, d)
		}
	}
	// The counters' order is not the devices', which changes with what is granted.
	return withInstances(m, perMode[0], devices, gpuCounters(IndexOrder(m)))
}
