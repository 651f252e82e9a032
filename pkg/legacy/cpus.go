// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// CPUs of a container's own are the business of another driver, dra-driver-cpu. It
// publishes a device per NUMA node, of which claims consume as many CPUs as they need, and
// pins the one container that uses such a claim.
const (
	// ClassCPUs is that driver's DeviceClass.
	ClassCPUs = "dra.cpu"
	// ClassCPUsMarker exists while that class does: gpu-compat-controller keeps it, and the
	// admission policy uses it.
	ClassCPUsMarker = "dra-cpu.gpu.aliyun.com"
	// CapacityCPUs is what a claim takes of a device of it.
	CapacityCPUs resourceapi.QualifiedName = "dra.cpu/cpu"
	// MostCPUs is the most that a container can ask for.
	MostCPUs = 4096
	// requestCPUs is the request for CPUs in a claim for GPUs.
	requestCPUs = "cpus"
)

// Alternatives of the requests.
const (
	near   = "near"   // CPUs of the NUMA node of the GPUs
	single = "single" // CPUs of a socket, or that are alone in the claim
	halves = "halves" // half of the CPUs of each of two NUMA nodes
	linked = "linked" // a linked set of GPUs
	anyGPU = "any"    // any GPUs
	// nearPrefix is of those alternatives of GPUs that are of one NUMA node with the CPUs.
	nearPrefix = "near-"
)

// nearby is how many CPUs the first container asks for near its GPUs.
func (r Request) nearby() int64 {
	if r.Kind == CPUs || len(r.Containers) == 0 {
		return 0
	}
	return r.Containers[0].CPUs
}

func (r Request) validateCPUs() error {
	if r.Kind == CPUs && (len(r.Containers) != 1 || r.Count > 1 || r.Whole) {
		return errors.New("a claim for CPUs is for one container, and for no GPU")
	}
	for i, c := range r.Containers {
		switch {
		case r.Kind == CPUs && c.CPUs < 1, c.CPUs < 0, c.CPUs > MostCPUs:
			return fmt.Errorf("container %q: CPUs must be from 1 to %d, not %d", c.Name, MostCPUs, c.CPUs)
		case c.CPUs > 0 && i > 0:
			return fmt.Errorf("container %q: of the containers with GPUs only the first can have CPUs in their claim", c.Name)
		case r.Kind != CPUs && r.Containers[0].CPUs > 0 && c.Name == requestCPUs:
			return fmt.Errorf("container %q: that is the name of the request for CPUs", c.Name)
		}
	}
	if shares := r.Count * int64(len(r.Containers)); r.nearby() > 0 && shares >= mostGPUs {
		return fmt.Errorf("a claim with CPUs is for 1 to %d shares, not %d", mostGPUs-1, shares)
	}
	return nil
}

// cpusAlone asks for CPUs of one NUMA node, or socket, or for half of them of each of two NUMA nodes.
func cpusAlone(c Container) resourceapi.DeviceClaim {
	one := cpus(single, 1, c.CPUs)
	one.Selectors = selecting(ofSocket)
	alternatives := []resourceapi.DeviceSubRequest{one}
	claim := resourceapi.DeviceClaim{}
	if c.CPUs%2 == 0 {
		alternatives = append(alternatives, cpus(halves, 2, c.CPUs/2))
		claim.Constraints = []resourceapi.DeviceConstraint{apart(resourceclaim.CreateSubRequestRef(c.Name, halves))}
	}
	claim.Requests = []resourceapi.DeviceRequest{{Name: c.Name, FirstAvailable: alternatives}}
	return claim
}

// addCPUs adds CPUs to a claim for GPUs, of the same NUMA node as the GPUs of the first
// request if the scheduler's node has such.
//
// A constraint cannot be optional, but it can name alternatives of requests, and then it
// holds only where these are chosen. The scheduler tries the alternatives of the first
// request in their order, and for each device those of the next request. So all pairs of one
// NUMA node come before the first that is none, if no alternative for the CPUs goes with GPUs
// that were chosen to be near: of "single" are only devices of a socket, and "halves"
// has to keep clear of the GPU's, which a machine with two NUMA nodes does not allow. That
// cannot be said of several GPUs of one request, as these would have to keep clear of each
// other; of them, halves come before other GPUs.
//
// A device that names its NUMA node by an attribute that GPUs do not have serves no
// alternative: its CPUs could be of any NUMA node, and nobody would notice.
//
// GPUs come first because their order is the node's placement. Other requests for shares
// are bound to the GPU of the first.
func addCPUs(claim *resourceapi.DeviceClaim, amount int64) {
	first, node := &claim.Requests[0], numaNode()
	nearby, alone := nearOrAny(first)
	// Constraints without names would be for the CPUs, too.
	var names []string
	for _, r := range claim.Requests {
		names = append(names, r.Name)
	}
	for i := range claim.Constraints {
		if len(claim.Constraints[i].Requests) == 0 {
			claim.Constraints[i].Requests = names
		}
	}
	withoutNode := cpus(single, 1, amount)
	withoutNode.Selectors = selecting(ofSocket + " && " + ofNoNUMANode)
	alternatives := []resourceapi.DeviceSubRequest{cpus(near, 1, amount), withoutNode}
	claim.Constraints = append(claim.Constraints, resourceapi.DeviceConstraint{
		Requests: append(nearby, resourceclaim.CreateSubRequestRef(requestCPUs, near)), MatchAttribute: &node,
	})
	if amount%2 == 0 {
		alternatives = append(alternatives, cpus(halves, 2, amount/2))
		claim.Constraints = append(claim.Constraints,
			apart(append(alone, resourceclaim.CreateSubRequestRef(requestCPUs, halves))...))
	}
	// Second: where no CPUs are left, that is found out before other GPUs are looked for.
	claim.Requests = slices.Insert(claim.Requests, 1,
		resourceapi.DeviceRequest{Name: requestCPUs, FirstAvailable: alternatives})
}

// nearOrAny gives a request an alternative that is near the CPUs before each that it has. It
// returns their names, and those that are for one device.
func nearOrAny(r *resourceapi.DeviceRequest) (nearby, alone []string) {
	before := r.FirstAvailable
	if e := r.Exactly; e != nil {
		before = []resourceapi.DeviceSubRequest{{Name: anyGPU, DeviceClassName: e.DeviceClassName, Selectors: e.Selectors,
			AllocationMode: e.AllocationMode, Count: e.Count, Capacity: e.Capacity}}
	}
	r.Exactly, r.FirstAvailable = nil, nil
	for _, alternative := range before {
		nearest := alternative
		nearest.Name = nearPrefix + alternative.Name
		r.FirstAvailable = append(r.FirstAvailable, nearest, alternative)
		name := resourceclaim.CreateSubRequestRef(r.Name, nearest.Name)
		nearby = append(nearby, name)
		if nearest.Count == 1 {
			alone = append(alone, name)
		}
	}
	return nearby, alone
}

func numaNode() resourceapi.FullyQualifiedName {
	return resourceapi.FullyQualifiedName(deviceattribute.StandardDeviceAttributeNUMANode)
}

func selecting(expression string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
}

// apart has all devices of the alternatives be of different NUMA nodes.
func apart(requests ...string) resourceapi.DeviceConstraint {
	node := numaNode()
	return resourceapi.DeviceConstraint{Requests: requests, DistinctAttribute: &node}
}

func cpus(name string, count, amount int64) resourceapi.DeviceSubRequest {
	return resourceapi.DeviceSubRequest{
		Name: name, DeviceClassName: ClassCPUs, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
		Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			CapacityCPUs: *resource.NewQuantity(amount, resource.DecimalSI)}},
	}
}

// WithoutCPUs returns a copy of a claim without what it asks of dra-driver-cpu, as the
// claim that a Request without CPUs becomes, but for the order of the GPUs of several
// containers, and how many CPUs that is; the claim itself if it asks for none. Whoever looks
// for GPUs alone uses that. A claim for nothing else has no requests then.
func WithoutCPUs(claim *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, int64) {
	var amount int64
	for _, r := range claim.Spec.Devices.Requests {
		amount += cpusOf(r)
	}
	if amount == 0 {
		return claim, 0
	}
	without := claim.DeepCopy()
	spec := &without.Spec.Devices
	spec.Requests = slices.DeleteFunc(spec.Requests, func(r resourceapi.DeviceRequest) bool { return cpusOf(r) > 0 })
	if claim.Labels[v1alpha1.LabelLegacy] == "true" {
		for i := range spec.Requests {
			anyOf(&spec.Requests[i])
		}
	}
	pruneConstraints(spec)
	return without, amount
}

// pruneConstraints takes from the constraints of a claim the requests that it does not have any more, and those
// constraints that are of no others.
func pruneConstraints(spec *resourceapi.DeviceClaim) {
	left := map[string]bool{}
	for _, r := range spec.Requests {
		left[r.Name] = true
		for _, alternative := range r.FirstAvailable {
			left[resourceclaim.CreateSubRequestRef(r.Name, alternative.Name)] = true
		}
	}
	spec.Constraints = slices.DeleteFunc(spec.Constraints, func(c resourceapi.DeviceConstraint) bool {
		return len(c.Requests) > 0 && !slices.ContainsFunc(c.Requests, func(name string) bool { return left[name] })
	})
	for i := range spec.Constraints {
		spec.Constraints[i].Requests = slices.DeleteFunc(spec.Constraints[i].Requests,
			func(name string) bool { return !left[name] })
	}
}

// cpusOf is how many CPUs a request is for; 0 where it is for something else.
func cpusOf(r resourceapi.DeviceRequest) int64 {
	class, count, capacity := "", int64(0), (*resourceapi.CapacityRequirements)(nil)
	switch {
	case r.Exactly != nil:
		class, count, capacity = r.Exactly.DeviceClassName, r.Exactly.Count, r.Exactly.Capacity
	case len(r.FirstAvailable) > 0:
		first := r.FirstAvailable[0]
		class, count, capacity = first.DeviceClassName, first.Count, first.Capacity
	}
	if class != ClassCPUs {
		return 0
	}
	if capacity == nil {
		return max(1, count)
	}
	each := capacity.Requests[CapacityCPUs]
	return max(1, count*each.Value())
}

// anyOf is the reverse of nearOrAny.
func anyOf(r *resourceapi.DeviceRequest) {
	r.FirstAvailable = slices.DeleteFunc(r.FirstAvailable, func(s resourceapi.DeviceSubRequest) bool {
		return strings.HasPrefix(s.Name, nearPrefix)
	})
	if len(r.FirstAvailable) != 1 {
		return
	}
	s := r.FirstAvailable[0]
	r.FirstAvailable = nil
	r.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: s.DeviceClassName, Selectors: s.Selectors,
		AllocationMode: s.AllocationMode, Count: s.Count, Capacity: s.Capacity}
}

// claimCPUs begins the names of a pod's claims for CPUs alone; the index follows that its container
// had when the policy looked at it. A webhook may have moved the container since.
const claimCPUs = ClaimName + "-cpus-"

// IsForCPUs reports whether the reference of a pod's container to a claim is for CPUs.
func IsForCPUs(reference corev1.ResourceClaim) bool {
	return reference.Name == ClaimName && reference.Request == requestCPUs || strings.HasPrefix(reference.Name, claimCPUs)
}
