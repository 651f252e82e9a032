// SPDX-License-Identifier: Apache-2.0

// Package quota is how a ResourceQuota counts the GiB and the percent of compute of shares,
// which it cannot by itself: it counts the devices of claims by their class. It is pure.
//
// With the option deployments/options/quota the API server adds alternatives to requests
// for shares, of classes that select no device, for as many devices as the share has GiB
// and percent. Counted says what becomes of a claim there, Usage what a quota charges for
// it, and Room whether a quota lets it be created.
package quota

import (
	"regexp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
)

// The classes that select no device (deviceclasses/quota).
const (
	ClassGiB     = "gib.quota.gpu.aliyun.com"
	ClassPercent = "percent.quota.gpu.aliyun.com"
)

// The lines of a quota as on ACK. The classes have these resources for their extended ones: Kubernetes charges both.
const (
	LineMemory = "requests.aliyun.com/gpu-mem"
	LineCores  = "requests.aliyun.com/gpu-core.percentage"
)

// IsClass reports whether a DeviceClass is one of those by which amounts are counted.
func IsClass(name string) bool { return name == ClassGiB || name == ClassPercent }

// The names of the alternatives that are added.
const (
	wayGiB     = "quota-gib"
	wayPercent = "quota-percent"
)

// mostWays is how many alternatives a request may have beside the two that are added.
const mostWays = resourceapi.FirstAvailableDeviceRequestMaxSize - 2

// Counted is what the option makes of a claim's requests in a namespace with a quota of
// amounts. It leaves alone what is no share, and what a policy refuses.
func Counted(requests []resourceapi.DeviceRequest) []resourceapi.DeviceRequest {
	out := make([]resourceapi.DeviceRequest, 0, len(requests))
	for _, r := range requests {
		out = append(out, counted(r))
	}
	return out
}

func counted(r resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	ways := waysOf(r)
	var gib, percent int64
	shares := false
	for _, w := range ways {
		if shareClass.MatchString(w.DeviceClassName) {
			shares = true
			gib, percent = max(gib, devicesOf(w)*memoryGiB(w)), max(percent, devicesOf(w)*cores(w))
		}
	}
	if !shares || len(ways) > mostWays || slices.ContainsFunc(ways, func(w resourceapi.DeviceSubRequest) bool {
		return w.Name == wayGiB || w.Name == wayPercent
	}) {
		return r
	}
	for _, added := range []resourceapi.DeviceSubRequest{
		{Name: wayGiB, DeviceClassName: ClassGiB, Count: gib},
		{Name: wayPercent, DeviceClassName: ClassPercent, Count: percent},
	} {
		if added.Count > 0 {
			added.AllocationMode = resourceapi.DeviceAllocationModeExactCount
			ways = append(ways, added)
		}
	}
	return resourceapi.DeviceRequest{Name: r.Name, FirstAvailable: ways}
}

// waysOf are the alternatives that the author of a request wrote; none for that of an
// administrator.
func waysOf(r resourceapi.DeviceRequest) []resourceapi.DeviceSubRequest {
	var ways []resourceapi.DeviceSubRequest
	if e := r.Exactly; e != nil && !ptr.Deref(e.AdminAccess, false) {
		ways = append(ways, resourceapi.DeviceSubRequest{
			Name: "share", DeviceClassName: e.DeviceClassName, Selectors: e.Selectors, AllocationMode: e.AllocationMode,
			Count: e.Count, Tolerations: e.Tolerations, Capacity: e.Capacity, DerivedAttributes: e.DerivedAttributes,
		})
	}
	for _, w := range r.FirstAvailable {
		if !IsClass(w.DeviceClassName) {
			ways = append(ways, w)
		}
	}
	return ways
}

// shareClass is of classes that give shares alone. A model's class of any mode may give a whole GPU, and is refused.
var shareClass = regexp.MustCompile(`^(memory|(share|cgpu|core-mem|mps)([.][a-z0-9-]+)?)[.]gpu[.]aliyun[.]com$`)

// devicesOf is how many devices a quota counts.
func devicesOf(w resourceapi.DeviceSubRequest) int64 {
	if w.AllocationMode == resourceapi.DeviceAllocationModeAll {
		return resourceapi.AllocationResultsMaxSize
	}
	if w.Count == 0 && w.AllocationMode == "" {
		return 1 // The API server's default.
	}
	return w.Count
}

// memoryGiB is what a share takes of a GPU's memory; without an amount it is 1.
func memoryGiB(w resourceapi.DeviceSubRequest) int64 {
	memory, ok := amount(w, v1alpha1.CapMemory)
	bytes, whole := memory.AsInt64()
	if !ok || !whole {
		return 1
	}
	return (bytes + devices.GiB - 1) / devices.GiB
}

func cores(w resourceapi.DeviceSubRequest) int64 {
	asked, _ := amount(w, v1alpha1.CapCores)
	percent, _ := asked.AsInt64()
	return percent
}

func amount(w resourceapi.DeviceSubRequest, name resourceapi.QualifiedName) (resource.Quantity, bool) {
	if w.Capacity == nil {
		return resource.Quantity{}, false
	}
	asked, ok := w.Capacity.Requests[name]
	return asked, ok
}

// What a quota's names begin or end with, and that of the number of claims.
const (
	suffixDevices  = ".deviceclass.resource.k8s.io/devices"
	prefixRequests = "requests.deviceclass.resource.kubernetes.io/"
	nameClaims     = "count/resourceclaims.resource.k8s.io"
	// The extended resource of a class counts its devices, too.
	prefixExtended = "requests."
	nvidiaGPU      = "nvidia.com/gpu"
	classExclusive = "exclusive.gpu.aliyun.com"
	suffixProfile  = ".mig.gpu.aliyun.com"
)

// Usage is what claims are charged: devices by class, and their number.
type Usage struct {
	claims  int64
	classes map[string]int64
}

// Add charges a claim with these requests: of alternatives the most devices of each class.
func (u *Usage) Add(requests []resourceapi.DeviceRequest) {
	if u.classes == nil {
		u.classes = map[string]int64{}
	}
	u.claims++
	for _, r := range requests {
		most := map[string]int64{}
		if e := r.Exactly; e != nil {
			most[e.DeviceClassName] = devicesOf(resourceapi.DeviceSubRequest{AllocationMode: e.AllocationMode, Count: e.Count})
		}
		for _, w := range r.FirstAvailable {
			most[w.DeviceClassName] = max(most[w.DeviceClassName], devicesOf(w))
		}
		for class, n := range most {
			u.classes[class] += n
		}
	}
}

// Of is what is charged under a name of a ResourceQuota; 0 for names that are about
// something else.
func (u *Usage) Of(name string) int64 {
	if name == nameClaims {
		return u.claims
	}
	return u.classes[classOf(name)]
}

// classOf is the class whose devices a name of a ResourceQuota counts; empty where it counts
// something else.
func classOf(name string) string {
	if class, is := strings.CutSuffix(name, suffixDevices); is {
		return class
	}
	if class, is := strings.CutPrefix(name, prefixRequests); is {
		return class
	}
	switch name {
	case LineMemory:
		return ClassGiB
	case LineCores:
		return ClassPercent
	case prefixExtended + nvidiaGPU:
		return classExclusive
	}
	if profile, is := strings.CutPrefix(name, prefixExtended+v1alpha1.MIGResourcePrefix); is {
		return profile + suffixProfile
	}
	return ""
}
