// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
)

// Request is a request of a claim, or one alternative of it.
type Request struct {
	// Name is the request's, or request/alternative, as the API refers to it.
	Name        string
	Class       string
	Selectors   []string
	Count       int64
	Capacity    map[resourceapi.QualifiedName]resource.Quantity
	Tolerations []resourceapi.DeviceToleration
	// All is whether all devices that match are asked for, Admin whether for access beside
	// those that hold them.
	All, Admin bool
}

// Alternatives are those of a request, in their order; a request without any is
// one.
func Alternatives(r *resourceapi.DeviceRequest) []Request {
	if e := r.Exactly; e != nil {
		return []Request{{
			Name: r.Name, Class: e.DeviceClassName, Selectors: Conditions(e.Selectors), Count: least(e.AllocationMode, e.Count),
			Capacity: amounts(e.Capacity), Tolerations: e.Tolerations,
			All: e.AllocationMode == resourceapi.DeviceAllocationModeAll, Admin: ptr.Deref(e.AdminAccess, false),
		}}
	}
	var out []Request
	for _, s := range r.FirstAvailable {
		out = append(out, Request{
			Name: resourceclaim.CreateSubRequestRef(r.Name, s.Name), Class: s.DeviceClassName,
			Selectors: Conditions(s.Selectors),
			Count:     least(s.AllocationMode, s.Count), Capacity: amounts(s.Capacity), Tolerations: s.Tolerations,
			All: s.AllocationMode == resourceapi.DeviceAllocationModeAll,
		})
	}
	return out
}

// Served are those alternatives of a request that could ever be chosen: some are there to
// be counted by a ResourceQuota.
func Served(r *resourceapi.DeviceRequest) []Request {
	return slices.DeleteFunc(Alternatives(r), func(r Request) bool { return quota.IsClass(r.Class) })
}

// least is how many devices are asked for at least; "all" is some.
func least(m resourceapi.DeviceAllocationMode, count int64) int64 {
	if m == resourceapi.DeviceAllocationModeAll {
		return 1
	}
	return max(count, 1)
}

// Conditions are the CEL expressions of selectors.
func Conditions(selectors []resourceapi.DeviceSelector) []string {
	var out []string
	for _, s := range selectors {
		if s.CEL != nil {
			out = append(out, s.CEL.Expression)
		}
	}
	return out
}

func amounts(c *resourceapi.CapacityRequirements) map[resourceapi.QualifiedName]resource.Quantity {
	if c == nil {
		return nil
	}
	return c.Requests
}

// OfDriver reports whether a request is for devices of the driver: by the name of its class, as there may be no such
// class, which is nil then, or by what the class or the request selects.
func (r Request) OfDriver(class *resourceapi.DeviceClass) bool {
	if strings.HasSuffix(r.Class, "."+v1alpha1.DriverName) {
		return true
	}
	selected := slices.Clone(r.Selectors)
	if class != nil {
		selected = append(selected, Conditions(class.Spec.Selectors)...)
	}
	return slices.ContainsFunc(selected, func(e string) bool {
		return strings.Contains(e, `"`+v1alpha1.DriverName+`"`) || strings.Contains(e, `'`+v1alpha1.DriverName+`'`)
	})
}

// Most is the most of a capacity that one claim can be given of a device that
// nobody else uses; false where the device does not have the capacity.
func Most(d *resourceapi.Device, name resourceapi.QualifiedName) (resource.Quantity, bool) {
	capacity, ok := d.Capacity[name]
	if !ok {
		return resource.Quantity{}, false
	}
	if p := capacity.RequestPolicy; p != nil && p.ValidRange != nil && p.ValidRange.Max != nil &&
		p.ValidRange.Max.Cmp(capacity.Value) < 0 {
		return *p.ValidRange.Max, true
	}
	return capacity.Value, true
}

// Short is the first capacity, by name, of which a device has less than is asked
// for, even if nobody else uses it; empty if there is none. The scheduler rounds
// amounts up, never down.
func (r Request) Short(d *resourceapi.Device) resourceapi.QualifiedName {
	for _, name := range slices.Sorted(maps.Keys(r.Capacity)) {
		asked := r.Capacity[name]
		if has, ok := Most(d, name); !ok || asked.Cmp(has) > 0 {
			return name
		}
	}
	return ""
}

// means reports whether a request for all devices is also for one that offers so much, which its selectors match: the
// scheduler leaves out those that offer too little, whoever has the rest.
func (r Request) means(offered map[resourceapi.QualifiedName]resourceapi.DeviceCapacity) bool {
	for name, capacity := range offered {
		if need := needed(capacity, r, name); need.Cmp(capacity.Value) > 0 {
			return false
		}
	}
	return true
}

// Untolerated is the first taint that keeps the request off a device.
func (r Request) Untolerated(d *resourceapi.Device) (resourceapi.DeviceTaint, bool) {
	for _, taint := range d.Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule && taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		if !slices.ContainsFunc(r.Tolerations, func(t resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(t, taint)
		}) {
			return taint, true
		}
	}
	return resourceapi.DeviceTaint{}, false
}

// trivial reports whether there is nothing that could stand in each other's way.
func trivial(claims []*resourceapi.ResourceClaim) bool {
	if len(claims) != 1 || len(claims[0].Spec.Devices.Constraints) > 0 || len(claims[0].Spec.Devices.Requests) != 1 {
		return false
	}
	for _, r := range Served(&claims[0].Spec.Devices.Requests[0]) {
		if r.Count == 1 {
			return true
		}
	}
	return false
}

// ClassOf finds the DeviceClass by which Kubernetes hands out an extended resource, nil for none. A quota counts by
// some that have such a resource and select nothing.
func ClassOf(classes []*resourceapi.DeviceClass) func(corev1.ResourceName) *resourceapi.DeviceClass {
	byResource := extendedresourcecache.NewExtendedResourceCache(logr.Discard())
	for _, class := range classes {
		if !quota.IsClass(class.Name) {
			byResource.OnAdd(class, true)
		}
	}
	return byResource.GetDeviceClass
}

// ClaimForExtended is the claim that the scheduler makes for the extended resources of a pod
// which a DeviceClass hands out, such as nvidia.com/gpu; nil if it asks for none. classOf is the
// class that does, nil for none. The API server has no such claim before it is allocated. Its
// requests are named by what they are of.
func ClaimForExtended(
	pod *corev1.Pod, classOf func(corev1.ResourceName) *resourceapi.DeviceClass,
) *resourceapi.ResourceClaim {
	var requests []resourceapi.DeviceRequest
	for _, name := range ExtendedOf(pod, classOf) {
		for _, a := range amountsOf(pod, name) {
			requests = append(requests, resourceapi.DeviceRequest{Name: string(name) + " of container " + a.container,
				Exactly: &resourceapi.ExactDeviceRequest{
					DeviceClassName: classOf(name).Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: a.count,
				}})
		}
	}
	if len(requests) == 0 {
		return nil
	}
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: nameOfScheduler,
			Annotations: map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"},
		},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
}

// nameOfScheduler is no name that the API server takes: by their annotation everybody's claims
// could pass for that of the scheduler.
const nameOfScheduler = "of the scheduler's own"

// OfScheduler reports whether a claim is that of ClaimForExtended.
func OfScheduler(claim *resourceapi.ResourceClaim) bool { return claim.Name == nameOfScheduler }

// ExtendedOf are the extended resources that a pod requests and a DeviceClass hands out, by name.
func ExtendedOf(
	pod *corev1.Pod, classOf func(corev1.ResourceName) *resourceapi.DeviceClass,
) []corev1.ResourceName {
	names := map[corev1.ResourceName]bool{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range c.Resources.Requests {
			if Extended(name) && classOf(name) != nil {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// amountOfOne is what one container asks for.
type amountOfOne struct {
	container string
	count     int64
}

// amountsOf are the requests that the scheduler makes of a resource: one for each
// container that runs as long as the pod, and one for what an init container needs
// beyond what those after it are given.
func amountsOf(pod *corev1.Pod, name corev1.ResourceName) []amountOfOne {
	of := func(c *corev1.Container) int64 {
		amount := c.Resources.Requests[name]
		return amount.Value()
	}
	var out []amountOfOne
	var sum int64
	for i := range pod.Spec.Containers {
		if n := of(&pod.Spec.Containers[i]); n > 0 {
			out, sum = append(out, amountOfOne{pod.Spec.Containers[i].Name, n}), sum+n
		}
	}
	var most amountOfOne
	for i := len(pod.Spec.InitContainers) - 1; i >= 0; i-- {
		c := &pod.Spec.InitContainers[i]
		n := of(c)
		switch {
		case n == 0:
		case c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways:
			out, sum = append(out, amountOfOne{c.Name, n}), sum+n
		case n-sum > most.count:
			most = amountOfOne{c.Name, n - sum}
		}
	}
	if most.count > 0 {
		out = append(out, most)
	}
	return out
}

// Extended reports whether a resource is one that Kubernetes does not know itself, so that
// a device plugin or a DeviceClass has to hand it out.
func Extended(name corev1.ResourceName) bool {
	domain, _, is := strings.Cut(string(name), "/")
	return is && (!strings.HasSuffix(domain, "kubernetes.io") ||
		strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix) ||
		name == "alpha.kubernetes.io/nvidia-gpu")
}
