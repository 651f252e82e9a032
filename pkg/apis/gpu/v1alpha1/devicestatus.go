// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// DeviceStatus is the data of an entry of this driver in the status.devices of a
// ResourceClaim: what the claim was granted of the device, once it is prepared.
type DeviceStatus struct {
	// GPUs are the device's: one, or those of a linked set.
	GPUs []DeviceStatusGPU `json:"gpus"`
	// Mode is the mode that the GPUs were allocated in.
	Mode string `json:"mode"`
	// MemoryMiB is the memory that was granted, of each GPU that is shared its limit, and
	// CoresPercent the compute, where that is granted.
	MemoryMiB    int64 `json:"memoryMiB"`
	CoresPercent int64 `json:"coresPercent,omitempty"`
	// Isolation and IsolationLevel are what keeps the claim to that, as in the attributes of
	// the device.
	Isolation      string `json:"isolation"`
	IsolationLevel string `json:"isolationLevel,omitempty"`
	// TimeSlice is what the GPUs have now because of the claims on them; empty for the NVIDIA driver's default.
	TimeSlice TimeSlice `json:"timeSlice,omitempty"`
	// Admin says that the claim has access to the device and nothing of it.
	Admin bool `json:"adminAccess,omitempty"`
}

// DeviceStatusGPU is a GPU of a device.
type DeviceStatusGPU struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	Model string `json:"model"`
	// MIG is the instance of the GPU that the device is; nil for the GPU. UUID is the instance's then.
	MIG *DeviceStatusMIG `json:"mig,omitempty"`
}

// DeviceStatusMIG is an instance of a GPU in MIG mode.
type DeviceStatusMIG struct {
	Profile    string `json:"profile"`
	ParentUUID string `json:"parentUUID"`
	// PlacementStart is the first of the GPU's memory slices that the instance has, PlacementSize how
	// many it has.
	PlacementStart int `json:"placementStart"`
	PlacementSize  int `json:"placementSize"`
}

// Types of the conditions in such an entry.
const (
	// ConditionReady is true while a container that starts with the device gets all of it.
	ConditionReady = "Ready"
	// ConditionHealthy is true while the device's GPUs are healthy.
	ConditionHealthy = "Healthy"
)

// Reasons of these conditions.
const (
	ConditionReasonPrepared     = "Prepared"
	ConditionReasonNotStartable = "NotStartable"
	ConditionReasonHealthy      = "Healthy"
	ConditionReasonUnhealthy    = "Unhealthy"
)
