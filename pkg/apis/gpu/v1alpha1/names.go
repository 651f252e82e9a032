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
// domain: in CEL, device.attributes["gpu.aliyun.com"].?<name>. The comments are the
// table of docs/reference.md: `make docs` writes it.
const (
	// AttrUUID (string): The UUID of the GPU or the MIG instance, which is new each time that it is made.
	AttrUUID resourceapi.QualifiedName = "uuid"
	// AttrIndex (int): As `nvidia-smi` counts.
	AttrIndex resourceapi.QualifiedName = "index"
	// AttrMinor (int): The number of `/dev/nvidiaN`.
	AttrMinor resourceapi.QualifiedName = "minor"
	// AttrModel (string): The GPU model, as in the DeviceClasses (docs/gpu-models.md).
	AttrModel resourceapi.QualifiedName = "model"
	// AttrProductName (string): The GPU model, as the NVIDIA driver calls it.
	AttrProductName resourceapi.QualifiedName = "productName"
	// AttrBrand (string): Such as Tesla.
	AttrBrand resourceapi.QualifiedName = "brand"
	// AttrArchitecture (string): Such as Ampere.
	AttrArchitecture resourceapi.QualifiedName = "architecture"
	// AttrComputeCapability (version): The CUDA compute capability.
	AttrComputeCapability resourceapi.QualifiedName = "cudaComputeCapability"
	// AttrDriverVersion (version): The NVIDIA driver's version.
	AttrDriverVersion resourceapi.QualifiedName = "driverVersion"
	// AttrCUDADriverVersion (version): The newest version of CUDA.
	AttrCUDADriverVersion resourceapi.QualifiedName = "cudaDriverVersion"
	// AttrMode (string): The mode (docs/modes.md).
	AttrMode resourceapi.QualifiedName = "mode"
	// AttrDynamic (bool): Whether the node is in mode `dynamic`.
	AttrDynamic resourceapi.QualifiedName = "dynamic"
	// AttrMonitor (bool): Whether `monitor.gpu.aliyun.com` selects it (docs/topology.md#monitoring).
	AttrMonitor resourceapi.QualifiedName = "monitor"
	// AttrIsolation (string): What keeps a claim to what it was granted (docs/isolation.md).
	AttrIsolation resourceapi.QualifiedName = "isolation"
	// AttrIsolationLevel (string): What it takes to get around that: `card`, `kernel`, `driver`, `device-memory`,
	// `cooperative` or `none` (docs/isolation.md#isolation-levels).
	AttrIsolationLevel resourceapi.QualifiedName = "isolationLevel"
	// AttrMemoryLimits (string): Who counts memory that the kernel limits: `dmem` or `misc` (docs/kernel-limits.md).
	AttrMemoryLimits resourceapi.QualifiedName = "memoryLimits"
	// AttrMemoryMiB (int): The GPU's memory in MiB, or the MIG instance's.
	AttrMemoryMiB resourceapi.QualifiedName = "memoryMiB"
	// AttrNVLinkPeers (string): The GPUs that it is linked with by NVLink, as in `1,2`.
	AttrNVLinkPeers resourceapi.QualifiedName = "nvlinkPeers"
	// AttrNVLinkGBps (int): The bandwidth to its best-linked neighbour; of a linked set the smallest inside
	// (docs/topology.md#published-devices).
	AttrNVLinkGBps resourceapi.QualifiedName = "nvlinkGBps"
	// AttrGPUCount (int): In mode `topology`: the number of GPUs.
	AttrGPUCount resourceapi.QualifiedName = "gpuCount"
	// AttrMembers (string): In mode `topology`: a linked set's GPUs, as in `0,1,2,3`.
	AttrMembers resourceapi.QualifiedName = "members"
	// AttrShareableGiB (int): Where shares are spread (docs/modes.md#placement): the memory that claims can have.
	AttrShareableGiB resourceapi.QualifiedName = "shareableGiB"
	// AttrMaxShares (int): The same for the number of shares.
	AttrMaxShares resourceapi.QualifiedName = "maxShares"
)

// Attributes that MIG instances have beside those of their GPU (docs/mig.md).
const (
	// AttrProfile (string): A MIG instance's profile, such as `1g.10gb+me`.
	AttrProfile resourceapi.QualifiedName = "profile"
	// AttrProfileID (int): The profile's number in `nvidia-smi mig -lgip`.
	AttrProfileID resourceapi.QualifiedName = "profileID"
	// AttrParentUUID (string): The UUID of a MIG instance's GPU.
	AttrParentUUID resourceapi.QualifiedName = "parentUUID"
	// AttrPlacementStart (int): A MIG instance's first memory slice.
	AttrPlacementStart resourceapi.QualifiedName = "placementStart"
	// AttrPlacementSize (int): A MIG instance's number of memory slices.
	AttrPlacementSize resourceapi.QualifiedName = "placementSize"
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
	// CapSlots (shares): How many shares the GPU has (docs/modes.md).
	CapSlots resourceapi.QualifiedName = "slots"
	// CapMultiprocessors (multiprocessors): Those of a MIG instance.
	CapMultiprocessors resourceapi.QualifiedName = "multiprocessors"
	// CapCopyEngines (engines): A MIG instance's copy engines.
	CapCopyEngines resourceapi.QualifiedName = "copyEngines"
	// CapDecoders (engines): A MIG instance's video decoders.
	CapDecoders resourceapi.QualifiedName = "decoders"
	// CapEncoders (engines): A MIG instance's video encoders.
	CapEncoders resourceapi.QualifiedName = "encoders"
	// CapJPEGEngines (engines): A MIG instance's JPEG engines.
	CapJPEGEngines resourceapi.QualifiedName = "jpegEngines"
	// CapOFAEngines (engines): A MIG instance's optical flow engines.
	CapOFAEngines resourceapi.QualifiedName = "ofaEngines"
)

// Keys of the taints that the driver puts on its devices. They keep new claims off.
const (
	// TaintSwitching: The node waits to change its mode
	// (docs/troubleshooting.md#a-node-that-waits-to-change-its-mode).
	TaintSwitching = DriverName + "/mode-switch"
	// TaintNotIsolated: Shares cannot be limited now (docs/isolation.md).
	TaintNotIsolated = DriverName + "/isolation-unavailable"
	// TaintUnhealthy: The GPU is unhealthy; the value is the reason (docs/health.md).
	TaintUnhealthy = DriverName + "/unhealthy"
	// TaintHeld: Pods of a device plugin hold the GPU (docs/migrate.md#pods-of-a-device-plugin).
	TaintHeld = DriverName + "/held-without-claim"
	// TaintOtherDriver: Another DRA driver, the value, publishes the GPU, too
	// (docs/install.md#beside-another-dra-driver).
	TaintOtherDriver = DriverName + "/other-driver"
	// TaintWithdrawn: Only earlier claims have the linked set (docs/topology.md#unhealthy-gpus), a GPU under another
	// index, or a MIG instance that was there before (docs/mig.md#changed-instances).
	TaintWithdrawn = DriverName + "/withdrawn"
	// TaintConflict: Claims were allocated more of the GPU than it has
	// (docs/troubleshooting.md#a-gpu-that-others-hold).
	TaintConflict = DriverName + "/conflict"
	// TaintMonitor: For claims with adminAccess (docs/topology.md#monitoring).
	TaintMonitor = DriverName + "/monitor"
)

// NodeTaintFewCPUs is the key of the taint that administrators give nodes with few CPUs per GPU, so that pods without
// GPUs prefer others.
const NodeTaintFewCPUs = DriverName + "/few-cpus"

// MIGResourcePrefix begins the names of the extended resources of MIG profiles, which are those of NVIDIA's
// device plugin with the strategy "mixed": "nvidia.com/mig-1g.10gb" (source: k8s-device-plugin).
const MIGResourcePrefix = "nvidia.com/mig-"

// What gpu-compat-controller puts on what it makes. ControllerName is also the name of
// its Lease and Events, and the field manager under which the API server records what
// it wrote. It changes and removes nothing else.
const (
	ControllerName = "gpu-compat-controller"
	// FeaturesManager is its field manager for the labels of NVIDIA's GPU Feature Discovery.
	FeaturesManager = ControllerName + "-features"
	LabelManagedBy  = "app.kubernetes.io/managed-by"
)

// Labels and annotations of DeviceClasses.
const (
	// LabelModel is, on the classes of a GPU model, the model as
	// aliyun.accelerator/nvidia_name writes it.
	LabelModel = "gpu.aliyun.com/model"
	// LabelMode is a class' mode, or "any".
	LabelMode = "gpu.aliyun.com/mode"
	// LabelProfile is, on the class of a MIG profile, the profile with "+" written as ".".
	LabelProfile = "gpu.aliyun.com/mig-profile"
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
	// On pods: `false`: the pod is not converted (docs/legacy.md#exempt-pods).
	//
	// On namespaces: `false`: pods are not converted (docs/legacy.md#exempt-pods); `true`: they are during a
	// migration (docs/migrate.md).
	LabelLegacy = "gpu.aliyun.com/legacy"
	// AnnotationLegacyRequest holds what the pod's containers asked for, as a JSON
	// object of resource lists by the container's name.
	AnnotationLegacyRequest = "gpu.aliyun.com/legacy-request"
	// AnnotationNotConverted says of a pod that asks in the manner of ACK why it cannot be converted: with these words it
	// is refused, but during a migration (docs/migrate.md).
	AnnotationNotConverted = "gpu.aliyun.com/not-converted"
	// AnnotationNVIDIARequest holds how many GPUs the pod's containers asked for by
	// nvidia.com/gpu where that became a claim, as a JSON object by the container's name.
	AnnotationNVIDIARequest = "gpu.aliyun.com/nvidia-request"
	// AnnotationOtherRequest and AnnotationOtherNotConverted are the same for what deployments/options/other-manifests
	// converts, in the words of the pod's author.
	AnnotationOtherRequest      = "gpu.aliyun.com/other-request"
	AnnotationOtherNotConverted = "gpu.aliyun.com/other-not-converted"
)

// AnnotationMoved is what gpu-compat-controller writes on its Lease: the pods that it has evicted in the last hour so
// that they land on other nodes.
const AnnotationMoved = "gpu.aliyun.com/moved-pods"

// AnnotationWaiting is what gpu-compat-controller writes on a node whose shares are spread,
// for its plugin: a claim waits that may need what the node holds back. It is a placement.Waiting.
const AnnotationWaiting = "gpu.aliyun.com/waiting-share"

// EnvUUID is, with a GPU's index on the node behind it, a variable with the UUID of a GPU that a container has, or has
// a share of. Of a MIG instance "_" and its first memory slice follow.
const EnvUUID = "GPU_ALIYUN_COM_UUID_"

const (
	// LabelMPSDaemon is on nodes where one MPS control daemon is to serve all GPUs, with the value
	// MPSDaemonNode, instead of one for each GPU.
	//
	// On nodes, set by you: `node`: one MPS daemon for all GPUs (docs/isolation.md#one-daemon-for-all-gpus).
	LabelMPSDaemon = "gpu.aliyun.com/mps-daemon"
	MPSDaemonNode  = "node"
)

// LabelTimeSlice is on nodes, with a TimeSlice.
//
// On nodes, set by you: `Short`, `Medium` or `Long`: how long a process computes before the next one has its turn
// (docs/modes.md#time-slices).
const LabelTimeSlice = DriverName + "/time-slice"

// LabelGPUDriver is on nodes on which several DRA drivers run.
//
// On nodes, set by you: the DRA driver that the GPUs are for: `gpu.aliyun.com` is this one
// (docs/install.md#beside-another-dra-driver).
const LabelGPUDriver = "gpu.aliyun.com/gpu-driver"

// LabelNodePlacement overrides the setting NODE_PLACEMENT. With a value that is no setting, no node is nominated.
//
// On pods: `best`, `binpack` or `spread`: which node it goes to; another value, such as `any`: the scheduler's choice
// (docs/packing.md).
const LabelNodePlacement = "gpu.aliyun.com/node-placement"

// GateBestNode is the scheduling gate of pods whose node is to be nominated before the scheduler looks at them
// (docs/packing.md#the-gate). gpu-compat-controller takes it off.
const GateBestNode = DriverName + "/best-node"

// GateCostlyClaims takes the place of GateBestNode in namespaces with LabelCostlyClaims. gpu-compat-controller takes it
// off when no node can keep the scheduler long, or when it has pinned the pod to one that cannot.
const GateCostlyClaims = DriverName + "/costly-claims"

// Labels that policies and kustomizations of deployments read, and no program.
const (
	// LabelMigrated is the key that deployments/options/migration requires.
	//
	// On nodes, set by you: the node has moved from a device plugin (docs/migrate.md).
	LabelMigrated = "gpu.aliyun.com/migrated"
	// LabelClaims and LabelOwnClass are set by policies (docs/internals/search-cost.md): the number of a pod's claims,
	// where it has several, and that a claim or template names a DeviceClass of an administrator's own.
	LabelClaims   = "gpu.aliyun.com/claims"
	LabelOwnClass = "gpu.aliyun.com/own-class"
	// LabelCostlyClaims lifts the bounds of what takes the scheduler long.
	//
	// On namespaces: `allowed`: pods and claims may cost the scheduler more (docs/security.md#the-schedulers-time).
	LabelCostlyClaims = "gpu.aliyun.com/costly-claims"
	// CostlyClaimsAllowed is the value of LabelCostlyClaims that lifts them.
	CostlyClaimsAllowed = "allowed"
	// LabelLiftLimits bounds what tenants may lift.
	//
	// On namespaces: `false`: pods and claims may not switch limits off (docs/isolation.md#lifting-the-limits).
	LabelLiftLimits = "gpu.aliyun.com/lift-limits"
	// LabelMaxShareGiB bounds shares.
	//
	// On namespaces: the largest share in GiB, with `options/share-limit` (docs/quota.md).
	LabelMaxShareGiB = "gpu.aliyun.com/max-share-gib"
	// LabelMaxShareCores bounds shares.
	//
	// On namespaces: the largest percentage of compute of a share, with `options/share-limit` (docs/quota.md).
	LabelMaxShareCores = "gpu.aliyun.com/max-share-cores"
	// LabelMaxGraceSeconds bounds grace periods.
	//
	// On namespaces: for how long pods with GPUs may take to end, with `options/grace-limit`
	// (docs/audit.md#pods-that-are-gone).
	LabelMaxGraceSeconds = "gpu.aliyun.com/max-grace-seconds"
	// LabelGPUGiB sizes what manifests of other projects do not.
	//
	// On namespaces: the GiB that 100 percent of a GPU's memory are, with `options/other-manifests`
	// (docs/other-manifests.md).
	LabelGPUGiB = "gpu.aliyun.com/gpu-gib"
	// LabelReplicaGiB is that of nvidia.com/gpu.shared.
	//
	// On namespaces: the GiB that a `nvidia.com/gpu.shared` becomes, with `options/other-manifests`
	// (docs/other-manifests.md).
	LabelReplicaGiB = "gpu.aliyun.com/replica-gib"
	// LabelVisibleDevices exempts a namespace.
	//
	// On namespaces: `any`: exempt from `options/visible-devices` (docs/isolation.md#gpus-without-a-claim).
	LabelVisibleDevices = "gpu.aliyun.com/visible-devices"
	// LabelPreemption has a namespace take part.
	//
	// On namespaces: `true`: its pods preempt and are preempted (docs/preemption.md#participants).
	LabelPreemption = "gpu.aliyun.com/preemption"
)
