package legacy

// Annotations that ACK's scheduler writes on the pods it binds, and
// gpu-compat-controller on converted ones, for the tools that read them (source: ACK's
// scheduler plugins).
const (
	// AnnotationMemory and AnnotationCores say, in JSON, what each container has of
	// each card:
	// {"<index of the container>": {"<index of the card>": <GiB units, or percent>}}.
	AnnotationMemory = "scheduler.framework.gpushare.allocation"
	AnnotationCores  = "gpushare.alibabacloud.com/core-percentage"
	// AnnotationTopology says, in JSON, which whole cards each container has.
	AnnotationTopology = "gputopology.alibabacloud.com/allocation"
	// AnnotationGroup and AnnotationVisible are the pod's whole cards, as in "0,1".
	AnnotationGroup   = "topology.kubernetes.io/gpu-group"
	AnnotationVisible = "topology.kubernetes.io/gpu-visible"
)

// Annotations of the first version of the protocol, which can name one card only.
const (
	AnnotationV1Index      = "ALIYUN_COM_GPU_MEM_IDX"         // index of the card
	AnnotationV1Pod        = "ALIYUN_COM_GPU_MEM_POD"         // GiB units of the pod
	AnnotationV1Card       = "ALIYUN_COM_GPU_MEM_DEV"         // GiB units of the card
	AnnotationV1Assigned   = "ALIYUN_COM_GPU_MEM_ASSIGNED"    // "true"
	AnnotationV1AssumeTime = "ALIYUN_COM_GPU_MEM_ASSUME_TIME" // when it was allocated, in ns since 1970
)

// Annotations lists the annotations of both versions.
func Annotations() []string {
	return []string{
		AnnotationMemory, AnnotationCores, AnnotationTopology, AnnotationGroup, AnnotationVisible,
		AnnotationV1Index, AnnotationV1Pod, AnnotationV1Card, AnnotationV1Assigned, AnnotationV1AssumeTime,
	}
}
