// SPDX-License-Identifier: Apache-2.0

// Package scheduling says what fits where, and why not, as data; pkg/explain makes words of it.
// Whether claims fit on a node is the scheduler's own allocator's to say, which is set up here
// and nowhere else: whoever asks goes by a Snapshot, in which the cluster's DeviceTaintRules
// count. The package is pure.
package scheduling

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Snapshot is a cluster as its scheduler sees it at one moment. It must not change while it is
// used.
type Snapshot struct {
	Nodes []*corev1.Node
	// Slices and Claims are those of all drivers and namespaces: what is left out is not
	// offered, or not taken. Slices have the taints of rules (WithRules).
	Slices  []*resourceapi.ResourceSlice
	Claims  []*resourceapi.ResourceClaim
	Classes []*resourceapi.DeviceClass
	// Closed says, by node, what keeps the pod that is asked about from nodes beside what they
	// say themselves, such as too little CPU. It may be nil.
	Closed map[string]Closed
}

// byName are the nodes by their names, in the order in which they are looked at.
func (s Snapshot) byName() []*corev1.Node {
	return slices.SortedFunc(slices.Values(s.Nodes),
		func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
}

// WithRules are slices with the taints of the rules that select their devices, as the scheduler
// sees them. What is given is not changed; slices that no rule selects are the same.
func WithRules(
	published []*resourceapi.ResourceSlice, rules []*resourceapi.DeviceTaintRule,
) []*resourceapi.ResourceSlice {
	if len(rules) == 0 {
		return published
	}
	out := slices.Clone(published)
	for i, slice := range out {
		var own *resourceapi.ResourceSlice
		for j := range slice.Spec.Devices {
			for _, rule := range rules {
				if !selects(rule.Spec.DeviceSelector, slice.Spec, slice.Spec.Devices[j].Name) {
					continue
				}
				if own == nil {
					copied := *slice
					own, out[i] = &copied, &copied
					own.Spec.Devices = slices.Clone(slice.Spec.Devices)
				}
				device := &own.Spec.Devices[j]
				device.Taints = append(slices.Clip(device.Taints), rule.Spec.Taint)
			}
		}
	}
	return out
}

// selects says whether a rule is for a device. A selector that says nothing selects all, none
// selects nothing.
func selects(s *resourceapi.DeviceTaintSelector, of resourceapi.ResourceSliceSpec, device string) bool {
	is := func(wanted *string, value string) bool { return wanted == nil || *wanted == value }
	return s != nil && is(s.Driver, of.Driver) && is(s.Pool, of.Pool.Name) && is(s.Device, device)
}
