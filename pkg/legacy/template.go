// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
)

// DeviceClasses of the requests (deviceclasses/).
const (
	classMemory     = "memory.gpu.aliyun.com"
	classCoreMemory = "core-mem.gpu.aliyun.com"
	classSingle     = "single.topology.gpu.aliyun.com"
	classLinked     = "linked-%d.topology.gpu.aliyun.com"
	classExclusive  = "exclusive.gpu.aliyun.com"
)

// hasLinkedClass is for which numbers of cards there is a class of linked sets.
func hasLinkedClass(cards int64) bool { return cards == 2 || cards == 4 || cards == 8 }

// byCard says whether each container has a request per card. One request for several
// cards cannot be bound, card by card, to that of another container.
func (r Request) byCard() bool { return r.Count > 1 && len(r.Containers) > 1 }

// Template is the ResourceClaimTemplate for the request: one request per container,
// named after it; where several containers share several cards, one per container
// and card, named NAME-card0, NAME-card1 …. The template and the claims made of it have Label.
// Claims for CPUs alone do not: there is no GPU in them. Nor do those for nvidia.com/gpu: on
// ACK that has no annotations and no words of its own.
func (r Request) Template(namespace string) *resourceapi.ResourceClaimTemplate {
	template := &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: r.Name(),
			Labels: map[string]string{v1alpha1.LabelLegacy: "true"}},
	}
	if r.Kind == CPUs {
		template.Spec.Spec.Devices = cpusAlone(r.Containers[0])
		return template
	}
	if r.Kind != NVIDIA {
		template.Spec.Labels = map[string]string{v1alpha1.LabelLegacy: "true"}
	}
	template.Spec.Spec.Devices = r.devices()
	if cpus := r.nearby(); cpus > 0 {
		addCPUs(&template.Spec.Spec.Devices, cpus)
	}
	return template
}

func (r Request) devices() resourceapi.DeviceClaim {
	if r.byCard() {
		return r.devicesByCard()
	}
	var claim resourceapi.DeviceClaim
	for _, c := range r.Containers {
		switch r.Kind {
		case Cards:
			claim.Requests = append(claim.Requests, cards(c))
		case NVIDIA:
			claim.Requests = append(claim.Requests, resourceapi.DeviceRequest{Name: c.Name,
				Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: classExclusive,
					AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: c.Cards}})
		default:
			claim.Requests = append(claim.Requests, r.share(c.Name, c, r.Count))
		}
	}
	if !r.wholeGPUs() && len(r.Containers) > 1 {
		claim.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: uuid()}}
	}
	return claim
}

// devicesByCard binds the containers' requests for a card to each other, and the
// first container's to different cards. The scheduler serves requests in their
// order: those of one card follow each other, so that it finds out early that a card
// has no room for all containers.
func (r Request) devicesByCard() resourceapi.DeviceClaim {
	var claim resourceapi.DeviceClaim
	names := map[string][]string{}
	var first []string
	for card := range r.Count {
		var ofCard []string
		for _, c := range r.Containers {
			name := fmt.Sprintf("%s-card%d", c.Name, card)
			claim.Requests = append(claim.Requests, r.share(name, c, 1))
			ofCard, names[c.Name] = append(ofCard, name), append(names[c.Name], name)
		}
		claim.Constraints = append(claim.Constraints, resourceapi.DeviceConstraint{Requests: ofCard, MatchAttribute: uuid()})
		first = append(first, ofCard[0])
	}
	claim.Constraints = append(claim.Constraints, resourceapi.DeviceConstraint{Requests: first, DistinctAttribute: uuid()})
	for _, c := range r.Containers {
		claim.Config = append(claim.Config, combined(c.Name, names[c.Name]))
	}
	return claim
}

func uuid() *resourceapi.FullyQualifiedName {
	name := resourceapi.FullyQualifiedName(v1alpha1.DriverName + "/" + string(v1alpha1.AttrUUID))
	return &name
}

// together says that the requests are for one container.
func combined(container string, requests []string) resourceapi.DeviceClaimConfiguration {
	// A container's name needs no escaping.
	parameters := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"container":%q}`, v1alpha1.APIVersion, v1alpha1.Kind, container)
	return resourceapi.DeviceClaimConfiguration{Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: v1alpha1.DriverName,
			Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
	}}
}

// share asks for the container's part of one card, of as many cards as count says.
func (r Request) share(name string, c Container, count int64) resourceapi.DeviceRequest {
	amounts := map[resourceapi.QualifiedName]resource.Quantity{
		v1alpha1.CapMemory: *resource.NewQuantity(c.MemoryGiB/r.Count*devices.GiB, resource.BinarySI),
	}
	class := classMemory
	if r.Kind == CoreMemory {
		class = classCoreMemory
		amounts[v1alpha1.CapCores] = *resource.NewQuantity(c.CoresPercent/r.Count, resource.DecimalSI)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class,
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		// The devices of one request are different ones, and so different cards: of a
		// card that is offered in several modes only one is to be had.
		Count:     count,
		Capacity:  &resourceapi.CapacityRequirements{Requests: amounts},
		Selectors: r.selectors(),
	}}
}

func (r Request) selectors() []resourceapi.DeviceSelector {
	var selectors []resourceapi.DeviceSelector
	add := func(expression string) {
		selectors = append(selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	if r.Count > 1 {
		add(notMPS())
	}
	if r.Whole {
		var total int64
		for _, c := range r.Containers {
			total += c.MemoryGiB / r.Count
		}
		// Who is granted all of a card's memory is alone on it. Of a card that gives
		// less than it has, somebody else holds the rest.
		add(fmt.Sprintf(`device.capacity[%q].%s.compareTo(quantity("%dGi")) == 0 && device.attributes[%[1]q].%[4]s / 1024 `+
			`== %[3]d`,
			v1alpha1.DriverName, v1alpha1.CapMemory, total, v1alpha1.AttrMemoryMiB))
	}
	return selectors
}

// notMPS keeps requests for several cards from cards with MPS: a process is the client
// of one MPS daemon, by the one pipe directory in its environment, and a daemon has one
// card.
func notMPS() string {
	return fmt.Sprintf(`device.attributes[%q].%s != "mps"`, v1alpha1.DriverName, v1alpha1.AttrIsolation)
}

// AlsoMPS returns a copy of a claim that would take cards with MPS, too; false where
// the claim does not leave them out, as those of a Request for several cards do.
func AlsoMPS(claim *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, bool) {
	other, is := claim.DeepCopy(), false
	without := func(selectors []resourceapi.DeviceSelector) []resourceapi.DeviceSelector {
		left := slices.DeleteFunc(selectors, func(s resourceapi.DeviceSelector) bool {
			return s.CEL != nil && s.CEL.Expression == notMPS()
		})
		is = is || len(left) < len(selectors)
		return left
	}
	for _, request := range other.Spec.Devices.Requests {
		if request.Exactly != nil {
			request.Exactly.Selectors = without(request.Exactly.Selectors)
		}
		// A ResourceQuota of amounts makes alternatives of requests for shares.
		for i := range request.FirstAvailable {
			request.FirstAvailable[i].Selectors = without(request.FirstAvailable[i].Selectors)
		}
	}
	return other, is
}

// cards asks for the best-linked set that is free; where none is published, for
// single cards.
func cards(c Container) resourceapi.DeviceRequest {
	exact := resourceapi.DeviceAllocationModeExactCount
	if !hasLinkedClass(c.Cards) {
		return resourceapi.DeviceRequest{Name: c.Name, Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: classSingle, AllocationMode: exact, Count: c.Cards,
		}}
	}
	return resourceapi.DeviceRequest{Name: c.Name, FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: linked, DeviceClassName: fmt.Sprintf(classLinked, c.Cards), AllocationMode: exact, Count: 1},
		{Name: anyGPU, DeviceClassName: classSingle, AllocationMode: exact, Count: c.Cards},
	}}
}

// IsForNVIDIA says whether a claim is one that a pod's limits of nvidia.com/gpu became.
func IsForNVIDIA(claim *resourceapi.ResourceClaim) bool {
	return claim.Annotations[resourceapi.PodResourceClaimAnnotation] == ClaimNVIDIA
}
