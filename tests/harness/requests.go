// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// OfClass is a request for a device of NAME.gpu.aliyun.com.
func OfClass(name string) resourceapi.DeviceRequest {
	return Exactly(&resourceapi.ExactDeviceRequest{DeviceClassName: name + ".gpu.aliyun.com"})
}

// Exactly is the request "gpu" for just this.
func Exactly(request *resourceapi.ExactDeviceRequest) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: "gpu", Exactly: request}
}

// Capped is a request of a mode's class for these amounts, on the GPU with an
// index, or on any if that is negative.
func Capped(mode string, index int, pairs ...string) resourceapi.DeviceRequest {
	request := resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: mode + ".gpu.aliyun.com", Capacity: Capacities(pairs...),
	}}
	if index < 0 {
		return request
	}
	return Matching(request, OnGPU(index))
}

// Capacities is a request of several amounts, given as name and amount in turn.
func Capacities(pairs ...string) *resourceapi.CapacityRequirements {
	requests := map[resourceapi.QualifiedName]resource.Quantity{}
	for i := 0; i+1 < len(pairs); i += 2 {
		requests[resourceapi.QualifiedName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return &resourceapi.CapacityRequirements{Requests: requests}
}

// OnGPU is a CEL expression for the GPU with an index.
func OnGPU(index int) string {
	return fmt.Sprintf(`device.attributes["gpu.aliyun.com"].index == %d`, index)
}

// Named is the request under another name.
func Named(name string, request resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	request.Name = name
	return request
}
