// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Step is how far a device comes on the way to serving a request; a later one is nearer.
type Step int

// The steps that a device can fail.
const (
	// NoStep: it is not about the driver's devices.
	NoStep Step = iota
	// OtherClass: the class does not select it. Unmatched: a selector of the request does not.
	OtherClass
	Unmatched
	// TooSmall: the whole GPU would not be enough.
	TooSmall
	// Tainted: it takes no new claims.
	Tainted
	// Taken: others hold it as a whole, or in another mode, or a GPU of the linked set.
	Taken
	// Full: too little of it is free. HeldBack: enough is, but not yet, as shares are spread.
	Full
	HeldBack
	// Suits: it serves the request.
	Suits
)

// Seen is how far a device comes.
type Seen struct {
	Step   Step
	Device *resourceapi.Device
	// Name is what it has too little of, and Asked and Has how much; of a device that is too
	// small, how much there is at all, of one that is full, how much is free.
	Name       resourceapi.QualifiedName
	Asked, Has resource.Quantity
	// Taint is what closes it, Selector what does not match it.
	Taint    resourceapi.DeviceTaint
	Selector string
	// FreeSlices is how many memory slices are free of the GPU of a MIG instance that would be made for a claim, and
	// that is Taken.
	FreeSlices int
}

// offer is what the driver offers on a node.
type offer struct {
	pool    string
	devices []*resourceapi.Device
	// left is what devices that nobody has may still consume, by counter set and counter.
	left map[string]map[string]resource.Quantity
	// whole is whether all of it is published.
	whole bool
	gpus  int
}

// looker looks at single devices in the manner of the allocator.
type looker struct {
	state    structured.AllocatedState
	compiled *cel.Cache
	classes  stockallocator.Classes
	offers   map[string]*offer
	// judged is, for each request of the claims that are asked about, what suits said of
	// devices: slices of nodes that are alike may have the same devices.
	judged map[asked]map[*resourceapi.Device]Seen
}

// asked is a request, or an alternative of it.
type asked struct {
	claim *resourceapi.ResourceClaim
	name  string
}

// forget ends the question: the next one has other Requests.
func (l *looker) forget() { l.judged = map[asked]map[*resourceapi.Device]Seen{} }

func newLooker(s Snapshot, state structured.AllocatedState, compiled *cel.Cache) *looker {
	l := &looker{state: state, compiled: compiled, classes: s.Classes, offers: map[string]*offer{}}
	l.forget()
	for node, pool := range devices.Pools(s.Slices) {
		l.offers[node] = l.offerOf(node, pool)
	}
	return l
}

func (l *looker) offerOf(node string, pool []*resourceapi.ResourceSlice) *offer {
	o := &offer{
		pool: v1alpha1.PoolName(node), whole: int64(len(pool)) == pool[0].Spec.Pool.ResourceSliceCount,
		left: map[string]map[string]resource.Quantity{},
	}
	gpus := map[string]bool{}
	for _, slice := range pool {
		for i := range slice.Spec.Devices {
			o.devices = append(o.devices, &slice.Spec.Devices[i])
		}
		for _, set := range slice.Spec.SharedCounters {
			o.left[set.Name] = map[string]resource.Quantity{}
			for name, counter := range set.Counters {
				o.left[set.Name][name] = counter.Value.DeepCopy()
			}
		}
	}
	for _, d := range o.devices {
		switch {
		case IsPlacement(d):
			gpus[d.ConsumesCounters[0].CounterSet] = true // one, however it can be cut
		case !IsSet(d):
			gpus[GPUOf(d)] = true
		}
		if !l.state.AllocatedDevices.Has(o.id(d)) && l.state.AggregatedCapacity[o.id(d)] == nil {
			continue
		}
		for _, consumed := range d.ConsumesCounters {
			for name, counter := range consumed.Counters {
				if left, ok := o.left[consumed.CounterSet][name]; ok {
					left.Sub(counter.Value)
					o.left[consumed.CounterSet][name] = left
				}
			}
		}
	}
	o.gpus = len(gpus)
	return o
}

func (o *offer) id(d *resourceapi.Device) structured.DeviceID {
	return structured.MakeDeviceID(v1alpha1.DriverName, o.pool, d.Name)
}

// GPUOf is how a device's GPU is called; that of a linked set is the set, and of a MIG instance the instance.
func GPUOf(d *resourceapi.Device) string {
	if index := d.Attributes[v1alpha1.AttrIndex].IntValue; index != nil && !IsSet(d) && !IsInstance(d) {
		return fmt.Sprintf("gpu-%d", *index)
	}
	return d.Name
}

// IsPlacement says whether a device is a place for a MIG instance that is made when a claim needs it.
func IsPlacement(d *resourceapi.Device) bool { return IsInstance(d) && len(d.ConsumesCounters) > 0 }

// freeSlices is how many memory slices are free of the GPU of a MIG instance that would be made for a claim.
func (o *offer) freeSlices(d *resourceapi.Device) int {
	free := 0
	if IsPlacement(d) {
		for name, left := range o.left[d.ConsumesCounters[0].CounterSet] {
			if strings.HasPrefix(name, devices.MemorySlice) && left.Sign() > 0 {
				free++
			}
		}
	}
	return free
}

// look says how far a device comes. judged holds what is known of devices for the request.
func (l *looker) look(ctx context.Context, o *offer, d *resourceapi.Device, class *resourceapi.DeviceClass,
	r Request, judged map[*resourceapi.Device]Seen) Seen {
	s, known := judged[d]
	if !known {
		s = l.suits(ctx, d, class, r)
		judged[d] = s
	}
	if s.Step != Suits {
		return s
	}
	if !r.Admin && l.taken(o, d) {
		s.Step, s.FreeSlices = Taken, o.freeSlices(d)
		return s
	}
	if ptr.Deref(d.AllowMultipleAllocations, false) {
		return l.lookAtAmounts(o, s, r)
	}
	return s
}

// suits says how far a device comes if nobody had anything of it.
func (l *looker) suits(ctx context.Context, d *resourceapi.Device, class *resourceapi.DeviceClass, r Request) Seen {
	s := Seen{Step: OtherClass, Device: d}
	if _, matches := l.match(ctx, d, conditions(class.Spec.Selectors)); !matches {
		return s
	}
	var matches bool
	if s.Selector, matches = l.match(ctx, d, r.Selectors); !matches {
		s.Step = Unmatched
		return s
	}
	whole := asWhole(d)
	if name := r.Short(&whole); name != "" {
		s.Step, s.Name, s.Asked = TooSmall, name, r.Capacity[name]
		s.Has, _ = Most(&whole, name)
		return s
	}
	if taint, closed := r.Untolerated(d); closed {
		s.Step, s.Taint = Tainted, taint
		return s
	}
	s.Step = Suits
	return s
}

// lookAtAmounts goes on with a device that can be shared.
func (l *looker) lookAtAmounts(o *offer, s Seen, r Request) Seen {
	consumed := l.state.AggregatedCapacity[o.id(s.Device)]
	unlimited := devices.Unlimited(s.Device)
	s.Step = Suits
	for _, name := range inOrder(s.Device.Capacity) {
		capacity := s.Device.Capacity[name]
		need := needed(capacity, r, name)
		free := func(of resource.Quantity) resource.Quantity {
			left := of.DeepCopy()
			if used := consumed[name]; used != nil {
				left.Sub(*used)
			}
			if left.Sign() < 0 {
				return resource.Quantity{Format: left.Format}
			}
			return left
		}
		now, later := free(capacity.Value), free(unlimited[name].Value)
		switch {
		case need.Cmp(later) > 0:
			s.Step, s.Name, s.Asked, s.Has = Full, name, need, later
			return s
		case need.Cmp(now) > 0 && s.Step == Suits:
			s.Step, s.Name, s.Asked, s.Has = HeldBack, name, need, now
		}
	}
	return s
}

// inOrder are the names of capacities, memory first: it is what most look for.
func inOrder(capacity map[resourceapi.QualifiedName]resourceapi.DeviceCapacity) []resourceapi.QualifiedName {
	names := slices.Sorted(maps.Keys(capacity))
	slices.SortStableFunc(names, func(a, b resourceapi.QualifiedName) int {
		switch {
		case a == b:
			return 0
		case a == v1alpha1.CapMemory:
			return -1
		case b == v1alpha1.CapMemory:
			return 1
		default:
			return 0
		}
	})
	return names
}

// match returns the first expression that does not match a device.
func (l *looker) match(ctx context.Context, d *resourceapi.Device, expressions []string) (string, bool) {
	for _, expression := range expressions {
		compiled := l.compiled.GetOrCompile(expression)
		if compiled.Error != nil {
			return expression, false
		}
		matches, _, err := compiled.DeviceMatches(ctx, cel.Device{
			Driver: v1alpha1.DriverName, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes,
			Capacity: d.Capacity,
		})
		if err != nil || !matches {
			return expression, false
		}
	}
	return "", true
}

// taken says whether others hold a device, or what it consists of.
func (l *looker) taken(o *offer, d *resourceapi.Device) bool {
	if l.state.AllocatedDevices.Has(o.id(d)) {
		return true
	}
	if l.state.AggregatedCapacity[o.id(d)] != nil {
		return false // what it consists of is taken by its own shares
	}
	for _, consumed := range d.ConsumesCounters {
		for name, counter := range consumed.Counters {
			if left := o.left[consumed.CounterSet][name]; left.Cmp(counter.Value) < 0 {
				return true
			}
		}
	}
	return false
}

// asWhole is a device as it would be if nobody had anything of its GPU.
func asWhole(d *resourceapi.Device) resourceapi.Device {
	whole := *d
	whole.Capacity = maps.Clone(devices.Unlimited(d))
	if whole.Capacity != nil {
		restore(&whole)
	}
	return whole
}

// restore gives a device the memory and the compute that its card has. It offers less
// while pods without a claim hold some of it; that is like what claims hold, at which
// nobody looks here either.
func restore(d *resourceapi.Device) {
	memory, ok := d.Capacity[v1alpha1.CapMemory]
	total := d.Attributes[v1alpha1.AttrMemoryMiB].IntValue
	if !ok || total == nil || !ptr.Deref(d.AllowMultipleAllocations, false) {
		return
	}
	units := gpu.GPU{MemoryMiB: *total}.MemoryUnits()
	if memory.Value.CmpInt64(units*devices.GiB) >= 0 {
		return
	}
	memory.Value = *resource.NewQuantity(units*devices.GiB, resource.BinarySI)
	d.Capacity[v1alpha1.CapMemory] = memory
	if cores, ok := d.Capacity[v1alpha1.CapCores]; ok {
		cores.Value = *resource.NewQuantity(wholeCores, resource.DecimalSI)
		d.Capacity[v1alpha1.CapCores] = cores
	}
	if slots, ok := d.Capacity[v1alpha1.CapSlots]; ok && slots.Value.IsZero() {
		slots.Value = *resource.NewQuantity(1, resource.DecimalSI)
		d.Capacity[v1alpha1.CapSlots] = slots
	}
}

// wholeCores is all of a card's compute, in percent.
const wholeCores = 100

// needed is what a request takes of a capacity: the scheduler fills in what is not asked for,
// and rounds up what is.
func needed(c resourceapi.DeviceCapacity, r Request, name resourceapi.QualifiedName) resource.Quantity {
	asked, is := r.Capacity[name]
	policy := ptr.Deref(c.RequestPolicy, resourceapi.CapacityRequestPolicy{})
	switch {
	case !is && policy.Default != nil:
		return *policy.Default
	case !is:
		return c.Value
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		return roundedUp(asked, *policy.ValidRange)
	}
	for _, value := range policy.ValidValues {
		if asked.Cmp(value) <= 0 {
			return value
		}
	}
	return asked
}

func roundedUp(asked resource.Quantity, to resourceapi.CapacityRequestPolicyRange) resource.Quantity {
	if asked.Cmp(*to.Min) <= 0 {
		return *to.Min
	}
	if to.Step == nil || to.Step.Value() <= 0 {
		return asked
	}
	least, step := to.Min.Value(), to.Step.Value()
	steps := (asked.Value() - least + step - 1) / step
	return *resource.NewQuantity(least+steps*step, to.Step.Format)
}

// IsSet says whether a device is several GPUs.
func IsSet(d *resourceapi.Device) bool {
	n := d.Attributes[v1alpha1.AttrGPUCount].IntValue
	return n != nil && *n > 1
}

// IsInstance says whether a device is a MIG instance.
func IsInstance(d *resourceapi.Device) bool {
	return ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, "") == string(mode.MIG)
}
