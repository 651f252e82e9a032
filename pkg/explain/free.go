// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
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

// seen is how far a device comes.
type seen struct {
	step   Step
	device *resourceapi.Device
	// name is what it has too little of, and asked and has how much; of a device that is too
	// small, how much there is at all, of one that is full, how much is free.
	name       resourceapi.QualifiedName
	asked, has resource.Quantity
	// taint is what closes it, selector what does not match it.
	taint    resourceapi.DeviceTaint
	selector string
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
	judged map[asked]map[*resourceapi.Device]seen
}

// asked is a request, or an alternative of it.
type asked struct {
	claim *resourceapi.ResourceClaim
	name  string
}

// forget ends the question: the next one has other requests.
func (l *looker) forget() { l.judged = map[asked]map[*resourceapi.Device]seen{} }

func newLooker(s Situation, state structured.AllocatedState, compiled *cel.Cache) *looker {
	l := &looker{state: state, compiled: compiled, classes: s.Classes, offers: map[string]*offer{}}
	l.forget()
	newest := map[string][]*resourceapi.ResourceSlice{}
	for _, slice := range s.Slices {
		node := ptr.Deref(slice.Spec.NodeName, "")
		if slice.Spec.Driver != v1alpha1.DriverName || node == "" || slice.Spec.Pool.Name != v1alpha1.PoolName(node) {
			continue
		}
		known := newest[node]
		switch {
		case len(known) == 0 || slice.Spec.Pool.Generation > known[0].Spec.Pool.Generation:
			newest[node] = []*resourceapi.ResourceSlice{slice}
		case slice.Spec.Pool.Generation == known[0].Spec.Pool.Generation:
			newest[node] = append(known, slice)
		}
	}
	for node, pool := range newest {
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
		if !isSet(d) {
			gpus[gpuOf(d)] = true
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

// gpuOf is how a device's GPU is called; that of a linked set is the set.
func gpuOf(d *resourceapi.Device) string {
	if index := d.Attributes[v1alpha1.AttrIndex].IntValue; index != nil && !isSet(d) {
		return fmt.Sprintf("gpu-%d", *index)
	}
	return d.Name
}

// look says how far a device comes. judged holds what is known of devices for the request.
func (l *looker) look(ctx context.Context, o *offer, d *resourceapi.Device, class *resourceapi.DeviceClass,
	r request, judged map[*resourceapi.Device]seen) seen {
	s, known := judged[d]
	if !known {
		s = l.suits(ctx, d, class, r)
		judged[d] = s
	}
	if s.step != Suits {
		return s
	}
	if !r.admin && l.taken(o, d) {
		s.step = Taken
		return s
	}
	if ptr.Deref(d.AllowMultipleAllocations, false) {
		return l.lookAtAmounts(o, s, r)
	}
	return s
}

// suits says how far a device comes if nobody had anything of it.
func (l *looker) suits(ctx context.Context, d *resourceapi.Device, class *resourceapi.DeviceClass, r request) seen {
	s := seen{step: OtherClass, device: d}
	if _, matches := l.match(ctx, d, expressions(class.Spec.Selectors)); !matches {
		return s
	}
	var matches bool
	if s.selector, matches = l.match(ctx, d, r.selectors); !matches {
		s.step = Unmatched
		return s
	}
	whole := asWhole(d)
	if name := r.short(&whole); name != "" {
		s.step, s.name, s.asked = TooSmall, name, r.capacity[name]
		s.has, _ = most(&whole, name)
		return s
	}
	if taint, closed := r.closed(d); closed {
		s.step, s.taint = Tainted, taint
		return s
	}
	s.step = Suits
	return s
}

// lookAtAmounts goes on with a device that can be shared.
func (l *looker) lookAtAmounts(o *offer, s seen, r request) seen {
	consumed := l.state.AggregatedCapacity[o.id(s.device)]
	unlimited := devices.Unlimited(s.device)
	s.step = Suits
	for _, name := range inOrder(s.device.Capacity) {
		capacity := s.device.Capacity[name]
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
			s.step, s.name, s.asked, s.has = Full, name, need, later
			return s
		case need.Cmp(now) > 0 && s.step == Suits:
			s.step, s.name, s.asked, s.has = HeldBack, name, need, now
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

// needed is what a request takes of a capacity: the scheduler fills in what is not asked for,
// and rounds up what is.
func needed(c resourceapi.DeviceCapacity, r request, name resourceapi.QualifiedName) resource.Quantity {
	asked, is := r.capacity[name]
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
