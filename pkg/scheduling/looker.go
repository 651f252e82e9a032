// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
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

// looker looks at single devices in the manner of the allocator.
type looker struct {
	state    structured.AllocatedState
	compiled *cel.Cache
	classes  stockallocator.Classes
	offers   map[string]*offer
	// slices are those of all drivers.
	slices []*resourceapi.ResourceSlice
	// judged is, for each request of the claims that are asked about, what suits said of
	// devices: slices of nodes that are alike may have the same devices.
	judged map[asked]map[*resourceapi.Device]Seen
}

// asked is a request, or an alternative of it.
type asked struct {
	claim *resourceapi.ResourceClaim
	name  string
}

func newLooker(s Snapshot, state structured.AllocatedState, compiled *cel.Cache) *looker {
	l := &looker{state: state, compiled: compiled, classes: s.Classes, offers: map[string]*offer{},
		slices: s.Slices}
	l.forget()
	for node, pool := range devices.Pools(s.Slices) {
		l.offers[node] = l.offerOf(node, pool)
	}
	return l
}

// forget ends the question: the next one has other Requests.
func (l *looker) forget() { l.judged = map[asked]map[*resourceapi.Device]Seen{} }

// offer is what the driver offers on a node.
type offer struct {
	pool    string
	devices []*resourceapi.Device
	// left is what devices that nobody has may still consume, by counter set and counter.
	left map[string]map[string]resource.Quantity
	// conflict are the devices that have more of a counter together than there is.
	conflict []string
	// whole is whether all of it is published.
	whole bool
	gpus  int
}

func (l *looker) offerOf(node string, pool []*resourceapi.ResourceSlice) *offer {
	o := &offer{
		pool: v1alpha1.PoolName(node), whole: int64(len(pool)) == pool[0].Spec.Pool.ResourceSliceCount,
		left: map[string]map[string]resource.Quantity{},
	}
	gpus := map[int64]bool{}
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
	var held []*resourceapi.Device
	for _, d := range o.devices {
		// A GPU that is cut, or can be, is one: its instances have its index.
		if index := d.Attributes[v1alpha1.AttrIndex].IntValue; index != nil && !IsSet(d) {
			gpus[*index] = true
		}
		if !l.state.AllocatedDevices.Has(o.id(d)) && l.state.AggregatedCapacity[o.id(d)] == nil {
			continue
		}
		held = append(held, d)
		for _, consumed := range d.ConsumesCounters {
			for name, counter := range consumed.Counters {
				if left, ok := o.left[consumed.CounterSet][name]; ok {
					left.Sub(counter.Value)
					o.left[consumed.CounterSet][name] = left
				}
			}
		}
	}
	for _, d := range held {
		if o.exceeds(d) {
			o.conflict = append(o.conflict, d.Name)
		}
	}
	o.gpus = len(gpus)
	return o
}

// exceeds reports whether a device that is allocated consumes a counter of which there is less than is consumed.
func (o *offer) exceeds(d *resourceapi.Device) bool {
	for _, consumed := range d.ConsumesCounters {
		for name := range consumed.Counters {
			if left := o.left[consumed.CounterSet][name]; left.Sign() < 0 {
				return true
			}
		}
	}
	return false
}

func (o *offer) id(d *resourceapi.Device) structured.DeviceID {
	return structured.MakeDeviceID(v1alpha1.DriverName, o.pool, d.Name)
}

// lacks says what a node lacks for claims that do not fit, and of these what is farthest from
// being there: of the request that is, the nearest alternative. single says that it lacks
// something for one request alone, so that it cannot fit. The allocator is not asked.
func (l *looker) lacks(ctx context.Context, node string, claims []*resourceapi.ResourceClaim) (all []Lack,
	farthest Lack, single bool) {
	one := func(kind LackKind, step Step) ([]Lack, Lack, bool) {
		lack := Lack{Kind: kind, Node: node, Claims: claims, Step: step}
		return []Lack{lack}, lack, false
	}
	o := l.offers[node]
	switch {
	case o == nil:
		return one(NoDriver, NoStep)
	case !o.whole:
		return one(InPart, NoStep)
	case len(o.devices) == 0:
		return one(NoGPUs, NoStep)
	}
	farthest.Step = Suits
	others := false
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			lacks, foreign := l.lacksOf(ctx, o, claim, &claim.Spec.Devices.Requests[i])
			for i := range lacks {
				lacks[i].Node, lacks[i].Claims, lacks[i].Claim = node, claims, claim.Name
			}
			all, others = append(all, lacks...), others || foreign
			if len(lacks) == 0 {
				continue
			}
			if nearest := slices.MaxFunc(lacks, byDistance); byDistance(nearest, farthest) < 0 {
				farthest = nearest
			}
		}
	}
	switch {
	case len(all) > 0:
		return all, farthest, true
	case others:
		lack := l.ofOthers(ctx, o, node, claims)
		return []Lack{lack}, lack, false
	case len(o.conflict) > 0:
		all, farthest, single = one(Conflict, Taken)
		all[0].Nearest, farthest.Nearest = o.conflict, o.conflict
		return all, farthest, single
	default:
		return one(AtOnce, Suits)
	}
}

// lacksOf says what a node lacks for each alternative of a request; nothing where it serves
// one of them. foreign says that one is for another driver's devices.
func (l *looker) lacksOf(ctx context.Context, o *offer, claim *resourceapi.ResourceClaim,
	wanted *resourceapi.DeviceRequest) (lacks []Lack, foreign bool) {
	for _, r := range Served(wanted) {
		class, err := l.classes.Get(r.Class)
		switch {
		case err != nil:
			lacks = append(lacks, Lack{Kind: NoClass, Request: r.Name, Err: err})
			continue
		case !r.OfDriver(class):
			return nil, true
		}
		of := asked{claim, r.Name}
		if l.judged[of] == nil {
			l.judged[of] = map[*resourceapi.Device]Seen{}
		}
		lack, lacking := l.lack(ctx, o, class, r, l.judged[of])
		if !lacking {
			return nil, false
		}
		lack.Request = r.Name
		lacks = append(lacks, lack)
	}
	return lacks, false
}

// lack looks at all devices of a node for one request, or one alternative of it. It is false
// where there are enough that would serve it.
func (l *looker) lack(ctx context.Context, o *offer, class *resourceapi.DeviceClass, r Request,
	judged map[*resourceapi.Device]Seen) (Lack, bool) {
	best := map[string]Seen{}
	var order []string
	unclear := false
	for _, d := range o.devices {
		found := l.look(ctx, o, d, class, r, judged)
		unclear = unclear || found.unclear
		gpu := GPUOf(d)
		if had, is := best[gpu]; !is {
			order = append(order, gpu)
		} else if had.Step >= found.Step {
			continue
		}
		best[gpu] = found
	}
	all := make([]Seen, 0, len(order))
	for _, gpu := range order {
		all = append(all, best[gpu])
	}
	if !r.All {
		all = withoutSets(all)
	}
	var enough int64
	for _, s := range all {
		if s.Step == Suits {
			enough++
		}
	}
	wanted := all
	if r.All {
		// Those have to serve it that match and offer enough, whoever has it.
		if meant := slices.DeleteFunc(slices.Clone(all), func(s Seen) bool {
			return s.Step < Tainted || !r.means(s.Device.Capacity)
		}); len(meant) > 0 {
			wanted, r.Count = meant, int64(len(meant))
		}
	}
	if enough >= r.Count {
		return Lack{}, false
	}
	if class.Labels[v1alpha1.LabelProfile] == "" {
		wanted = withoutParts(wanted)
	}
	lack := newLack(Lack{Wanted: r, Class: class, Seen: all, Enough: enough}, wanted)
	lack.Unclear = unclear
	return lack, true
}

// tooMany reports whether a request for all devices is for more devices of the node than a claim can have.
func (l *looker) tooMany(ctx context.Context, node string, claims []*resourceapi.ResourceClaim) bool {
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			for _, r := range Served(&claim.Spec.Devices.Requests[i]) {
				class, err := l.classes.Get(r.Class)
				if o := l.offers[node]; err != nil || o == nil || !r.All || !r.OfDriver(class) {
					continue
				} else if n := l.meant(ctx, o, class, r); n > resourceapi.AllocationResultsMaxSize {
					return true
				}
			}
		}
	}
	return false
}

// meant is how many devices a request for all of them is for.
func (l *looker) meant(ctx context.Context, o *offer, class *resourceapi.DeviceClass, r Request) (n int) {
	for _, d := range o.devices {
		if l.suits(ctx, d, class, r).Step >= Tainted && r.means(d.Capacity) {
			n++
		}
	}
	return n
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
	if l.taken(o, d, r.Admin) {
		s.Step = Taken
		s.FreeSlices, s.ShortOf = o.freeSlices(d)
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
	var matches bool
	if _, matches, s.unclear = l.match(ctx, d, Conditions(class.Spec.Selectors)); !matches {
		return s
	}
	if s.Selector, matches, s.unclear = l.match(ctx, d, r.Selectors); !matches {
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

// match returns the first expression that does not match a device; failed says that it cannot be evaluated.
func (l *looker) match(ctx context.Context, d *resourceapi.Device, expressions []string) (differs string, matches,
	failed bool) {
	for _, expression := range expressions {
		compiled := l.compiled.GetOrCompile(expression)
		if compiled.Error != nil {
			return expression, false, true
		}
		matches, _, err := compiled.DeviceMatches(ctx, cel.Device{
			Driver: v1alpha1.DriverName, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes,
			Capacity: d.Capacity,
		})
		if err != nil || !matches {
			return expression, false, err != nil
		}
	}
	return "", true, false
}

// taken reports whether others hold a device, or what it consists of: access beside who holds the device itself takes
// that as well.
func (l *looker) taken(o *offer, d *resourceapi.Device, admin bool) bool {
	if !admin && l.state.AllocatedDevices.Has(o.id(d)) {
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
