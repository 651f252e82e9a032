// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"cmp"
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

// hasLinkedClass is for which numbers of GPUs there is a class of linked sets.
func hasLinkedClass(gpus int64) bool { return gpus == 2 || gpus == 4 || gpus == 8 }

// byGPU reports whether each container has a request per GPU. One request for several
// GPUs cannot be bound, GPU by GPU, to that of another container.
func (r Request) byGPU() bool { return r.Count > 1 && len(r.Containers) > 1 }

// Template is the ResourceClaimTemplate for the request: one request per container,
// named after it; where several containers share several GPUs, one per container
// and GPU, named NAME-card0, NAME-card1 …. The template and the claims made of it have Label.
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
	if r.byGPU() {
		return r.devicesByGPU()
	}
	var claim resourceapi.DeviceClaim
	if r.wholeGPUs() {
		claim.Requests = r.gpusApart()
		return claim
	}
	for _, c := range r.Containers {
		claim.Requests = append(claim.Requests, r.share(c.Name, c, r.Count))
	}
	switch {
	case len(r.Containers) > 1:
		claim.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: uuid()}}
	case r.Kind == Memory && r.Count > 1:
		claim.Constraints = []resourceapi.DeviceConstraint{oneMode(r.Containers[0].Name)}
	}
	return claim
}

// oneMode has all devices of the requests be of the same mode: while the driver of a dynamic node is an earlier one,
// the class selects a GPU in several.
func oneMode(requests ...string) resourceapi.DeviceConstraint {
	return resourceapi.DeviceConstraint{Requests: requests, MatchAttribute: attribute(v1alpha1.AttrMode)}
}

// devicesByGPU binds the containers' requests for a GPU to each other, and the
// first container's to different GPUs. The scheduler serves requests in their
// order: those of one GPU follow each other, so that it finds out early that a GPU
// has no room for all containers.
//
// To the scheduler the GPUs of a claim are not interchangeable. Where too few have room, it
// would try each assignment, n! of them for n GPUs, while all other pods wait. But any n GPUs can
// be put in an order in which the first has an index of at least n-1, the next of n-2, and so on,
// and it is enough to look for that. Of the GPUs with room these are still the first n.
func (r Request) devicesByGPU() resourceapi.DeviceClaim {
	var claim resourceapi.DeviceClaim
	names := map[string][]string{}
	var all, first []string
	for g := range r.Count {
		var ofGPU []string
		for _, c := range r.Containers {
			request := r.share(fmt.Sprintf("%s-card%d", c.Name, g), c, 1)
			if after := r.Count - 1 - g; after > 0 && len(ofGPU) == 0 {
				request.Exactly.Selectors = append(request.Exactly.Selectors, selector(indexFrom(after)))
			}
			claim.Requests, all = append(claim.Requests, request), append(all, request.Name)
			ofGPU, names[c.Name] = append(ofGPU, request.Name), append(names[c.Name], request.Name)
		}
		claim.Constraints = append(claim.Constraints, resourceapi.DeviceConstraint{Requests: ofGPU, MatchAttribute: uuid()})
		first = append(first, ofGPU[0])
	}
	claim.Constraints = append(claim.Constraints, resourceapi.DeviceConstraint{Requests: first, DistinctAttribute: uuid()})
	if r.Kind == Memory {
		// Each mode would be tried for each GPU otherwise, too.
		claim.Constraints = append(claim.Constraints, oneMode(all...))
	}
	for _, c := range r.Containers {
		claim.Config = append(claim.Config, combined(c.Name, names[c.Name]))
	}
	return claim
}

func uuid() *resourceapi.FullyQualifiedName { return attribute(v1alpha1.AttrUUID) }

func attribute(name resourceapi.QualifiedName) *resourceapi.FullyQualifiedName {
	full := resourceapi.FullyQualifiedName(v1alpha1.DriverName + "/" + string(name))
	return &full
}

// combined says that the requests are for one container.
func combined(container string, requests []string) resourceapi.DeviceClaimConfiguration {
	// A container's name needs no escaping.
	parameters := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"container":%q}`, v1alpha1.APIVersion, v1alpha1.Kind, container)
	return resourceapi.DeviceClaimConfiguration{Requests: requests, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: v1alpha1.DriverName,
			Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
	}}
}

// share asks for the container's part of one GPU, of as many GPUs as count says.
func (r Request) share(name string, c Container, count int64) resourceapi.DeviceRequest {
	amounts := map[resourceapi.QualifiedName]resource.Quantity{
		v1alpha1.CapMemory: *resource.NewQuantity(c.MemoryGiB/r.Count*devices.GiB, resource.BinarySI),
	}
	class := r.memoryClass()
	if r.Kind == CoreMemory {
		class = classCoreMemory
		amounts[v1alpha1.CapCores] = *resource.NewQuantity(c.CoresPercent/r.Count, resource.DecimalSI)
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class,
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		// The devices of one request are different ones, and so different GPUs: of a
		// GPU that is offered in several modes only one is to be had.
		Count:     count,
		Capacity:  &resourceapi.CapacityRequirements{Requests: amounts},
		Selectors: r.selectors(),
	}}
}

func (r Request) selectors() []resourceapi.DeviceSelector {
	selectors := r.chosen()
	if r.Count > 1 {
		selectors = append(selectors, selector(notMPS()))
	}
	if r.Whole {
		var total int64
		for _, c := range r.Containers {
			total += c.MemoryGiB / r.Count
		}
		// Who is granted all of a GPU's memory is alone on it. Of a GPU that gives
		// less than it has, somebody else holds the rest.
		selectors = append(selectors, selector(fmt.Sprintf(
			`device.capacity[%q].?%s.orValue(quantity("0")).compareTo(quantity("%dGi")) == 0`+
				` && device.attributes[%[1]q].?%[4]s.orValue(0) / 1024 == %[3]d`,
			v1alpha1.DriverName, v1alpha1.CapMemory, total, v1alpha1.AttrMemoryMiB)))
	}
	return selectors
}

func selector(expression string) resourceapi.DeviceSelector {
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
}

// indexFrom selects GPUs with an index of at least least.
func indexFrom(least int64) string {
	return fmt.Sprintf(`device.attributes[%q].?%s.orValue(-1) >= %d`, v1alpha1.DriverName, v1alpha1.AttrIndex, least)
}

// notMPS keeps requests for several GPUs from GPUs with MPS: a process is the client
// of one MPS daemon, by the one pipe directory in its environment, and a daemon has one
// GPU.
func notMPS() string {
	return fmt.Sprintf(`device.attributes[%q].?%s.orValue("mps") != "mps"`, v1alpha1.DriverName, v1alpha1.AttrIsolation)
}

// AlsoMPS returns a copy of a claim that would take GPUs with MPS, too; false where
// the claim does not leave them out, as those of a Request for several GPUs do.
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

// gpusApart is a request for each container's own GPUs, those for most GPUs first.
//
// Single GPUs are in an order, as those of devicesByGPU are: whichever of them the containers get, they can be had so
// that those of the last have the lowest indices. So each container leaves as many low indices as those after it need,
// and the scheduler finds out early that there are too few. CPUs near them would be tied to these indices: with CPUs
// the first container stays first, and all indices are as good.
func (r Request) gpusApart() []resourceapi.DeviceRequest {
	containers, ordered := slices.Clone(r.Containers), r.nearby() == 0
	if ordered {
		slices.SortStableFunc(containers, func(a, b Container) int { return cmp.Compare(b.GPUs, a.GPUs) })
	}
	var after int64
	for _, c := range containers {
		after += c.GPUs
	}
	requests := make([]resourceapi.DeviceRequest, 0, len(containers))
	for _, c := range containers {
		after -= c.GPUs
		var selectors []resourceapi.DeviceSelector
		if ordered && after > 0 {
			selectors = append(selectors, selector(indexFrom(after)))
		}
		requests = append(requests, r.newGPUs(c, selectors))
	}
	return requests
}

// newGPUs asks for the best-linked set that is free; where none is published, for single GPUs, which the selectors are
// for.
func (r Request) newGPUs(c Container, selectors []resourceapi.DeviceSelector) resourceapi.DeviceRequest {
	exact, class := resourceapi.DeviceAllocationModeExactCount, classSingle
	if r.Kind == NVIDIA {
		class, selectors = classExclusive, append(selectors, r.chosen()...)
	}
	if r.Kind == NVIDIA || !hasLinkedClass(c.GPUs) {
		return resourceapi.DeviceRequest{Name: c.Name, Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: exact, Count: c.GPUs, Selectors: selectors,
		}}
	}
	return resourceapi.DeviceRequest{Name: c.Name, FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: linked, DeviceClassName: fmt.Sprintf(classLinked, c.GPUs), AllocationMode: exact, Count: 1},
		{Name: anyGPU, DeviceClassName: class, AllocationMode: exact, Count: c.GPUs, Selectors: selectors},
	}}
}

// IsForNVIDIA reports whether a claim is one that a pod's limits of nvidia.com/gpu became.
func IsForNVIDIA(claim *resourceapi.ResourceClaim) bool {
	return claim.Annotations[resourceapi.PodResourceClaimAnnotation] == ClaimNVIDIA
}
