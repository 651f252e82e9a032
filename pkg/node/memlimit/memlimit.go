// SPDX-License-Identifier: Apache-2.0

// Package memlimit has NVIDIA's kernel driver hold containers to their shares of GPU memory,
// by limits on control groups. A hook sets them before a container starts (Apply), the
// plugin looks whether they still apply (Check), and whether a node has them at all
// (Detect). What a pod's limit follows from is written down before it is set, in a Ledger, so
// that both use the same.
//
// Sections named here are those of limits.md, the project's facts about these limits. Where
// a driver may differ from them, what reads back decides, and nothing starts otherwise.
package memlimit

import (
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
)

// Kind is who counts a GPU's memory: the values of the device attribute memoryLimits.
type Kind string

// The kinds (§1). They differ in how limits of a control group and of one above it go together.
const (
	// DMem: the kernel's controller dmem counts. The tightest limit of all groups above binds.
	DMem Kind = "dmem"
	// Misc: a table in the NVIDIA driver counts. Of a group and those above it, only the nearest
	// that has a limit counts.
	Misc Kind = "misc"
)

// GPU sets and reads limits, as memlimit.GPU does. Directories are those of the caller's view.
type GPU interface {
	Set(dir string, hard uint64) error
	Get(dir string) (memlimit.Limit, error)
	PCIAddress() (string, error)
}

// Host is a node's control groups and ledger, as the caller sees them.
type Host struct {
	// Root is where the control groups are mounted. Entries name those below it.
	Root string
	// Ledger is the directory of the ledger.
	Ledger string
}

func (h Host) dir(group string) string { return filepath.Join(h.Root, group) }

// Target is a GPU as limits use it.
type Target struct {
	UUID string
	Kind Kind
	// MemoryMiB is all of its memory: no limit may be more (§2).
	MemoryMiB int64
}

// Entry is a container with a limit on a GPU.
type Entry struct {
	// Pod is the UID by which the kubelet knows the pod; PodDir and Dir are the control groups
	// of the pod and of the container, below the root.
	Pod    types.UID `json:"pod"`
	PodDir string    `json:"podDir"`
	Dir    string    `json:"dir"`
	// Container is the runtime's ID.
	Container string `json:"container"`
	// Claim is the UID of the claim, Share tells the share from the claim's others.
	Claim types.UID `json:"claim"`
	Share string    `json:"share"`
	// MiB is what the share has of the GPU; all of it where its limits are switched off.
	MiB    int64 `json:"mib"`
	Lifted bool  `json:"lifted,omitempty"`
	// WholePod is, of kind Misc alone, that the limit is the pod's: see wanted.
	WholePod bool `json:"wholePod,omitempty"`
}

const mib = 1 << 20

// wanted are the limits, in bytes by control group, that follow from the entries.
//
// A claim is a budget of the pod (§10a, step 5). By DMem limits nest: the pod's group has the
// sum of the shares that it has started, so that two containers of one share have it once;
// each container's own group has its share, since programs are told the limit of that one
// and see the whole GPU without (§2). By Misc a limited container is not counted for its
// pod. So a share that is all its pod has is the pod's limit, and containers have none of
// their own, unless the table keeps one of a group that has gone (§2: nothing takes it off). Of
// several shares each container has its own. Where containers have their own, two of one share may
// have it twice.
func wanted(entries []Entry, c Target) map[string]uint64 {
	out := map[string]uint64{}
	shares := map[string]map[string]int64{}
	for _, e := range entries {
		switch {
		case c.Kind == Misc && e.WholePod:
			out[e.PodDir], out[e.Dir] = c.bytes(e.MiB), memlimit.NoLimit
		case c.Kind == Misc:
			out[e.Dir] = c.bytes(e.MiB)
		default:
			out[e.Dir] = c.bytes(e.MiB)
			if shares[e.PodDir] == nil {
				shares[e.PodDir] = map[string]int64{}
			}
			shares[e.PodDir][e.Share] = e.MiB
		}
	}
	for pod, of := range shares {
		var sum int64
		for _, share := range of {
			sum += share
		}
		out[pod] = c.bytes(sum)
	}
	return out
}

// bytes is a limit that the driver takes: no more than the GPU has.
func (c Target) bytes(limit int64) uint64 { return uint64(max(0, min(limit, c.MemoryMiB))) * mib }
