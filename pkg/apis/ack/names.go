// SPDX-License-Identifier: Apache-2.0

// Package ack holds the names of ACK's GPU scheduling that manifests, nodes and tools
// use: what the driver takes over from it, and nothing of its own. Sources: ACK's
// documents on GPU sharing, on topology-aware scheduling and on node labels, and the
// annotations of its scheduler's plugins.
package ack

// Resources that containers ask for.
const (
	ResourceMemory = "aliyun.com/gpu-mem"             // GiB of a GPU's memory
	ResourceCores  = "aliyun.com/gpu-core.percentage" // percent of a GPU's compute
	ResourceGPUs   = "aliyun.com/gpu"                 // whole GPUs of a node in mode topology
)

// ResourceCount is a resource that nodes show for tools and no container can ask
// for: GPUs whose memory is shared. As a pod's label it has a meaning, see
// PodLabelCount.
const ResourceCount = "aliyun.com/gpu-count"

// Labels of a pod that asks.
const (
	// PodLabelCount is on how many GPUs the containers' amounts are spread.
	//
	// On pods: on how many GPUs its containers' amounts are spread (docs/legacy.md#supported-requests).
	PodLabelCount = "aliyun.com/gpu-count"
	// PodLabelPlacement, with the value RequireWholeDevice, asks for GPUs that nobody
	// else uses.
	//
	// On pods: `require-whole-device`: GPUs that nobody else uses (docs/legacy.md#supported-requests).
	PodLabelPlacement  = "ack.gpushare.placement"
	RequireWholeDevice = "require-whole-device"
)

// Labels of the pods of a gang, which are scheduled together or not at all.
const (
	LabelPodGroup = "pod-group.scheduling.sigs.k8s.io/name"
	// LabelMinAvailable is how many of them have to be placed together at least.
	LabelMinAvailable = "pod-group.scheduling.sigs.k8s.io/min-available"
	// AnnotationGang and AnnotationGangMin are the same as annotations, in Koordinator's
	// manner, which ACK's scheduler takes as well.
	AnnotationGang    = "gang.scheduling.koordinator.sh/name"
	AnnotationGangMin = "gang.scheduling.koordinator.sh/min-available"
)

// Annotations of pods.
const (
	// AnnotationCPUSet, if "true", asks for CPUs of their own for its containers, as many as
	// their limits say.
	AnnotationCPUSet = "cpuset-scheduler"
	// AnnotationBurst, with the value eci or eci_only, lets a pod run on virtual nodes.
	AnnotationBurst = "alibabacloud.com/burst-resource"
)

// Labels by which a node's GPUs are served.
const (
	// NodeLabelSchedule says how the node's GPUs are used.
	//
	// On nodes, set by you: the mode (docs/modes.md).
	NodeLabelSchedule = "ack.node.gpu.schedule"
	// On nodes, set by you: which GPU the next share is of: `binpack` (default) or `spread`
	// (docs/modes.md#placement).
	NodeLabelPlacement = "ack.node.gpu.placement"
	// On nodes, set by you: how many shares a GPU takes; default 20, 48 with MPS.
	NodeLabelMaxPod = "ack.node.gpu.max-pod"
	// NodeLabelCGPU and NodeLabelGPUShare are NodeLabelSchedule's predecessors, with
	// the values "true" and "false".
	//
	// On nodes, set by you: `true`: mode `cgpu`, `false`: mode `default` (docs/modes.md#acks-older-labels).
	NodeLabelCGPU = "cgpu"
	// On nodes, set by you: `true`: mode `share`, `false`: mode `default` (docs/modes.md#acks-older-labels).
	NodeLabelGPUShare = "gpushare"
	// NodeLabelDisableIsolation, if "true", lifts the limits of all claims of the
	// node that are prepared from then on.
	//
	// On nodes, set by you: `true` switches limits off (docs/isolation.md#lifting-the-limits).
	NodeLabelDisableIsolation = "cgpu.disable.isolation"
)

// Labels that say which GPUs a node has.
const (
	// On nodes, set by controller: the GPU model, such as `NVIDIA-A10` (docs/gpu-models.md#node-labels).
	NodeLabelModel = "aliyun.accelerator/nvidia_name"
	// On nodes, set by controller: the memory of a GPU, such as `23028MiB`.
	NodeLabelMemory = "aliyun.accelerator/nvidia_mem"
	// On nodes, set by controller: how many GPUs the node offers.
	NodeLabelCount = "aliyun.accelerator/nvidia_count"
)

// GPUNodeLabels lists the labels that say which GPUs a node has.
func GPUNodeLabels() []string { return []string{NodeLabelModel, NodeLabelMemory, NodeLabelCount} }

// Annotations that ACK's scheduler writes on the pods it binds, and
// gpu-compat-controller on converted ones, for the tools that read them.
const (
	// AnnotationMemory and AnnotationCores say, in JSON, what each container has of
	// each GPU:
	// {"<index of the container>": {"<index of the GPU>": <GiB units, or percent>}}.
	AnnotationMemory = "scheduler.framework.gpushare.allocation"
	AnnotationCores  = "gpushare.alibabacloud.com/core-percentage"
	// AnnotationTopology says, in JSON, which whole GPUs each container has.
	AnnotationTopology = "gputopology.alibabacloud.com/allocation"
	// AnnotationGroup and AnnotationVisible are the pod's whole GPUs, as in "0,1".
	AnnotationGroup   = "topology.kubernetes.io/gpu-group"
	AnnotationVisible = "topology.kubernetes.io/gpu-visible"
)

// Annotations of the first version of the protocol, which can name one GPU only.
const (
	AnnotationV1Index      = "ALIYUN_COM_GPU_MEM_IDX"         // index of the GPU
	AnnotationV1Pod        = "ALIYUN_COM_GPU_MEM_POD"         // GiB units of the pod
	AnnotationV1GPU        = "ALIYUN_COM_GPU_MEM_DEV"         // GiB units of the GPU
	AnnotationV1Assigned   = "ALIYUN_COM_GPU_MEM_ASSIGNED"    // "true"
	AnnotationV1AssumeTime = "ALIYUN_COM_GPU_MEM_ASSUME_TIME" // when it was allocated, in ns since 1970
)

// Annotations lists the annotations of both versions.
func Annotations() []string {
	return []string{
		AnnotationMemory, AnnotationCores, AnnotationTopology, AnnotationGroup, AnnotationVisible,
		AnnotationV1Index, AnnotationV1Pod, AnnotationV1GPU, AnnotationV1Assigned, AnnotationV1AssumeTime,
	}
}

// Environment variables of containers that have shares.
const (
	// EnvDisable lifts a container's limits, if its author sets it to "true" or "1".
	EnvDisable = "CGPU_DISABLE"

	EnvVisibleDevices  = "ALIYUN_COM_GPU_VISIBLE_DEVICES" // UUIDs, comma-separated
	EnvMemoryContainer = "ALIYUN_COM_GPU_MEM_CONTAINER"   // GiB units of the request, per GPU
	EnvMemoryGPU       = "ALIYUN_COM_GPU_MEM_DEV"         // GiB units of the GPU
	EnvMemoryUnit      = "ALIYUN_COM_GPU_MEM_UNIT"        // GiB
	EnvMemoryIndex     = "ALIYUN_COM_GPU_MEM_IDX"         // indices of the GPUs, comma-separated
	EnvMemoryPod       = "ALIYUN_COM_GPU_MEM_POD"         // GiB units of the claim, over all requests and GPUs
	EnvWeight          = "ALIYUN_COM_GPU_SCHD_WEIGHT"     // percent of compute / 5, where compute was granted
)
