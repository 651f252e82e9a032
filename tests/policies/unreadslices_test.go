// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func ofVersion(v string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{VersionValue: &v}
}

func amountOf(value string) *resource.Quantity { return ptr.To(resource.MustParse(value)) }

// withIndex is a slice with a device of this name and index.
func withIndex(name string, index int64) *resourceapi.ResourceSlice {
	return slice(func(s *sliceSpec) {
		s.Devices[0].Name, s.Devices[0].Attributes["index"] = name, number(index)
	})
}

// withPolicy is a slice with a device of whose memory claims take what the policy says.
func withPolicy(policy resourceapi.CapacityRequestPolicy) *resourceapi.ResourceSlice {
	return slice(func(s *sliceSpec) {
		s.Devices[0].AllowMultipleAllocations = ptr.To(true)
		s.Devices[0].Capacity["memory"] = resourceapi.DeviceCapacity{Value: *amountOf("10Gi"), RequestPolicy: &policy}
	})
}

// The token of one node's plugin writes no device by which pods are kept from all nodes: none that the scheduler cannot
// read or count, for it gives up a pod at the first error, and no more than there can be GPUs, all of which it tries.
func TestSlicesKeepNoPodFromOtherNodes(t *testing.T) {
	s := newServer(t)
	const (
		version = " has a version that is not three numbers"
		name    = " has another name than its GPU, with an index up to 63, and its mode, or its linked set, have"
		amount  = "or an amount with an exponent"
	)
	for what, test := range map[string]struct {
		object  *resourceapi.ResourceSlice
		refused string
	}{
		"a version of many digits": {withAttribute("driverVersion", ofVersion("99999999999999999999.0.0")), version},
		"a version of another's":   {withAttribute("example.com/firmware", ofVersion("1.0.0-99999999999999999999")), version},
		"a list of versions": {withAttribute("example.com/firmware",
			resourceapi.DeviceAttribute{VersionValues: []string{"1.0.0"}}), version},
		"an index beyond any node's": {withIndex("gpu-64-topology", 64), "gpu-64-topology" + name},
		"an index below any":         {withIndex("gpu--1-topology", -1), name},
		"another GPU's name":         {withIndex("gpu-1-topology", 0), "gpu-1-topology" + name},
		"a further name":             {withIndex("gpu-0-topology-0", 0), "gpu-0-topology-0" + name},
		"the name of another mode":   {withIndex("gpu-0-share", 0), "gpu-0-share" + name},
		"a share of no GPU": {slice(func(s *sliceSpec) {
			linkedSet(s)
			s.Devices[0].Attributes["mode"], s.Devices[0].AllowMultipleAllocations = text("share"), ptr.To(true)
		}), "gpus-0-1" + name},
		"an amount by default": {withPolicy(resourceapi.CapacityRequestPolicy{Default: amountOf("1Gi")}), ""},
		"less than nothing by default": {withPolicy(resourceapi.CapacityRequestPolicy{Default: amountOf("-1")}),
			amount},
		"less than nothing as a value": {withPolicy(resourceapi.CapacityRequestPolicy{Default: amountOf("0"),
			ValidValues: []resource.Quantity{*amountOf("-1"), *amountOf("0")}}), amount},
		"less than nothing at least": {withPolicy(resourceapi.CapacityRequestPolicy{Default: amountOf("0"),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: amountOf("-1")}}), amount},
		"an exponent by default":  {withPolicy(resourceapi.CapacityRequestPolicy{Default: amountOf("1e999")}), amount},
		"memory with an exponent": {withMemory("1e999"), amount},
		"counters with an exponent": {slice(func(s *sliceSpec) {
			consumes(s)
			s.Pool.ResourceSliceCount = 2
			s.Devices[0].ConsumesCounters[0].Counters["x"] = resourceapi.Counter{Value: *amountOf("1e999")}
		}), amount},
		"a set of counters with an exponent": {slice(func(s *sliceSpec) {
			s.Devices, s.SharedCounters = nil, []resourceapi.CounterSet{{Name: "cards",
				Counters: map[string]resourceapi.Counter{"x": {Value: *amountOf("1e999")}}}}
		}), amount},
	} {
		t.Run(what, func(t *testing.T) {
			expect.Error(t, s.validate(account("other", "gpu-kubelet-plugin", "n1"), test.object, nil), test.refused)
		})
	}
}
