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
// domain: in CEL, device.attributes["gpu.aliyun.com"].<name>. The comments are the
// table of docs/reference.md: `make docs` writes it.
const (
	// AttrUUID (string): The GPU's UUID.
	AttrUUID resourceapi.QualifiedName = "uuid"
	// AttrIndex (int): The GPU's index, in the order of PCI addresses, as `nvidia-smi` counts.
	AttrIndex resourceapi.QualifiedName = "index"
	// AttrMinor (int): The number of its device node `/dev/nvidiaN`.
	AttrMinor resourceapi.QualifiedName = "minor"
	// AttrModel (string): The GPU model, as the label `aliyun.accelerator/nvidia_name` and the DeviceClasses have
	// it (docs/gpu-models.md).
	AttrModel resourceapi.QualifiedName = "model"
	// AttrProductName (string): The GPU model, as the NVIDIA driver calls it.
	AttrProductName resourceapi.QualifiedName = "productName"
	// AttrBrand (string): The GPU's brand, such as Tesla.
	AttrBrand resourceapi.QualifiedName = "brand"
	// AttrArchitecture (string): The GPU's architecture, such as Ampere.
	AttrArchitecture resourceapi.QualifiedName = "architecture"
	// AttrComputeCapability (version): The GPU's CUDA compute capability.
	AttrComputeCapability resourceapi.QualifiedName = "cudaComputeCapability"
	// AttrDriverVersion (version): The version of the NVIDIA driver.
	AttrDriverVersion resourceapi.QualifiedName = "driverVersion"
	// AttrCUDADriverVersion (version): The newest version of CUDA that it serves.
	AttrCUDADriverVersion resourceapi.QualifiedName = "cudaDriverVersion"
	// AttrMode (string): The mode that the device is for (docs/modes.md).
	AttrMode resourceapi.QualifiedName = "mode"
	// AttrIsolation (string): What keeps a claim to what it was granted (docs/isolation.md).
	AttrIsolation resourceapi.QualifiedName = "isolation"
	// AttrIsolationLevel (string): What it takes to get around that: `card`, `kernel`, `driver`, `cooperative` or
	// `none` (docs/isolation.md). With MPS it is that of the GPU: `driver` where the supervisor may set its compute
	// mode.
	AttrIsolationLevel resourceapi.QualifiedName = "isolationLevel"
	// AttrMemoryMiB (int): The GPU's memory in MiB.
	AttrMemoryMiB resourceapi.QualifiedName = "memoryMiB"
	// AttrNVLinkPeers (string): The indices of the GPUs that it is linked with by NVLink, as in `1,2`.
	AttrNVLinkPeers resourceapi.QualifiedName = "nvlinkPeers"
	// AttrNVLinkGBps (int): The NVLink bandwidth to its best-linked neighbour; of a linked set the smallest between
	// two of its GPUs (docs/topology.md#what-is-published).
	AttrNVLinkGBps resourceapi.QualifiedName = "nvlinkGBps"
	// AttrGPUCount (int): In mode `topology`: how many GPUs the device is.
	AttrGPUCount resourceapi.QualifiedName = "gpuCount"
	// AttrMembers (string): In mode `topology`: the indices of a linked set's GPUs, as in `0,1,2,3`.
	AttrMembers resourceapi.QualifiedName = "members"
	// AttrShareableGiB (int): Where shares are spread (docs/modes.md#placement): how much of the memory claims can
	// have of the GPU at all. Do not select by it: a selector that names an attribute which a device lacks keeps the
	// pod from every node.
	AttrShareableGiB resourceapi.QualifiedName = "shareableGiB"
	// AttrMaxShares (int): Where shares are spread (docs/modes.md#placement): how many shares claims can have of the
	// GPU at all. Do not select by it either.
	AttrMaxShares resourceapi.QualifiedName = "maxShares"
)

// Attributes of the metadata that a container finds about its devices (KEP-5304), beside
// some of the above: what was granted of each of the device's GPUs. Devices have them not.
const (
	MetaGrantedMemoryMiB resourceapi.QualifiedName = "grantedMemoryMiB"
	MetaGrantedCores     resourceapi.QualifiedName = "grantedCoresPercent"
)

// Capacities of a device.
const (
	// CapMemory (bytes): The GPU's memory, in whole GiB where it is shared.
	CapMemory resourceapi.QualifiedName = "memory"
	// CapCores (percent): The GPU's compute.
	CapCores resourceapi.QualifiedName = "cores"
	// CapSlots (shares): How many shares can be had of the GPU (docs/modes.md).
	CapSlots resourceapi.QualifiedName = "slots"
)

// Keys of the taints that the driver puts on its devices. They keep new claims off.
const (
	// TaintSwitching: The node waits to change its mode
	// (docs/troubleshooting.md#a-node-that-waits-to-change-its-mode).
	TaintSwitching = DriverName + "/mode-switch"
	// TaintNotIsolated: Shares cannot be limited on the GPU at the moment (docs/isolation.md).
	TaintNotIsolated = DriverName + "/isolation-unavailable"
	// TaintUnhealthy: The GPU is unhealthy; the value is the reason, such as `xid-79` (docs/health.md).
	TaintUnhealthy = DriverName + "/unhealthy"
	// TaintHeld: Pods of a device plugin, which hold no claim, leave nothing of the GPU that could be handed out
	// (docs/migrate.md#what-an-old-pod-counts-for).
	TaintHeld = DriverName + "/held-without-claim"
	// TaintOtherDriver: Another DRA driver, which is the value, publishes the GPU on the node, too
	// (docs/install.md#beside-another-dra-driver).
	TaintOtherDriver = DriverName + "/other-driver"
	// TaintWithdrawn: The linked set is published only because claims are allocated it
	// (docs/topology.md#a-sick-gpu).
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
	// LabelCPUClass is on the DeviceClass by which the admission policy knows that the driver
	// for CPUs is installed: the name of that driver's DeviceClass.
	LabelCPUClass = "gpu.aliyun.com/cpu-class"
	// LabelLegacy is "true" on pods, templates and claims that stand for a request in
	// ACK's manner. "false" opts out of it: on a namespace, whoever may change its
	// labels, for all that its pods could do; on a pod, whoever writes pods, for what
	// becomes of that pod alone.
	//
	// On pods: `false`: the pod is not converted (docs/legacy.md#who-is-left-alone).
	//
	// On namespaces: `false`: pods are not converted (docs/legacy.md#who-is-left-alone); `true`: they are converted
	// during a migration (docs/migrate.md).
	LabelLegacy = "gpu.aliyun.com/legacy"
	// AnnotationLegacyRequest holds what the pod's containers asked for, as a JSON
	// object of resource lists by the container's name.
	AnnotationLegacyRequest = "gpu.aliyun.com/legacy-request"
	// AnnotationNVIDIARequest holds how many GPUs the pod's containers asked for by
	// nvidia.com/gpu where that became a claim, as a JSON object by the container's name.
	AnnotationNVIDIARequest = "gpu.aliyun.com/nvidia-request"
)

// AnnotationWaiting is what gpu-compat-controller writes on a node whose shares are spread,
// for its plugin: a claim waits for what the node holds back for the moment. It is a
// placement.Waiting.
const AnnotationWaiting = "gpu.aliyun.com/waiting-share"

const (
	// LabelMPSDaemon is on nodes where one MPS control daemon is to serve all GPUs, with the value
	// MPSDaemonNode, instead of one for each GPU.
	//
	// On nodes, set by you: `node`: one MPS daemon for all GPUs of the node
	// (docs/isolation.md#one-daemon-for-all-gpus).
	LabelMPSDaemon = "gpu.aliyun.com/mps-daemon"
	MPSDaemonNode  = "node"
)

// LabelGPUDriver is on nodes on which several DRA drivers run.
//
// On nodes, set by you: the DRA driver that the node's GPUs are for, where another one publishes them, too:
// `gpu.aliyun.com` is this one; with any other name it offers none (docs/install.md#beside-another-dra-driver).
const LabelGPUDriver = "gpu.aliyun.com/gpu-driver"

// Labels that policies and kustomizations of deployments read, and no program.
const (
	// LabelMigrated is the key that deployments/options/migration requires.
	//
	// On nodes, set by you: the node has moved from a device plugin (docs/migrate.md).
	LabelMigrated = "gpu.aliyun.com/migrated"
	// LabelNodePlacement chooses the nodes of a pod with shares.
	//
	// On pods: `binpack`, `spread` or `any`: which node its shares go to (docs/packing.md), with `options/pack-nodes`
	// or `options/spread-nodes`.
	LabelNodePlacement = "gpu.aliyun.com/node-placement"
	// LabelLiftLimits bounds what tenants may lift.
	//
	// On namespaces: `false`: pods and claims may not lift their limits (docs/isolation.md#lifting-the-limits).
	LabelLiftLimits = "gpu.aliyun.com/lift-limits"
	// LabelMaxShareGiB bounds shares.
	//
	// On namespaces: the largest share in GiB, with `options/share-limit` (docs/legacy.md#quota).
	LabelMaxShareGiB = "gpu.aliyun.com/max-share-gib"
	// LabelMaxShareCores bounds shares.
	//
	// On namespaces: the largest percentage of a GPU's compute of a share, with `options/share-limit`
	// (docs/legacy.md#quota).
	LabelMaxShareCores = "gpu.aliyun.com/max-share-cores"
	// LabelMaxGraceSeconds bounds grace periods.
	//
	// On namespaces: for how long its pods with GPUs may take to end, at least 60, with `options/grace-limit`
	// (docs/audit.md#pods-that-are-gone).
	LabelMaxGraceSeconds = "gpu.aliyun.com/max-grace-seconds"
	// LabelVisibleDevices exempts a namespace.
	//
	// On namespaces: `any`: exempt from `options/visible-devices` (docs/isolation.md#gpus-without-a-claim).
	LabelVisibleDevices = "gpu.aliyun.com/visible-devices"
	// LabelPreemption has a namespace take part.
	//
	// On namespaces: `true`: its pods preempt others and are preempted, with `PREEMPTION`
	// (docs/preemption.md#who-takes-part).
	LabelPreemption = "gpu.aliyun.com/preemption"
)
