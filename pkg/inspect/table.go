// SPDX-License-Identifier: Apache-2.0

// Package inspect shows which part of which GPU is allocated to whom: from
// ResourceSlices, ResourceClaims, Nodes and the Pods that hold GPUs without a claim
// it makes a Table, which it prints as the tables that users of ACK's
// kubectl-inspect-cgpu know, or as JSON or YAML. It asks no API server, see package
// cluster for that.
package inspect

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Table is what there is and what is taken of it. Its JSON form is an interface:
// fields are added, never renamed.
type Table struct {
	// MemoryGiB and CoresPercent are the sums over the nodes. Compute is counted
	// on GPUs in mode core-mem only.
	MemoryGiB    Amount `json:"memoryGiB"`
	CoresPercent Amount `json:"coresPercent"`
	// Lost is nil where it is not known.
	Lost *Lost `json:"lost,omitempty"`
	// Nodes are those that publish GPUs, ordered by name.
	Nodes []Node `json:"nodes"`
	// Notes say what the table lacks, each in a sentence.
	Notes []string `json:"notes,omitempty"`

	// withUse is whether it was asked what is used.
	withUse bool
}

// Node is a node that publishes GPUs.
type Node struct {
	Name string `json:"name"`
	// IPAddress is the node's internal address, "unknown" where none is known.
	IPAddress    string    `json:"ipAddress"`
	Mode         mode.Mode `json:"mode"`
	MemoryGiB    Amount    `json:"memoryGiB"`
	CoresPercent Amount    `json:"coresPercent"`
	// Switching says that the node waits to change its mode, or what isolates its
	// shares, until the pods on its GPUs have ended.
	Switching bool `json:"switching,omitempty"`
	// PendingGiB is how much of MemoryGiB is held by pods without a claim of which
	// it is not known on which GPUs they are.
	PendingGiB int64 `json:"pendingGiB,omitempty"`
	// StrandedGPUs are its part of Lost.
	StrandedGPUs float64 `json:"strandedGPUs,omitempty"`
	// GPUs are ordered by index. Indices may have gaps: a GPU that cannot be
	// used keeps its own.
	GPUs []GPU `json:"cards"`
	// Instances are the MIG instances, in the order of their GPUs and places. The GPUs count them together.
	Instances []Instance `json:"instances,omitempty"`
	// Holders are who was allocated the GPUs, ordered by their first GPU, then
	// by namespace and name.
	Holders []Holder `json:"holders"`
}

// GPU is one GPU of a node.
type GPU struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid,omitempty"`
	Model string `json:"model,omitempty"`
	// MemoryMiB is the whole memory of the GPU, 0 where it is not published any
	// more.
	MemoryMiB int64 `json:"memoryMiB"`
	// Mode is what the GPU is held in; of a free GPU, what its node offers it in.
	Mode mode.Mode `json:"mode"`
	// MemoryGiB counts the units that shares are made of, floor(MiB/1024) of a
	// GPU. A claim for the whole GPU holds all of them.
	MemoryGiB    Amount `json:"memoryGiB"`
	CoresPercent Amount `json:"coresPercent"`
	// UsedMiB is how much of its memory is in use, by whomever; nil where that is not known.
	UsedMiB *int64 `json:"usedMiB,omitempty"`
}

// Instance is a MIG instance of a GPU.
type Instance struct {
	GPU    int    `json:"card"`
	Device string `json:"device"`
	// Profile and UUID are empty where a claim holds it and no ResourceSlice says any more what it is.
	Profile   string `json:"profile,omitempty"`
	UUID      string `json:"uuid,omitempty"`
	MemoryMiB int64  `json:"memoryMiB"`
	// Start is the first of the GPU's memory slices that it has, Size how many.
	Start int64 `json:"placementStart"`
	Size  int64 `json:"placementSize"`
	// Holder is who was allocated it, as namespace and name; empty while nobody was.
	Holder string `json:"holder,omitempty"`
	// Closed are the taints that keep new claims off, if any.
	Closed []string `json:"closed,omitempty"`
	// Dynamic says that it is made for its claim. Without a Profile it is free slices, next to each other, of which
	// instances can be made.
	Dynamic bool `json:"dynamic,omitempty"`

	// gone says that a claim holds it and that it is no part of its GPU any more: what is there was cut since.
	gone bool
}

// memoryGiB is its memory in the units that GPUs are counted in.
func (i Instance) memoryGiB() int64 {
	if i.gone {
		return 0
	}
	return gpu.GPU{MemoryMiB: i.MemoryMiB}.MemoryUnits()
}

// Origin is how somebody came to hold GPUs.
type Origin string

// The origins.
const (
	// OriginClaim is a claim that somebody wrote, OriginLimits one that stands for a
	// pod's limits in the manner of ACK.
	OriginClaim  Origin = "claim"
	OriginLimits Origin = "limits"
	// OriginDevicePlugin is no claim: a device plugin started the pod.
	OriginDevicePlugin Origin = "device-plugin"
)

// Holder is a pod with all that its claims were allocated on a node, or that it holds
// there without a claim.
type Holder struct {
	Namespace string `json:"namespace"`
	Origin    Origin `json:"origin"`
	// Pods are the pods that use the claims: one, but where pods share a claim,
	// and none while nobody uses it.
	Pods []string `json:"pods"`
	// Others are what else the claims are reserved for, as in "podgroups/train".
	Others []string `json:"others,omitempty"`
	Claims []string `json:"claims"`
	// Shares are ordered by GPU, at most one for each.
	Shares []Share `json:"shares"`
	// PendingGiB is what it holds of GPUs that are not known.
	PendingGiB int64 `json:"pendingGiB,omitempty"`
}

// Name is how the tables call the holder.
func (h Holder) Name() string {
	users := slices.Concat(h.Pods, h.Others)
	if len(users) == 0 {
		return "resourceclaim/" + strings.Join(h.Claims, ",")
	}
	return strings.Join(users, ",")
}

// Share is what a holder has of one GPU.
type Share struct {
	GPU int `json:"card"`
	// Mode is what it is held in, empty without a claim.
	Mode         mode.Mode `json:"mode"`
	MemoryGiB    int64     `json:"memoryGiB"`
	CoresPercent int64     `json:"coresPercent"`
	// UsedMiB is how much memory its processes use; nil where that is not known.
	UsedMiB *int64 `json:"usedMiB,omitempty"`
	// PeakMiB is the most that they used since the node's plugin started; nil where that is not known.
	PeakMiB *int64 `json:"peakMiB,omitempty"`
}

// Amount is how much there is, and how much of it is allocated.
type Amount struct {
	// Allocated is nil where no claim could be read.
	Allocated *int64 `json:"allocated,omitempty"`
	Total     int64  `json:"total"`
}

// String is the amount as in "9/15"; what is not known is a question mark.
func (a Amount) String() string { return fmt.Sprintf("%s/%d", a.allocated(), a.Total) }

func (a Amount) allocated() string {
	if a.Allocated == nil {
		return "?"
	}
	return fmt.Sprint(*a.Allocated)
}

// percent is the allocated part as in "60%". The division is that of the known
// tool, whose truncated floating point makes 28% of 29 of 100.
func (a Amount) percent() string {
	switch {
	case a.Allocated == nil:
		return "?%"
	case a.Total == 0:
		return "0%"
	default:
		return fmt.Sprintf("%d%%", int64(float64(*a.Allocated)/float64(a.Total)*100))
	}
}

// part is the allocated part, from 0 to 1.
func (a Amount) part() float64 {
	if a.Allocated == nil || a.Total == 0 {
		return 0
	}
	return min(float64(*a.Allocated)/float64(a.Total), 1)
}

func (a *Amount) take(n int64) {
	if a.Allocated != nil {
		*a.Allocated += n
	}
}

func (a *Amount) add(b Amount) {
	a.Total += b.Total
	if b.Allocated != nil {
		a.take(*b.Allocated)
	}
}

// GPUs is the number of columns that show a GPU each.
func (t *Table) gpus() int {
	columns := 0
	for i := range t.Nodes {
		columns = max(columns, t.Nodes[i].columns())
	}
	return columns
}

func (n *Node) columns() int {
	if len(n.GPUs) == 0 {
		return 0
	}
	return n.GPUs[len(n.GPUs)-1].Index + 1
}

// Of returns the table with only those holders that are in the namespace. The
// sums stay those of all: GPUs are shared across namespaces.
func (t *Table) Of(namespace string) *Table {
	filtered := *t
	filtered.Nodes = make([]Node, 0, len(t.Nodes))
	for _, node := range t.Nodes {
		holders := make([]Holder, 0, len(node.Holders))
		for _, holder := range node.Holders {
			if holder.Namespace == namespace {
				holders = append(holders, holder)
			}
		}
		node.Holders = holders
		filtered.Nodes = append(filtered.Nodes, node)
	}
	return &filtered
}
