// SPDX-License-Identifier: Apache-2.0

// Package metrics is what a node shows to Prometheus, and how it follows from what the node has.
// Its names are those of the page docs/metrics.md, as pkg/metrics says.
package metrics

import (
	"cmp"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// Node is what a node has at one moment, as its metrics show it.
type Node struct {
	GPUs    []GPU
	Claims  []Claim
	Devices []Device
	Daemons []Daemon
	// Audit is what is used of the GPUs, nil where that is not known.
	Audit *audit.Snapshot
	// Prepared is how many claims are prepared that were granted anything in a mode.
	Prepared map[mode.Mode]int
	// MemoryLimits says who counts each GPU's memory for limits, by UUID; nil where that is not
	// known.
	MemoryLimits map[string]string
	Publishing
}

// Publishing is how far what is published lags behind what the node asks for, in seconds.
type Publishing struct {
	// Behind is for how long a change has not been published; 0 where all is.
	Behind float64
	// SwitchWaiting is for how long a change of the mode has waited; 0 where none does.
	SwitchWaiting float64
}

// ID is a GPU, or an instance of one, as labels name it.
type ID struct {
	Index int
	UUID  string
}

// GPU is a GPU of the node, or an instance of one in MIG mode.
type GPU struct {
	ID
	Model string
	// Unhealthy is the reason why it takes no claims, such as "xid-79"; empty where it does.
	Unhealthy string
	// The memory that it has, that claims were granted, and that pods without a claim have
	// of it. It has none where it could not be read.
	CapacityBytes, GrantedBytes, ReservedBytes float64
	// CoresRatio is the part of its compute that claims were granted, Shares how many of
	// its shares.
	CoresRatio float64
	Shares     int64
}

// Claim is what a claim was granted of a GPU, for one container.
type Claim struct {
	Namespace, Name string
	// Pod is the pod that uses the claim, empty where it is not one alone; Container the
	// container that its request is for, empty where only the pod's spec tells.
	Pod, Container string
	ID
	GrantedBytes, CoresRatio float64
}

// Device is a device that the node publishes.
type Device struct {
	Mode    mode.Mode
	Model   string
	Healthy bool
}

// Daemon is the MPS control daemon of a GPU.
type Daemon struct {
	ID
	Ready    bool
	Restarts int
}

// Granted is a claim that is prepared.
type Granted struct {
	usage.Claim
	// Pods are the names of the pods that use it.
	Pods []string
}

// Holdings are what NodeOf uses.
type Holdings struct {
	// Machine is the node's, nil while it has not been read.
	Machine *gpu.Machine
	Claims  []Granted
	// Reserved is what pods without a claim have.
	Reserved usage.Reserved
	// Unhealthy are the GPUs that are, by UUID.
	Unhealthy map[string]health.Unhealthy
	// Audit is what is used of the GPUs, nil where that is not known.
	Audit *audit.Snapshot
}

const (
	mib = 1 << 20
	// percent is what compute is counted in.
	percent = 100
)

// NodeOf adds up what the node's GPUs have and what was granted of them.
func NodeOf(h Holdings) Node {
	n := Node{Prepared: map[mode.Mode]int{}, Audit: h.Audit}
	granted := map[string]*GPU{}
	for _, c := range h.Claims {
		seen := map[mode.Mode]bool{}
		for _, g := range claim.Current(c.Grants, h.Machine) {
			if !seen[g.Mode] {
				seen[g.Mode] = true
				n.Prepared[g.Mode]++
			}
			if g.Admin {
				continue
			}
			sum := granted[g.GPU.UUID]
			if sum == nil {
				sum = &GPU{}
				granted[g.GPU.UUID] = sum
			}
			bytes, cores := amounts(g)
			sum.GrantedBytes += bytes
			sum.CoresRatio += cores
			sum.Shares += g.CountsAs()
			n.grant(c, g, bytes, cores)
		}
	}
	if h.Machine == nil {
		return n
	}
	for _, g := range h.Machine.GPUs {
		out := GPU{ID: ID{g.Index, g.UUID}, Model: g.Model, CapacityBytes: float64(g.MemoryMiB) * mib,
			Unhealthy: h.Unhealthy[g.UUID].Reason, ReservedBytes: reserved(h.Reserved, g)}
		if sum := granted[g.UUID]; sum != nil {
			out.GrantedBytes, out.CoresRatio, out.Shares = sum.GrantedBytes, sum.CoresRatio, sum.Shares
		}
		n.GPUs = append(n.GPUs, out)
	}
	for _, p := range h.Machine.Partitioned {
		// Its memory and its compute are its instances'.
		n.GPUs = append(n.GPUs, GPU{ID: ID{p.Index, p.UUID}, Model: p.Model, Unhealthy: h.Unhealthy[p.UUID].Reason})
		for _, i := range p.Instances {
			if i.LeftOut == "" {
				n.GPUs = append(n.GPUs, instanceOf(h, p, i, granted[i.UUID]))
			}
		}
	}
	for _, f := range h.Machine.Faults {
		n.GPUs = append(n.GPUs, GPU{ID: ID{f.Index, f.UUID},
			Unhealthy: cmp.Or(h.Unhealthy[f.UUID].Reason, string(f.Reason))})
	}
	slices.SortStableFunc(n.GPUs, func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	return n
}

// instanceOf is an instance of a GPU in MIG mode, under the UUID of its MIG device.
func instanceOf(h Holdings, p gpu.Partitioned, i gpu.Instance, granted *GPU) GPU {
	out := GPU{ID: ID{p.Index, i.UUID}, Model: p.Model + "-MIG-" + i.Profile,
		CapacityBytes: float64(i.MemoryMiB) * mib,
		Unhealthy:     cmp.Or(h.Unhealthy[i.UUID].Reason, h.Unhealthy[p.UUID].Reason)}
	if granted != nil {
		out.GrantedBytes, out.CoresRatio, out.Shares = granted.GrantedBytes, granted.CoresRatio, granted.Shares
	}
	return out
}

// amounts are the memory that was granted, and the part of the GPU's compute: all of it
// where the GPU is not shared.
func amounts(g claim.Grant) (bytes, cores float64) {
	if !g.Mode.Shared() {
		return float64(g.GPU.MemoryMiB) * mib, 1
	}
	return float64(g.CapMiB()) * mib, float64(g.CoresPercent) / percent
}

// reserved is the memory that pods without a claim have of the GPU.
func reserved(by usage.Reserved, g gpu.GPU) float64 {
	units := g.MemoryUnits()
	if by == nil || units == 0 {
		return 0
	}
	held := by(g.UUID)
	if held.Whole {
		return float64(g.MemoryMiB) * mib
	}
	return float64(g.MemoryMiB*min(held.Units, units)/units) * mib
}

// grant adds what the claim was granted for one container of a GPU to what it was before.
func (n *Node) grant(c Granted, g claim.Grant, bytes, cores float64) {
	row := Claim{Namespace: c.Namespace, Name: c.Name, ID: ID{g.GPU.Index, g.GPU.UUID}}
	if len(c.Pods) == 1 {
		row.Pod = c.Pods[0]
	}
	if g.Config.Container != nil {
		row.Container = *g.Config.Container
	}
	at := slices.IndexFunc(n.Claims, func(o Claim) bool {
		return o.Namespace == row.Namespace && o.Name == row.Name && o.Container == row.Container && o.ID == row.ID
	})
	if at < 0 {
		at = len(n.Claims)
		n.Claims = append(n.Claims, row)
	}
	n.Claims[at].GrantedBytes += bytes
	n.Claims[at].CoresRatio += cores
}
