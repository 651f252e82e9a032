// SPDX-License-Identifier: Apache-2.0

// Package audit compares what processes hold of a node's GPUs with what their containers
// were granted. It is pure: a reading of the GPUs, the node's pods and the prepared claims
// come in, who uses how much (Snapshot) and what is not as it was granted (Finding) come
// out. Nothing here ends a process.
package audit

import (
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Snapshot is what a node's GPUs were used for at one moment. It is a value of its own:
// whoever has it may keep it, and nothing in it changes later.
type Snapshot struct {
	// Time is when the GPUs were read. A snapshot that is much older than the interval of
	// the readings (two seconds) says that they do not answer.
	Time time.Time
	// GPUs are what is used of them by whomever, ordered by index. A GPU that does not answer is left out, so its
	// amounts are absent rather than 0.
	GPUs []gpu.Use
	// Claims are ordered by namespace, pod, container and GPU index. There is one for each
	// container that has processes on a GPU that it was granted by a claim, and no other:
	// what has no claim is in the amounts of the GPU only. What pods have that are gone is one
	// for each claim, without a pod and a container.
	Claims []ClaimUse
	// Peaks are the most that containers used, also those whose processes have ended, since the process started.
	Peaks []ClaimPeak
	// Holding counts the findings that hold now; Found all since the process started. Both
	// have an entry for each of Kinds.
	Holding map[Kind]int
	Found   map[Kind]int64
}

// ClaimUse is what the processes of one container use of one GPU.
type ClaimUse struct {
	Namespace, Pod, Container string
	// Claim is the name of the ResourceClaim by which the container has the GPU; where it
	// has it by several, all of them in order, joined by commas.
	Claim string
	// Index and UUID say which GPU.
	Index int
	UUID  string
	// UsedMiB is the memory of the container's processes, with their CUDA contexts: as the driver
	// counts for its control group, where that is more.
	UsedMiB int64
	// GrantedMiB is what the container was granted of the GPU; all of its memory where it
	// has it as a whole.
	GrantedMiB int64
	// SMPercent is the part of the time of the GPU's multiprocessors that the processes
	// had, 0 to 100; nil where the GPU does not tell it by process.
	SMPercent *int
	// Processes is how many processes of the container compute on the GPU.
	Processes int
}

// Kind is a kind of finding. Values are stable: they are labels of metrics, and what the
// setting AUDIT_EVICT lists.
type Kind string

// Kinds of findings.
const (
	// OverShare: a container's processes hold more of a GPU's memory than it was granted, or
	// those of all containers that share a grant do together.
	OverShare Kind = "over-share"
	// NoGrant: a container's processes are on a GPU that it was not granted.
	NoGrant Kind = "no-grant"
	// BesideMPS: a process is on a GPU, that its container was granted a share of by MPS,
	// and is no client of MPS: nothing limits it.
	BesideMPS Kind = "beside-mps"
	// ClientSlots: few of the processes that MPS serves on a GPU are left to others, and a container has more of them than
	// its share's part.
	ClientSlots Kind = "client-slots"
	// NoPod: a process that belongs to no pod is on a GPU.
	NoPod Kind = "no-pod"
	// GonePod: a pod that is gone, as one that was deleted by force, still has processes on
	// the GPU of its claim.
	GonePod Kind = "gone-pod"
	// PastLimit: a container's processes hold more of a GPU than the driver counts for their
	// control group, by kinds of memory that its limit does not hold.
	PastLimit Kind = "past-limit"
)

// Kinds lists all kinds, in order.
func Kinds() []Kind {
	return []Kind{BesideMPS, ClientSlots, GonePod, NoGrant, NoPod, OverShare, PastLimit}
}

// OnNode reports whether the kind is told on the node: there is no pod to tell it on.
func (k Kind) OnNode() bool { return k == NoPod || k == GonePod }
