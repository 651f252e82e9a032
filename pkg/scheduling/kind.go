// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
)

// kind is what nodes offer that are alike, and what was found out about it.
type kind struct {
	Devices  []resourceapi.Device
	counters []resourceapi.CounterSet
	// outcomes holds what expressions give for the devices.
	outcomes map[string]*outcomes
}

// outcomes are what one expression gives for the devices of a kind, by their
// indices.
type outcomes struct {
	known []outcome
	errs  map[int]error
}

type outcome uint8

const (
	unknown outcome = iota
	matches
	differs
	fails
)

// newKind decodes what the slices of a node's pool offer; with UUIDs if the cards
// are to be told apart.
func newKind(pool []*view.Slice, withUUIDs bool) (*kind, error) {
	k := &kind{outcomes: map[string]*outcomes{}}
	for _, slice := range pool {
		offer := slice.Shape.Offer
		if withUUIDs {
			offer = slice.Offer
		}
		devices, counters, err := offer()
		if err != nil {
			return nil, err
		}
		for i := range devices {
			restore(&devices[i])
		}
		k.Devices = append(k.Devices, devices...)
		k.counters = append(k.counters, counters...)
	}
	return k, nil
}

// has says whether any device has a taint of the key.
func (k *kind) has(taint string) bool {
	return slices.ContainsFunc(k.Devices, func(d resourceapi.Device) bool {
		return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == taint })
	})
}

// SelectorError is a selector that cannot be evaluated for a device.
type SelectorError struct {
	Expression, Device string
	Err                error
}

// choose returns those of the devices, by their indices, that all expressions
// match. As in the scheduler, a later expression is not evaluated for a device
// that an earlier one does not match. failed is the first that cannot be
// evaluated; such devices are left out. An error is of the limits or the context.
func (k *kind) choose(ctx context.Context, m *Meter, p programs, among []int, expressions []string) (chosen []int,
	failed *SelectorError, err error) {
	for _, i := range among {
		all := true
		for _, expression := range expressions {
			result, why, err := k.outcome(ctx, m, p, i, expression)
			if err != nil {
				return nil, nil, err
			}
			if result == fails && failed == nil {
				failed = &SelectorError{Expression: expression, Device: k.Devices[i].Name, Err: why}
			}
			if all = result == matches; !all {
				break
			}
		}
		if all {
			chosen = append(chosen, i)
		}
	}
	return chosen, failed, nil
}

// outcome evaluates an expression for a device, once. why is what fails; an error is of
// the limits or the context.
func (k *kind) outcome(ctx context.Context, m *Meter, p programs, device int, expression string) (result outcome, why,
	err error) {
	of := k.outcomes[expression]
	if of == nil {
		// Kinds can be there for long, and expressions come and go.
		if len(k.outcomes) >= ExpressionsMost {
			clear(k.outcomes)
		}
		of = &outcomes{known: make([]outcome, len(k.Devices)), errs: map[int]error{}}
		k.outcomes[expression] = of
	}
	if of.known[device] == unknown {
		compiled, err := p.compile(ctx, m, expression)
		if err != nil {
			return unknown, nil, err
		}
		d := &k.Devices[device]
		match, why, err := compiled.matches(ctx, m, cel.Device{
			Driver: v1alpha1.DriverName, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes,
			Capacity: d.Capacity,
		})
		switch {
		case err != nil:
			return unknown, nil, err
		case why != nil:
			of.known[device], of.errs[device] = fails, why
		case match:
			of.known[device] = matches
		default:
			of.known[device] = differs
		}
	}
	return of.known[device], of.errs[device], nil
}

// all are the indices of all devices.
func (k *kind) all() []int {
	indices := make([]int, len(k.Devices))
	for i := range indices {
		indices[i] = i
	}
	return indices
}

// published makes slices of a kind again, for the scheduler's allocator. They have
// no taints: those come and go.
func (k *kind) published(node string) []*resourceapi.ResourceSlice {
	devices := slices.Clone(k.Devices)
	for i := range devices {
		devices[i].Taints = nil
		devices[i].Attributes = view.WithUUID(devices[i].Attributes)
	}
	pool := resourceapi.ResourcePool{Name: v1alpha1.PoolName(node), ResourceSliceCount: 1}
	if len(k.counters) > 0 {
		pool.ResourceSliceCount++
	}
	out := []*resourceapi.ResourceSlice{{
		ObjectMeta: metav1.ObjectMeta{Name: "devices"},
		Spec:       resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, NodeName: &node, Pool: pool, Devices: devices},
	}}
	if len(k.counters) > 0 {
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "counters"},
			Spec: resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, NodeName: &node, Pool: pool,
				SharedCounters: k.counters},
		})
	}
	return out
}
