// SPDX-License-Identifier: Apache-2.0

package devices

import (
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// monitors are devices by which claims with adminAccess see each GPU of a pool that counts its GPUs. The scheduler
// counts for such claims, too, so the other devices of a GPU cannot be had while one is in use; these count nothing.
//
// They say of their GPU what others say, so that no selector fails, but that they are devices of no GPU: so neither
// classes of single GPUs select them, earlier ones included, nor does anybody count them. The taint keeps
// them from claims of administrators' classes that select all devices of the driver. That is their only one: it does
// not matter to a view whether the GPU takes claims.
func monitors(m *gpu.Machine, o Options) []resourceapi.Device {
	o.Mode, o.Taints, o.GPUTaints = mode.Monitor, []resourceapi.DeviceTaint{{Key: v1alpha1.TaintMonitor,
		Effect: resourceapi.DeviceTaintEffectNoSchedule}}, nil
	out := make([]resourceapi.Device, 0, len(m.GPUs))
	for _, g := range m.GPUs {
		d := device(m, g, o)
		attributes(d.Attributes).setInt(v1alpha1.AttrGPUCount, 0)
		attributes(d.Attributes).setBool(v1alpha1.AttrMonitor, true)
		out = append(out, d)
	}
	return out
}
