// SPDX-License-Identifier: Apache-2.0

// Package held is what is held of a node's GPUs without a claim of this driver: by pods that a device plugin started,
// by other DRA drivers, and by claims that are gone while their containers run. It is pure.
package held

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// ErrPodsUnread says that it is not known yet what pods without a claim hold.
var ErrPodsUnread = errors.New("the node's pods, some of which may hold GPUs without a claim, have not been read " +
	"from the API server yet: see the node's Events; the kubelet tries again by itself")

// Taken is what is held of a GPU.
type Taken struct {
	// Shares are the containers that have it.
	gpu.Amount
	// Whole says that it is all of the GPU. Units and Cores are 0 then.
	Whole bool
}

// Plus returns what is held together.
func (t Taken) Plus(more Taken) Taken {
	return Taken{Amount: t.Amount.Plus(more.Amount), Whole: t.Whole || more.Whole}
}

// Share is what a pod holds of the GPU with the index.
type Share struct {
	GPU int
	Taken
}

// Unknown is what a pod holds of some GPU or GPUs, of which it is not known which.
type Unknown struct {
	Taken
	// Reason says why, for people.
	Reason string
}

// Pod is a pod that holds GPUs without a claim.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	// Shares are what it is known to hold, one for each GPU, ordered by index.
	Shares []Share
	// Unknown is the rest.
	Unknown []Unknown
}

// FullName is the pod's name for people: namespace/name.
func (p Pod) FullName() string { return p.Namespace + "/" + p.Name }

// GPU is what is taken of one GPU by all pods that hold no claim.
type GPU struct {
	Taken
	// MemoryOnly says that some hold memory and no compute of it.
	MemoryOnly bool
	// Pods are their names, as in Pod.FullName, in order.
	Pods []string
	// Driver is another DRA driver that has the GPU, if one has: it gives it to pods whether
	// they are among Pods yet or not.
	Driver string
}

// Closes reports whether nothing of the GPU may be handed out in this mode of its
// node. Somebody holds all of it; or the mode hands out GPUs as a whole; or whoever
// holds a share is held to it in another way than the mode's claims: as among claims,
// those that were promised compute and those that were not do not share a GPU.
func (c GPU) Closes(m mode.Mode) bool {
	switch {
	case c.Taken == Taken{}:
		return false
	case c.Whole || !m.Shared():
		return true
	case m.CountsCores():
		return c.MemoryOnly
	default:
		return c.Cores > 0
	}
}

// Reserved is what pods that hold no claim hold of a node's GPUs.
type Reserved struct {
	// Pods are these pods, ordered by namespace and name.
	Pods []Pod
	// Outdated says that the kubelet did not answer, so that all is as it said last.
	Outdated bool
	gpus     map[string]GPU // by UUID
}

// GPU returns what is taken of the GPU with the UUID. A pod of which it is not
// known which GPU it has counts in full on every GPU.
func (t Reserved) GPU(uuid string) GPU { return t.gpus[uuid] }

// IsEmpty reports whether nothing is taken of any GPU, as far as that is known.
func (t Reserved) IsEmpty() bool { return len(t.Pods) == 0 && len(t.gpus) == 0 }

// Of returns what the pods hold of the GPUs. What is Unknown of a pod counts on each.
func Of(pods []Pod, gpus []gpu.GPU) Reserved {
	t := Reserved{Pods: pods, gpus: map[string]GPU{}}
	slices.SortFunc(t.Pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, g := range gpus {
		var held GPU
		for _, p := range t.Pods {
			held.add(p, g.Index)
		}
		if len(held.Pods) > 0 {
			t.gpus[g.UUID] = held
		}
	}
	return t
}

// add adds what the pod holds, or may hold, of the GPU with the index.
func (c *GPU) add(p Pod, index int) {
	var amounts Taken
	for _, s := range p.Shares {
		if s.GPU == index {
			amounts = amounts.Plus(s.Taken)
		}
	}
	for _, u := range p.Unknown {
		amounts = amounts.Plus(u.Taken)
	}
	if amounts == (Taken{}) {
		return
	}
	c.Taken = c.Taken.Plus(amounts)
	c.MemoryOnly = c.MemoryOnly || amounts.Units > 0 && amounts.Cores == 0
	c.Pods = append(c.Pods, p.FullName())
}

// Left returns what remains of a GPU of which there was so much; never less than
// nothing.
func (c GPU) Left(units, shares int64) gpu.Amount {
	if c.Whole {
		return gpu.Amount{}
	}
	return gpu.Amount{Units: max(0, units-c.Units), Cores: max(0, gpu.WholeCores-c.Cores), Shares: max(0, shares-c.Shares)}
}

// Plus returns what is taken with what holder holds of the GPU with the UUID beside
// these pods: something that has no claim either. The holder is named among the GPU's
// pods.
func (t Reserved) Plus(uuid, holder string, more Taken) Reserved {
	gpus := maps.Clone(t.gpus)
	if gpus == nil {
		gpus = map[string]GPU{}
	}
	g := gpus[uuid]
	g.Taken = g.Taken.Plus(more)
	g.MemoryOnly = g.MemoryOnly || more.Units > 0 && more.Cores == 0
	g.Pods = append(slices.Clip(g.Pods), holder)
	gpus[uuid] = g
	return Reserved{Pods: t.Pods, Outdated: t.Outdated, gpus: gpus}
}

// OfDriver returns what is taken with all of the GPU with the UUID, which another DRA driver
// grants to pods. Those that have it are named among the GPU's pods.
func (t Reserved) OfDriver(uuid, driver string, pods []string) Reserved {
	gpus := maps.Clone(t.gpus)
	if gpus == nil {
		gpus = map[string]GPU{}
	}
	g := gpus[uuid]
	g.Whole, g.Driver = true, driver
	g.Pods = slices.Concat(g.Pods, pods)
	gpus[uuid] = g
	return Reserved{Pods: t.Pods, Outdated: t.Outdated, gpus: gpus}
}
