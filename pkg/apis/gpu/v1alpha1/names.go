// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import resourceapi "k8s.io/api/resource/v1"

// DriverName is the name of the DRA driver, and the domain of its attributes and
// capacities.
const DriverName = "gpu.aliyun.com"

// PoolName is the name of a node's pool. It is not the bare node name: before
// Kubernetes 1.37 the scheduler confuses pools of the same name that belong to
// different drivers.
func PoolName(node string) string { return node + "/gpu" }

// Attributes of a device. Names without a domain belong to the driver's
// domain: in CEL, device.attributes["gpu.aliyun.com"].<name>.
const (
	AttrUUID              resourceapi.QualifiedName = "uuid"
	AttrIndex             resourceapi.QualifiedName = "index"
	AttrMinor             resourceapi.QualifiedName = "minor"
	AttrModel             resourceapi.QualifiedName = "model"
	AttrProductName       resourceapi.QualifiedName = "productName"
	AttrBrand             resourceapi.QualifiedName = "brand"
	AttrArchitecture      resourceapi.QualifiedName = "architecture"
	AttrComputeCapability resourceapi.QualifiedName = "cudaComputeCapability"
	AttrDriverVersion     resourceapi.QualifiedName = "driverVersion"
	AttrCUDADriverVersion resourceapi.QualifiedName = "cudaDriverVersion"
	AttrMode              resourceapi.QualifiedName = "mode"
	AttrIsolation         resourceapi.QualifiedName = "isolation"
	AttrIsolationLevel    resourceapi.QualifiedName = "isolationLevel"
	AttrMemoryMiB         resourceapi.QualifiedName = "memoryMiB"
	AttrNVLinkPeers       resourceapi.QualifiedName = "nvlinkPeers"
	AttrNVLinkGBps        resourceapi.QualifiedName = "nvlinkGBps"
	// AttrGPUCount and AttrMembers are published in mode topology: how many GPUs a
	// device is, and the indices of a set's GPUs as in "0,1,2,3".
	AttrGPUCount resourceapi.QualifiedName = "gpuCount"
	AttrMembers  resourceapi.QualifiedName = "members"
	// AttrShareableGiB and AttrMaxShares are published where shares are spread, and the
	// capacities are what claims may have for the moment: how much of the memory, and how
	// many shares, claims can have of the GPU at all.
	AttrShareableGiB resourceapi.QualifiedName = "shareableGiB"
	AttrMaxShares    resourceapi.QualifiedName = "maxShares"
)

// Attributes of the metadata that a container finds about its devices (KEP-5304), beside
// some of the above: what was granted of each of the device's GPUs. Devices have them not.
const (
	AttrGrantedMemoryMiB resourceapi.QualifiedName = "grantedMemoryMiB"
	AttrGrantedCores     resourceapi.QualifiedName = "grantedCoresPercent"
)

// Capacities of a device.
const (
	CapMemory resourceapi.QualifiedName = "memory" // bytes
	CapCores  resourceapi.QualifiedName = "cores"  // percent of the GPU's compute
	CapSlots  resourceapi.QualifiedName = "slots"  // shares of the GPU
)

// Keys of the taints that the driver puts on its devices.
const (
	// TaintSwitching keeps new claims off the devices of a node that waits to
	// change its mode.
	TaintSwitching = DriverName + "/mode-switch"
	// TaintNotIsolated keeps new claims off a GPU on which they could not be
	// held to their shares at the moment.
	TaintNotIsolated = DriverName + "/isolation-unavailable"
	// TaintUnhealthy keeps new claims off a GPU that is not well. Its value is the
	// reason, such as "xid-79".
	TaintUnhealthy = DriverName + "/unhealthy"
	// TaintHeld keeps new claims off a GPU of which pods that hold no claim leave
	// nothing that could be handed out.
	TaintHeld = DriverName + "/held-without-claim"
	// TaintWithdrawn keeps new claims off a linked set that is published only
	// because claims are allocated it.
	TaintWithdrawn = DriverName + "/withdrawn"
)

// What gpu-compat-controller puts on what it makes. ControllerName is also the name of
// its Lease and Events, and the field manager under which the API server records what
// it wrote. It changes and removes nothing else.
const (
	ControllerName = "gpu-compat-controller"
	LabelManagedBy = "app.kubernetes.io/managed-by"
)

// Labels and annotations of DeviceClasses.
const (
	// LabelModel is, on the classes of a GPU model, the model as
	// aliyun.accelerator/nvidia_name writes it.
	LabelModel = "gpu.aliyun.com/model"
	// LabelMode is a class' mode, or "any".
	LabelMode = "gpu.aliyun.com/mode"
	// AnnotationModel is the model as the GPUs say it, which a label cannot always
	// hold.
	AnnotationModel = "gpu.aliyun.com/model"
	// AnnotationDescription says what a class gives.
	AnnotationDescription = "gpu.aliyun.com/description"
)

// AnnotationSyncRequested is when gpu-compat-controller last had the kubelet look at a pod
// that has claims and no sandbox: the kubelet syncs a pod whose annotations change.
const AnnotationSyncRequested = "gpu.aliyun.com/sync-requested-at"

const (
	// AnnotationGang is on pods that name a gang, which the admission policy has looked at:
	// the gang's name.
	AnnotationGang = "gpu.aliyun.com/gang"
	// AnnotationCPUSet is on pods that ask for CPUs of their own, which the admission policy
	// has looked at.
	AnnotationCPUSet = "gpu.aliyun.com/cpuset"
	// LabelLegacy is "true" on pods, templates and claims that stand for a request in
	// ACK's manner. "false" opts out of it: on a namespace, whoever may change its
	// labels, for all that its pods could do; on a pod, whoever writes pods, for what
	// becomes of that pod alone.
	LabelLegacy = "gpu.aliyun.com/legacy"
	// AnnotationLegacyRequest holds what the pod's containers asked for, as a JSON
	// object of resource lists by the container's name.
	AnnotationLegacyRequest = "gpu.aliyun.com/legacy-request"
)

// AnnotationWaiting is what gpu-compat-controller writes on a node whose shares are spread,
// for its plugin: a claim waits for what the node holds back for the moment. It is a
// placement.Waiting.
const AnnotationWaiting = "gpu.aliyun.com/waiting-share"

// LabelMPSDaemon is on nodes where one MPS control daemon is to serve all GPUs, with the value
// MPSDaemonNode, instead of one for each GPU.
const (
	LabelMPSDaemon = "gpu.aliyun.com/mps-daemon"
	MPSDaemonNode  = "node"
)
