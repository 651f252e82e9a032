package legacy

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/slices"
)

// DeviceClasses of the requests (deviceclasses/).
const (
	classMemory     = "memory.gpu.aliyun.com"
	classCoreMemory = "core-mem.gpu.aliyun.com"
	classSingle     = "single.topology.gpu.aliyun.com"
	classLinked     = "linked-%d.topology.gpu.aliyun.com"
)

// hasLinkedClass is for which numbers of cards there is a class of linked sets.
func hasLinkedClass(cards int64) bool { return cards == 2 || cards == 4 || cards == 8 }

// Template is the ResourceClaimTemplate for the request: one request per container,
// named after it. The template and the claims made of it have Label.
func (r Request) Template(namespace string) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: r.Name(), Labels: map[string]string{Label: "true"}},
		Spec: resourceapi.ResourceClaimTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{Label: "true"}},
			Spec:       resourceapi.ResourceClaimSpec{Devices: r.devices()},
		},
	}
}

func (r Request) devices() resourceapi.DeviceClaim {
	var claim resourceapi.DeviceClaim
	for _, c := range r.Containers {
		if r.Kind == Cards {
			claim.Requests = append(claim.Requests, cards(c))
		} else {
			claim.Requests = append(claim.Requests, r.share(c))
		}
	}
	if r.Kind != Cards && len(r.Containers) > 1 {
		uuid := resourceapi.FullyQualifiedName(slices.DriverName + "/" + string(slices.AttrUUID))
		claim.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &uuid}}
	}
	return claim
}

func (r Request) share(c Container) resourceapi.DeviceRequest {
	amounts := map[resourceapi.QualifiedName]resource.Quantity{
		slices.CapMemory: *resource.NewQuantity(c.MemoryGiB/r.Count*slices.GiB, resource.BinarySI),
	}
	class := classMemory
	if r.Kind == CoreMemory {
		class = classCoreMemory
		amounts[slices.CapCores] = *resource.NewQuantity(c.CoresPercent/r.Count, resource.DecimalSI)
	}
	return resourceapi.DeviceRequest{Name: c.Name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class,
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		// The devices of one request are different ones, and so different cards: of a
		// card that is offered in several modes only one is to be had.
		Count:     r.Count,
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
		// A process is the client of one MPS daemon, which has one card.
		add(fmt.Sprintf(`device.attributes[%q].%s != "mps"`, slices.DriverName, slices.AttrIsolation))
	}
	if r.Whole {
		var total int64
		for _, c := range r.Containers {
			total += c.MemoryGiB / r.Count
		}
		// Who is granted all of a card's memory is alone on it.
		add(fmt.Sprintf(`device.capacity[%q].%s.compareTo(quantity("%dGi")) == 0`, slices.DriverName, slices.CapMemory, total))
	}
	return selectors
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
		{Name: "linked", DeviceClassName: fmt.Sprintf(classLinked, c.Cards), AllocationMode: exact, Count: 1},
		{Name: "any", DeviceClassName: classSingle, AllocationMode: exact, Count: c.Cards},
	}}
}
