// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Input is what a table is made of. The order of its objects does not matter.
type Input struct {
	// Slices are ResourceSlices of this driver.
	Slices []*resourceapi.ResourceSlice
	// Claims are all ResourceClaims that could be read, of any driver.
	Claims []*resourceapi.ResourceClaim
	// ClaimsUnknown says that none could be read. What is allocated is not known
	// then.
	ClaimsUnknown bool
	// Pods are those that have GPUs without a claim, as deviceplugin.Holds says; others
	// among them do not matter. They can be left out where WithoutClaimKey is empty.
	Pods []*corev1.Pod
	// PodsUnknown says that they could not be read.
	PodsUnknown bool
	// Bound are all pods that are on nodes and have not ended, with what they request; nil where they are not known, or
	// not all nodes and claims are.
	Bound []*corev1.Pod
	// Nodes are asked for their addresses, and beside Bound for what they have.
	Nodes []*corev1.Node
	// Node, if it is not empty, is the one node that the slices are of.
	Node string
	// Events are those of nodes, where some offer nothing or publish nothing, as far as they could be read.
	Events []corev1.Event
	// Used is what is used on nodes, as far as it could be read; nil where it was not asked for.
	Used map[string]NodeUse
	// Notes say what could not be read.
	Notes []string
}

// New makes the table.
func New(in Input) *Table {
	b := &builder{in: in, nodes: map[string]*node{}, notes: slices.Clone(in.Notes)}
	b.readSlices()
	b.readClaims()
	b.readPods()
	b.readAddresses()
	b.noteSwitches()
	b.noteOtherDrivers()
	b.noteFaults()
	t := b.table()
	b.addLost(t)
	return t
}

type builder struct {
	in    Input
	nodes map[string]*node
	notes []string
}

// node is a Node while it is put together.
type node struct {
	Node
	gpus    map[int]*unfinishedGPU
	holders map[string]*Holder
	// instances are the MIG instances, by device.
	instances map[string]*Instance
	// pendingPods hold GPUs that are not known.
	pendingPods []pendingPod
}

// GPU is a GPU while it is put together.
type unfinishedGPU struct {
	GPU
	generation int64
	offered    []mode.Mode
	holds      mode.Mode // "" of a free GPU
	// What the GPU's devices show to be taken by pods without claims.
	withoutClaimGiB, withoutClaimCores int64
	closed                             bool
}

func (b *builder) amount(total int64) Amount {
	if b.in.ClaimsUnknown {
		return Amount{Total: total}
	}
	return Amount{Allocated: ptr.To(int64(0)), Total: total}
}

// readSlices collects the GPUs that the slices show. While a node publishes again
// there are slices of two generations: the newer one counts, GPU by GPU.
func (b *builder) readSlices() {
	published := slices.Clone(b.in.Slices)
	slices.SortFunc(published, func(a, b *resourceapi.ResourceSlice) int {
		return cmp.Or(cmp.Compare(b.Spec.Pool.Generation, a.Spec.Pool.Generation), cmp.Compare(a.Name, b.Name))
	})
	for _, slice := range published {
		name := ptr.Deref(slice.Spec.NodeName, "")
		if slice.Spec.Driver != v1alpha1.DriverName || slice.Spec.Pool.Name != v1alpha1.PoolName(name) {
			continue
		}
		for _, device := range slice.Spec.Devices {
			if slices.ContainsFunc(device.Taints, isSwitching) {
				b.node(name).Switching = true
			}
			indices, m, err := devices.ParseDeviceName(device.Name)
			if err != nil || len(indices) != 1 {
				continue // a linked set: each of its GPUs is published by itself, too
			}
			if m == mode.MIG {
				b.node(name).offerInstance(b.readInstance(indices[0], &device), b.readGPU(indices[0], device.Attributes),
					slice.Spec.Pool.Generation)
				continue
			}
			if m == mode.Monitor {
				continue // it is the GPU's that is published by itself, too
			}
			b.node(name).offer(b.readGPU(indices[0], device.Attributes), m, slice.Spec.Pool.Generation, &device)
		}
	}
	for _, n := range b.nodes {
		n.addPlaces()
	}
}

func (b *builder) readGPU(index int, attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) GPU {
	memoryMiB := ptr.Deref(attributes[v1alpha1.AttrMemoryMiB].IntValue, 0)
	return GPU{
		Index:        index,
		UUID:         ptr.Deref(attributes[v1alpha1.AttrUUID].StringValue, ""),
		Model:        ptr.Deref(attributes[v1alpha1.AttrModel].StringValue, ""),
		MemoryMiB:    memoryMiB,
		MemoryGiB:    b.amount(gpu.GPU{MemoryMiB: memoryMiB}.MemoryUnits()),
		CoresPercent: b.amount(0),
	}
}

func (b *builder) node(name string) *node {
	if b.nodes[name] == nil {
		b.nodes[name] = &node{
			Node: Node{Name: name, IPAddress: "unknown", MemoryGiB: b.amount(0), CoresPercent: b.amount(0)},
			gpus: map[int]*unfinishedGPU{}, holders: map[string]*Holder{}, instances: map[string]*Instance{},
		}
	}
	return b.nodes[name]
}

// offer adds a device of a GPU. On a dynamic node a GPU has one for each mode.
func (n *node) offer(c GPU, m mode.Mode, generation int64, device *resourceapi.Device) {
	known := n.gpus[c.Index]
	if known == nil {
		known = &unfinishedGPU{GPU: c, generation: generation}
		n.gpus[c.Index] = known
	}
	if known.generation != generation {
		return
	}
	known.offered = append(known.offered, m)
	units, cores, closed := devices.Reserved(device)
	known.withoutClaimGiB, known.withoutClaimCores, known.closed = max(known.withoutClaimGiB, units),
		max(known.withoutClaimCores, cores), known.closed || closed
}

// readClaims charges the GPUs with what claims were allocated.
func (b *builder) readClaims() {
	claims := slices.Clone(b.in.Claims)
	slices.SortFunc(claims, func(a, b *resourceapi.ResourceClaim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	absent := map[string]int{}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			// Access for administrators takes nothing of a GPU.
			if result.Driver != v1alpha1.DriverName || ptr.Deref(result.AdminAccess, false) {
				continue
			}
			name, ok := strings.CutSuffix(result.Pool, v1alpha1.PoolName(""))
			switch {
			case !ok || b.in.Node != "" && b.in.Node != name:
			case b.nodes[name] == nil:
				absent[name]++
			default:
				b.charge(b.nodes[name], claim, result)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(absent)) {
		b.note("Node %s publishes no GPUs, but claims hold %d devices of it: is the driver's pod running there? They are "+
			"not counted.", name, absent[name])
	}
}

func (b *builder) note(format string, arguments ...any) {
	b.notes = append(b.notes, fmt.Sprintf(format, arguments...))
}

func (b *builder) charge(n *node, claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult) {
	indices, m, err := devices.ParseDeviceName(result.Device)
	if err != nil {
		b.note("ResourceClaim %s/%s is not counted on node %s: %v.", claim.Namespace, claim.Name, n.Name, err)
		return
	}
	memory, cores := result.ConsumedCapacity[v1alpha1.CapMemory], result.ConsumedCapacity[v1alpha1.CapCores]
	if m == mode.MIG {
		b.chargeInstance(n, claim, indices[0], result.Device)
		return
	}
	if m == mode.Monitor {
		return // nothing is had of the GPU
	}
	for _, index := range indices {
		c := b.gpu(n, index)
		c.holds = m
		share := Share{GPU: index, Mode: m, MemoryGiB: memory.Value() / devices.GiB, CoresPercent: cores.Value()}
		if !m.Shared() {
			share.MemoryGiB, share.CoresPercent = c.MemoryGiB.Total, 0
		}
		c.MemoryGiB.take(share.MemoryGiB)
		c.CoresPercent.take(share.CoresPercent)
		n.holder(claim).hold(share)
	}
}

// GPU returns the GPU with an index, also where it is not published any more.
func (b *builder) gpu(n *node, index int) *unfinishedGPU {
	if n.gpus[index] == nil {
		n.gpus[index] = &unfinishedGPU{GPU: GPU{Index: index, MemoryGiB: b.amount(0), CoresPercent: b.amount(0)}}
		b.note("GPU %d of node %s is not published any more, but claims hold it: its total is shown as 0.", index, n.Name)
	}
	return n.gpus[index]
}

// holder returns the holder that a claim belongs to: claims of the same pods are
// held by one.
func (n *node) holder(claim *resourceapi.ResourceClaim) *Holder {
	pods, others := users(claim)
	key := claim.Namespace + "/" + strings.Join(slices.Concat(pods, others), ",")
	if len(pods)+len(others) == 0 {
		key += "/" + claim.Name
	}
	if n.holders[key] == nil {
		n.holders[key] = &Holder{Namespace: claim.Namespace, Pods: pods, Others: others, Origin: OriginClaim}
	}
	h := n.holders[key]
	if claim.Labels[v1alpha1.LabelLegacy] == "true" {
		h.Origin = OriginLimits
	}
	if !slices.Contains(h.Claims, claim.Name) {
		h.Claims = append(h.Claims, claim.Name)
	}
	return h
}

// users are the names of the pods that a claim is reserved for, and of what else, as a PodGroup.
func users(c *resourceapi.ResourceClaim) (pods, others []string) {
	of, _ := claim.Pods(c)
	pods = make([]string, 0, len(of))
	for _, pod := range of {
		pods = append(pods, pod.Name)
	}
	for _, other := range claim.Others(c) {
		others = append(others, other.Resource+"/"+other.Name)
	}
	slices.Sort(pods)
	slices.Sort(others)
	return pods, others
}

func (h *Holder) hold(s Share) {
	for i := range h.Shares {
		if h.Shares[i].GPU == s.GPU {
			h.Shares[i].MemoryGiB += s.MemoryGiB
			h.Shares[i].CoresPercent += s.CoresPercent
			return
		}
	}
	h.Shares = append(h.Shares, s)
}

func (b *builder) readAddresses() {
	for _, object := range b.in.Nodes {
		n := b.nodes[object.Name]
		if n == nil {
			continue
		}
		for _, address := range object.Status.Addresses {
			if address.Type == corev1.NodeInternalIP {
				n.IPAddress = address.Address
				break
			}
		}
	}
}
