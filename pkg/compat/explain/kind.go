package explain

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpushare/dra-driver-gpushare/pkg/compat/cards"
	devslices "github.com/gpushare/dra-driver-gpushare/pkg/slices"
)

// kind is what nodes offer that are alike, and what was found out about it.
type kind struct {
	devices  []resourceapi.Device
	counters []resourceapi.CounterSet
	// outcomes holds what an expression gives for each of the devices, where that
	// is known.
	outcomes map[string][]*outcome
}

// outcome is what an expression gives for a device.
type outcome struct {
	match bool
	err   error
}

// newKind decodes what the slices of a node's pool offer; with UUIDs if the cards
// are to be told apart.
func newKind(pool []*cards.Slice, withUUIDs bool) (*kind, error) {
	k := &kind{outcomes: map[string][]*outcome{}}
	for _, slice := range pool {
		devices, counters, err := slice.Shape.Offer()
		if err != nil {
			return nil, err
		}
		for i := range devices {
			if withUUIDs && slice.UUIDs[i] != "" {
				devices[i].Attributes[devslices.AttrUUID] = resourceapi.DeviceAttribute{StringValue: &slice.UUIDs[i]}
			}
		}
		k.devices = append(k.devices, devices...)
		k.counters = append(k.counters, counters...)
	}
	return k, nil
}

// has says whether any device has a taint of the key.
func (k *kind) has(taint string) bool {
	return slices.ContainsFunc(k.devices, func(d resourceapi.Device) bool {
		return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == taint })
	})
}

// selectorError is a selector that cannot be evaluated for a device.
type selectorError struct {
	expression, device string
	err                error
}

// choose returns those of the devices, by their indices, that all expressions
// match. As in the scheduler, a later expression is not evaluated for a device
// that an earlier one does not match. failed is the first that cannot be
// evaluated; such devices are left out.
func (k *kind) choose(ctx context.Context, compiled *cel.Cache, among []int, expressions []string) (chosen []int, failed *selectorError) {
	for _, i := range among {
		matches := true
		for _, expression := range expressions {
			result := k.outcome(ctx, compiled, i, expression)
			if result.err != nil && failed == nil {
				failed = &selectorError{expression: expression, device: k.devices[i].Name, err: result.err}
			}
			if matches = result.match && result.err == nil; !matches {
				break
			}
		}
		if matches {
			chosen = append(chosen, i)
		}
	}
	return chosen, failed
}

func (k *kind) outcome(ctx context.Context, compiled *cel.Cache, device int, expression string) *outcome {
	known := k.outcomes[expression]
	if known == nil {
		known = make([]*outcome, len(k.devices))
		k.outcomes[expression] = known
	}
	if known[device] == nil {
		known[device] = evaluate(ctx, compiled, &k.devices[device], expression)
	}
	return known[device]
}

func evaluate(ctx context.Context, compiled *cel.Cache, d *resourceapi.Device, expression string) *outcome {
	program := compiled.GetOrCompile(expression)
	if program.Error != nil {
		return &outcome{err: fmt.Errorf("it does not compile: %w", program.Error)}
	}
	match, _, err := program.DeviceMatches(ctx, cel.Device{
		Driver: devslices.DriverName, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	return &outcome{match: match, err: err}
}

// all are the indices of all devices.
func (k *kind) all() []int {
	indices := make([]int, len(k.devices))
	for i := range indices {
		indices[i] = i
	}
	return indices
}

// published makes slices of a kind again, for the scheduler's allocator. They have
// no taints: those come and go.
func (k *kind) published(node string) []*resourceapi.ResourceSlice {
	devices := slices.Clone(k.devices)
	for i := range devices {
		devices[i].Taints = nil
	}
	pool := resourceapi.ResourcePool{Name: devslices.PoolName(node), ResourceSliceCount: 1}
	if len(k.counters) > 0 {
		pool.ResourceSliceCount++
	}
	out := []*resourceapi.ResourceSlice{{
		ObjectMeta: metav1.ObjectMeta{Name: "devices"},
		Spec:       resourceapi.ResourceSliceSpec{Driver: devslices.DriverName, NodeName: &node, Pool: pool, Devices: devices},
	}}
	if len(k.counters) > 0 {
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "counters"},
			Spec:       resourceapi.ResourceSliceSpec{Driver: devslices.DriverName, NodeName: &node, Pool: pool, SharedCounters: k.counters},
		})
	}
	return out
}
