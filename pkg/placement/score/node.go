// SPDX-License-Identifier: Apache-2.0

// Package score ranks the nodes of a cluster for a pod with GPUs, so that as many as possible of the pods that come
// after it find room. A node scores well where the pod leaves few GPUs stranded for want of CPU or memory, takes no
// GPUs of a model that others ask for by name, and cuts the rest of the GPUs into no pieces that nobody asks for. What
// others ask for is learned from the pods that came before. The package is pure: no clock, no API server, and ties are
// decided by a source that the caller hands in. Whether a pod really fits is for the caller to check, node by node:
// the order here knows CPU, memory, and what is left of each GPU, and nothing else.
//
// CPU is in thousandths of a core, memory of nodes in bytes, memory of GPUs in GiB units, compute of GPUs in percent.
// Amounts of GPUs are in GPUs: 4 GiB of a GPU of 16 GiB are a quarter, and so are 25 percent of its compute.
package score

import (
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Modes are those in which claims can have a GPU, one bit for each. Whole is one of them, the other bits are the
// caller's: in what ways GPUs are shared or cut makes no difference here, only that a GPU that is in one mode is in no
// other.
type Modes uint16

// Whole is a GPU that one claim has alone, by itself or in a linked set.
const Whole Modes = 1

// GPU is what is left of a GPU.
type GPU struct {
	// Model is its name, as requests name it.
	Model string
	// Modes are those in which the next claim can have it, none for a GPU that takes no claims.
	Modes Modes
	// Memory is all of its memory, Free what is left of it. Where it is cut into MIG instances, the memory of free slices
	// is.
	Memory, Free int64
	// Cores are what is left of its compute: 100 where compute is not divided.
	Cores int64
}

// Node is what is left of a node.
type Node struct {
	// CPU and Memory are allocatable and not requested.
	CPU, Memory int64
	// GPUs are all of its GPUs, also those that are taken.
	GPUs []GPU
}

// Request is for Count GPUs, or for the same part of each of them.
type Request struct {
	Count int
	// Mode is the one in which it has them. Memory and Cores are what it has of each GPU, or for Whole what each has at
	// least.
	Mode          Modes
	Memory, Cores int64
	// Models are those that it can have, all if there are none.
	Models []string
}

// Ask is what a pod asks for, in all of its claims.
type Ask struct {
	CPU, Memory int64
	Requests    []Request
}

// With is what is left beside a pod that has the fullest GPUs with room for it, as binpack has it on a node; false if
// the pod does not fit. The node itself is not changed.
func (n Node) With(a Ask) (Node, bool) {
	after := Node{GPUs: slices.Clone(n.GPUs)}
	fits := n.with(a, &after)
	return after, fits
}

// with is With, for callers with a place for the result, which has a copy of the node's GPUs.
func (n Node) with(a Ask, after *Node) bool {
	after.CPU, after.Memory = n.CPU-a.CPU, n.Memory-a.Memory
	if after.CPU < 0 || after.Memory < 0 {
		return false
	}
	for i := range a.Requests {
		if !a.Requests[i].take(after.GPUs) {
			return false
		}
	}
	return true
}

// mayFit reports whether each request by itself has room: most nodes of a full cluster need no closer look.
func (n *Node) mayFit(a *Ask) bool {
	if a.CPU > n.CPU || a.Memory > n.Memory {
		return false
	}
	for i := range a.Requests {
		fitting := 0
		for j := 0; j < len(n.GPUs) && fitting < a.Requests[i].Count; j++ {
			if a.Requests[i].fits(&n.GPUs[j]) {
				fitting++
			}
		}
		if fitting < a.Requests[i].Count {
			return false
		}
	}
	return true
}

// mostGPUs is how many of a node's GPUs count.
const mostGPUs = 64

// take takes the fullest GPUs with room for the request, each of them once. The first of equal ones is taken.
func (r *Request) take(gpus []GPU) bool {
	var taken [mostGPUs]bool
	for range r.Count {
		best, least := -1, 0.0
		for i := range min(len(gpus), len(taken)) {
			if taken[i] || !r.fits(&gpus[i]) {
				continue
			}
			if rest := gpus[i].rest(); best < 0 || rest < least {
				best, least = i, rest
			}
		}
		if best < 0 {
			return false
		}
		taken[best] = true
		g := &gpus[best]
		g.Modes = r.Mode
		if r.Mode == Whole {
			g.Free, g.Cores = 0, 0
		} else {
			g.Free, g.Cores = g.Free-r.Memory, g.Cores-r.Cores
		}
	}
	return true
}

// fits reports whether a GPU has room for the request.
func (r *Request) fits(g *GPU) bool {
	if g.Modes&r.Mode == 0 || g.Free < r.Memory || g.Cores < r.Cores {
		return false
	}
	if r.Mode == Whole && (g.Free < g.Memory || g.Cores < gpu.WholeCores) {
		return false
	}
	return len(r.Models) == 0 || slices.Contains(r.Models, g.Model)
}

// rest is how much of a GPU claims can have, in GPUs.
func (g *GPU) rest() float64 {
	if g.Modes == 0 {
		return 0
	}
	return min(part(g.Free, g.Memory), part(g.Cores, gpu.WholeCores))
}

// part is how much of all an amount is, nothing where there is nothing.
func part(amount, all int64) float64 {
	if all <= 0 {
		return 0
	}
	return float64(amount) / float64(all)
}
