// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// Values of the taint of a device whose instance is not the one that a claim holds.
const (
	instanceGone     = "mig-instance-gone"
	instanceReplaced = "mig-instance-replaced"
)

// hasMIG reports whether there are GPUs in MIG mode, or claims that hold instances.
func (s snapshot) hasMIG() bool {
	return len(s.machine.Partitioned) > 0 || slices.ContainsFunc(s.records, func(r state.Record) bool {
		return slices.ContainsFunc(r.Grants, func(g claim.Grant) bool { return holdsInstance(r, g) })
	})
}

// heldInstance is a MIG instance that a claim was granted.
type heldInstance struct {
	claim.Grant
	by state.Record
}

// holdsInstance reports whether the record's claim holds the grant's instance: not one that is being made, or
// destroyed.
func holdsInstance(r state.Record, g claim.Grant) bool {
	return g.GPU.MIG != nil && !g.Admin && (!g.GPU.MIG.Made || r.Phase == state.Prepared)
}

// heldInstances are the instances that claims hold.
func heldInstances(records []state.Record) []heldInstance {
	var held []heldInstance
	for _, r := range records {
		for _, g := range r.Grants {
			if holdsInstance(r, g) {
				held = append(held, heldInstance{g, r})
			}
		}
	}
	return held
}

// madeInstances are the devices of the instances that are made for claims, by the UUID of their GPU: those that are
// being made, or destroyed, too.
func madeInstances(records []state.Record) map[string]map[string]bool {
	made := map[string]map[string]bool{}
	for _, r := range records {
		for _, g := range r.Grants {
			if i := g.GPU.MIG; i != nil && i.Made {
				if made[i.ParentUUID] == nil {
					made[i.ParentUUID] = map[string]bool{}
				}
				made[i.ParentUUID][g.Device] = true
			}
		}
	}
	return made
}

// heldByOrphans are the places of the instances that were made for claims which are gone, by the UUID of their GPU: the
// scheduler takes them for free until they are destroyed.
func heldByOrphans(records []state.Record, orphans map[types.UID]string) map[string][]gpu.Place {
	held := map[string][]gpu.Place{}
	for _, r := range records {
		if _, orphan := orphans[r.UID]; !orphan {
			continue
		}
		for _, g := range r.Grants {
			if i := g.GPU.MIG; i != nil && i.Made {
				held[i.ParentUUID] = append(held[i.ParentUUID], i.PlaceOf())
			}
		}
	}
	return held
}

// instances is how the machine's instances are offered. It adds the taints that this takes.
func (s snapshot) instances(reserved held.Reserved, closed taints) (devices.MIGOptions, error) {
	// Whoever held what was there before may still get at what is there now.
	records, err := s.prepared()
	if err != nil {
		return devices.MIGOptions{}, err
	}
	held := heldInstances(records)
	for uuid := range s.heldBefore(records, held) {
		closed.add(uuid, closing(v1alpha1.TaintWithdrawn, ""))
	}
	for _, p := range s.machine.Partitioned {
		closeReserved(p.UUID, reserved, closed)
		for _, i := range p.Instances {
			closeReserved(i.UUID, reserved, closed)
		}
	}
	isolation := mode.IsolationNamed(mode.IsolationMIG)
	options := devices.MIGOptions{Isolation: isolation.Name, Level: string(isolation.Level),
		Made: madeInstances(records), Held: heldByOrphans(records, s.orphans)}
	for _, h := range held {
		if s.gone(h.GPU) == "" {
			continue
		}
		value := instanceGone
		if s.offersInstance(h.Device) {
			value = instanceReplaced
		}
		i := h.GPU.MIG
		options.Gone = append(options.Gone, devices.GoneInstance{Index: h.GPU.Index, Instance: gpu.Instance{
			UUID: h.GPU.UUID, ProfileID: i.ProfileID, Profile: i.Profile, Start: i.Start, Size: i.Size,
			MemoryMiB: h.GPU.MemoryMiB}, Taint: s.unhealthyTaint(value)})
	}
	return options, nil
}

// closeReserved closes a GPU, or an instance, of which pods without a claim or other drivers have any.
func closeReserved(uuid string, reserved held.Reserved, closed taints) {
	if g := reserved.GPU(uuid); uuid != "" && (g.Driver != "" || g.Taken != held.Taken{}) {
		closed.addHeld(uuid, g.Driver)
	}
}

// heldBefore are the GPUs and instances, by UUID, of which claims hold what was there before, so that
// nobody else can be given them: a GPU that was in MIG mode and one of whose instances is held; the
// instances of a GPU that is held as it was before; and an instance that has the id, and so the device
// nodes, of one that is held. usage.CheckOvercommit says the same of a claim.
func (s snapshot) heldBefore(records []state.Record, held []heldInstance) map[string]bool {
	whole := map[string]bool{}
	for _, r := range records {
		for _, g := range r.Grants {
			if g.GPU.MIG == nil && !g.Admin {
				whole[g.GPU.UUID] = true
			}
		}
	}
	before := map[string]bool{}
	for _, g := range s.machine.GPUs {
		if slices.ContainsFunc(held, func(h heldInstance) bool { return h.GPU.MIG.ParentUUID == g.UUID }) {
			before[g.UUID] = true
		}
	}
	for _, p := range s.machine.Partitioned {
		if whole[p.UUID] {
			before[p.UUID] = true
		}
		for _, i := range p.Instances {
			if i.UUID != "" && slices.ContainsFunc(held, func(h heldInstance) bool {
				return h.GPU.MIG.ParentUUID == p.UUID && h.GPU.MIG.GI == i.GI && h.GPU.UUID != i.UUID
			}) {
				before[i.UUID] = true
			}
		}
	}
	return before
}

// offersInstance reports whether an instance of the device's profile and place is there.
func (s snapshot) offersInstance(device string) bool {
	_, i, there := instanceNamed(s.machine, device)
	return there && i.LeftOut == ""
}

func instanceNamed(m *gpu.Machine, device string) (gpu.Partitioned, gpu.Instance, bool) {
	for _, p := range m.Partitioned {
		if i, there := devices.InstanceNamed(p, device); there {
			return p, i, true
		}
	}
	return gpu.Partitioned{}, gpu.Instance{}, false
}

// placeNamed is the GPU that can have the device's instance made.
func placeNamed(m *gpu.Machine, device string) (gpu.Partitioned, bool) {
	for _, p := range m.Partitioned {
		if _, can := devices.PlacementNamed(p, device); can {
			return p, true
		}
	}
	return gpu.Partitioned{}, false
}

// countInstances is how many instances of the machine can be handed out.
func countInstances(m *gpu.Machine) int {
	count := 0
	for _, p := range m.Partitioned {
		if onDemand(p) {
			continue
		}
		for _, i := range p.Instances {
			if i.LeftOut == "" {
				count++
			}
		}
	}
	return count
}

// onDemand reports whether instances of the GPU are made for claims.
func onDemand(p gpu.Partitioned) bool { return len(p.Profiles) > 0 }

// countOnDemand is of how many GPUs.
func countOnDemand(m *gpu.Machine) int {
	count := 0
	for _, p := range m.Partitioned {
		if onDemand(p) {
			count++
		}
	}
	return count
}

// notOffered says what of the GPUs in MIG mode nobody is given, and why: it may be meant to be so.
func notOffered(m *gpu.Machine, made map[string]map[string]bool) event {
	told := event{reason: v1alpha1.ReasonInstancesLeftOut, good: true}
	var parts []string
	for _, p := range m.Partitioned {
		if len(p.Instances) == 0 && !onDemand(p) {
			parts = append(parts, fmt.Sprintf("GPU %d is in MIG mode and not cut into instances", p.Index))
		}
		for _, i := range p.Instances {
			if i.LeftOut != "" && !made[p.UUID][devices.InstanceName(p.Index, i.Profile, i.Start)] {
				parts = append(parts, fmt.Sprintf("GPU %d's %s: %s", p.Index, i.Place(), i.LeftOut))
			}
		}
	}
	if len(parts) > 0 {
		told.message = "Not offered: " + text.List(parts, mostNamed) + ": see docs/mig.md"
	}
	return told
}

// goneInstances tells which claims hold instances that are not there any more: on the node, and, by the
// claims' UIDs, what is told of each.
func (s snapshot) goneInstances() (event, map[types.UID]goneClaim) {
	told, claims := event{reason: v1alpha1.ReasonInstanceGone}, map[types.UID]goneClaim{}
	var parts []string
	for _, h := range heldInstances(s.records) {
		why := s.gone(h.GPU)
		if why == "" {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s: claim %s/%s holds it", why, h.by.Namespace, h.by.Name))
		claims[h.by.UID] = goneClaim{h.by.Namespace, h.by.Name,
			"The claim holds a MIG instance that its pods cannot use any more: " + why +
				": delete the pods that use the claim, so " +
				"that they are placed again"}
	}
	if len(parts) > 0 {
		told.message = "Claims hold MIG instances that their pods cannot use any more: " + text.List(parts, mostNamed)
	}
	return told, claims
}

// goneClaim is a claim whose instance is gone, and what it is told.
type goneClaim struct{ namespace, name, message string }

// instanceHealth says what is wrong with a device that is an instance, which the claim that holds it, if
// any, knows by a UUID.
func (in given) instanceHealth(device, uuid string) string {
	// Its GPU may have another index by now, and so the instance another name.
	p, i, there := in.machine.Instance(uuid)
	if !there {
		p, i, there = instanceNamed(in.machine, device)
	}
	missing := !there || i.LeftOut != ""
	if missing && uuid == "" {
		if parent, can := placeNamed(in.machine, device); can {
			return in.unhealthy[parent.UUID].Message // it is made when a claim needs it
		}
	}
	switch {
	case missing:
		return strings.TrimSpace("the MIG instance is not there any more " + uuid)
	case uuid != "" && uuid != i.UUID:
		return fmt.Sprintf("the MIG instance %s is not there any more: another one, %s, is in its place", uuid, i.UUID)
	default:
		return cmp.Or(in.unhealthy[i.UUID].Message, in.unhealthy[p.UUID].Message)
	}
}

// gone says why an instance that a claim holds is not what it was when it was granted; empty if it is, or that is not
// known yet.
func (s snapshot) gone(g claim.GPU) string {
	if s.isUnseen(g) {
		return ""
	}
	return g.Gone(s.machine)
}

// isUnseen reports whether the instance is not there and may have been made since the GPUs were read.
func (s snapshot) isUnseen(g claim.GPU) bool {
	seen, known := s.made[g.UUID]
	return known && seen.machine == s.machine && s.now.Sub(seen.at) < rereadLimit && g.Gone(s.machine) != ""
}
