// SPDX-License-Identifier: Apache-2.0

// Package usage adds up what is used of each GPU: what claims were granted, and what pods
// without a claim have reserved, which a device plugin gave it to. The rest is free. What
// may be granted beside it, the order of GPUs and what is published of them use it. It
// is pure.
package usage

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// Claim is a claim and what it was granted.
type Claim struct {
	Namespace, Name string
	UID             types.UID
	Grants          []claim.Grant
}

// Reserved is what pods without a claim have of the GPU with the UUID;
// held.Reserved.GPU is one.
type Reserved func(uuid string) held.GPU

// GPU is what is used of one GPU.
type GPU struct {
	// Mode is that of the claims which were granted some of it; empty if none was.
	// Where it is not shared, one claim has all of the GPU.
	Mode mode.Mode
	// What claims were granted.
	gpu.Amount
	// Reserved is what pods without a claim have of it.
	Reserved held.GPU

	// whole is the claim that was granted all of it, shared one that has a share.
	whole, shared *Claim
	// instances are the MIG instances of it that claims were granted: see fitsInstance.
	instances []instance
}

// instance is a MIG instance that a claim was granted.
type instance struct {
	gpu   claim.GPU
	claim *Claim
}

// Node is what is used of a node's GPUs.
type Node struct {
	reserved Reserved
	gpus     map[string]*GPU
}

// Of adds up what the claims were granted and what is reserved. Grants for administrators
// use nothing.
func Of(claims []Claim, reserved Reserved) Node {
	n := Node{reserved: reserved, gpus: map[string]*GPU{}}
	for i := range claims {
		for _, g := range claims[i].Grants {
			n.grant(&claims[i], g)
		}
	}
	return n
}

// GPU is what is used of the GPU with the UUID.
func (n Node) GPU(uuid string) GPU { return *n.gpu(uuid) }

func (n Node) gpu(uuid string) *GPU {
	if n.gpus[uuid] == nil {
		n.gpus[uuid] = &GPU{Reserved: n.reserved(uuid)}
	}
	return n.gpus[uuid]
}

func (n Node) grant(c *Claim, g claim.Grant) {
	if g.Admin {
		return
	}
	if i := g.GPU.MIG; i != nil {
		parent := n.gpu(i.ParentUUID)
		parent.instances = append(parent.instances, instance{g.GPU, c})
	}
	u := n.gpu(g.GPU.Key())
	u.Mode = g.Mode
	u.Shares += g.CountsAs()
	if !g.Mode.Shared() {
		u.whole = c
		u.Units += g.GPU.Units()
		return
	}
	u.shared = c
	u.Units += g.Units
	u.Cores += g.CoresPercent
}

// AsReserved is what the claim was granted of each GPU, by UUID, as if pods had it without
// a claim. On a dynamic node it closes the GPU: others may be in another mode.
func AsReserved(c Claim, nodeMode mode.Mode) map[string]held.Taken {
	amounts := map[string]held.Taken{}
	for uuid, u := range Of([]Claim{c}, nothing).gpus {
		if u.Mode == "" {
			continue // of which it has a MIG instance
		}
		if u.whole != nil || nodeMode == mode.Dynamic {
			amounts[uuid] = held.Taken{Whole: true}
		} else {
			amounts[uuid] = held.Taken{Amount: u.Amount}
		}
	}
	return amounts
}

func nothing(string) held.GPU { return held.GPU{} }

// Used is how much of the memory of a GPU with so many units is granted or reserved, in
// GiB units.
func (u GPU) Used(units int64) int64 { return u.Units + units - u.Reserved.Left(units, 0).Units }

// Free is what remains of a GPU that has so many units and takes so many shares.
func (u GPU) Free(units, shares int64) gpu.Amount {
	return u.Reserved.Left(units, shares).Minus(u.Amount)
}

// Placed is the GPU, which has so many units, as package placement uses it. Compute counts as memory where more of
// that is taken: what is left of the one is of no use without the other.
func (u GPU) Placed(index int, units int64, full bool) placement.GPU {
	used := max(u.Used(units), placement.AsMemory(u.Cores+u.Reserved.Cores, units))
	return placement.GPU{Index: index, Memory: units, Used: used, Full: full}
}

// Takes reports whether the GPU takes a further claim in mode m, if only the smallest. Its
// node is in nodeMode, has so many units of memory on it and offers so many shares.
func (u GPU) Takes(m, nodeMode mode.Mode, units, shares int64) bool {
	switch {
	case u.Reserved.Closes(nodeMode) || len(u.instances) > 0:
		return false
	case !m.Shared():
		return u.Mode == ""
	case u.Mode != "" && u.Mode != m:
		return false
	default:
		return !devices.IsFull(u.Free(units, shares), m)
	}
}
