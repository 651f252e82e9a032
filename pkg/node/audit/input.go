// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Input is what is judged, all of one moment.
type Input struct {
	// GPUs are those that answered.
	GPUs []gpu.Use
	// Owners says whose the processes are, by their numbers. One that ended since the GPUs
	// were read, or cannot be looked up, is not there, and is nobody's.
	Owners map[int]Owner
	// Pods are the node's, by UID. A static pod is there by the UID that the kubelet knows.
	Pods map[types.UID]*corev1.Pod
	// PodsUnread says that there may be others: none is taken for gone.
	PodsUnread bool
	// Counted is what the NVIDIA driver counts for containers whose memory it limits, by the
	// GPU's UUID.
	Counted map[string][]Counted
	Granted
	Rules
}

// Counted is what the NVIDIA driver counts for a container's control group: what all of its
// processes have allocated on the device, also those that it tells nobody of.
type Counted struct {
	// Pod is the UID by which the kubelet knows the pod, Container the runtime's ID; empty
	// where the pod's containers are counted together.
	Pod       types.UID
	Container string
	MiB       int64
}

// Granted is what the node has granted of its GPUs, and what it could.
type Granted struct {
	// Claims are those that are prepared on the node.
	Claims []Claim
	// Offered are the indices of the GPUs that the node offers to claims, or that claims
	// have. Of other GPUs it is not for this driver to say who may use them: those of a node
	// that has not moved here yet, or that somebody else serves.
	Offered map[int]bool
}

// Rules are what is judged by beside the grants.
type Rules struct {
	// ExemptNamespaces are those whose pods may use GPUs that they were not granted: the
	// driver's own, and of what else an administrator lets use GPUs without a claim.
	ExemptNamespaces map[string]bool
	// MPSOverheadMiB is what each limit under MPS, or by the kernel, is more than the grant.
	MPSOverheadMiB int64
	// ClientSlots is how many processes MPS serves on a GPU; 0 where that is not judged.
	ClientSlots int
	// TellsMPS says that the driver is known to tell clients of MPS from other processes: it
	// has told of one. Without it no process is taken for one beside MPS.
	TellsMPS bool
}

// Owner is what the kernel says of a process.
type Owner struct {
	// Places are the pods' control groups that the process is in, outermost first; none for
	// a process of no pod.
	Places []Place
	// Program is the name of its program, where Places do not lead to a known pod.
	Program string
	// OfSupervisor says that it is in the pod of gpu-mps-supervisor, known or not.
	OfSupervisor bool
}

// mpsServer is how the kernel cuts the name of nvidia-cuda-mps-server.
const mpsServer = "nvidia-cuda-mps"

// NamedMPSServer reports whether its program has the name of the server of MPS, which every process can give itself.
func (o Owner) NamedMPSServer() bool { return strings.HasPrefix(o.Program, mpsServer) }

// Place is a pod's control group.
type Place struct {
	Pod types.UID
	// Container is the runtime's ID of the container; empty where it is not known.
	Container string
}

// Claim is a claim that is prepared.
type Claim struct {
	Namespace, Name string
	// Pods are the pods that are known to have used it, PodNames the names of those for which
	// it was prepared.
	Pods     []types.UID
	PodNames []string
	Grants   []claim.Grant
}

// find is the pod that the process belongs to, and its place in there: where a node runs in
// a pod of another cluster, that of this node's. Of a process in a pod that is not known
// the pod is nil.
func (in Input) find(o Owner) (*corev1.Pod, Place) {
	for _, place := range o.Places {
		if pod := in.Pods[place.Pod]; pod != nil {
			return pod, place
		}
	}
	if len(o.Places) > 0 {
		return nil, o.Places[0]
	}
	return nil, Place{}
}
