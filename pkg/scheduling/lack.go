// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// LackKind is what a Lack is about.
type LackKind int

// The kinds of lacks.
const (
	// Devices: too few serve one request.
	Devices LackKind = iota
	// NoDriver: the node offers no GPUs of the driver. InPart: they are published in part.
	// NoGPUs: it offers none at the moment.
	NoDriver
	InPart
	NoGPUs
	// NoClass: the class of a request cannot be found, as Err says.
	NoClass
	// OfOthers: what is missing are devices of other drivers, or those and GPUs at once.
	OfOthers
	// AtOnce: each request would fit, all of them at once do not.
	AtOnce
	// Failed: the allocator failed, as Err says. NotLookedAt: it was not asked, because of Err.
	Failed
	NotLookedAt
)

// Lack is what a node has too little of for a pod.
type Lack struct {
	Kind LackKind
	Node string
	// Claims are those that wait; Claim and Request name what of them the lack is of, empty where
	// it is that of all.
	Claims         []*resourceapi.ResourceClaim
	Claim, Request string
	// Step is how far the nearest device comes, Nearest are those that come that far, the one
	// with the most free first. Missing is how much more has to be free of the first of them,
	// and of what: zero where that is not a matter of an amount.
	Step     Step
	Nearest  []string
	Missing  resource.Quantity
	Capacity resourceapi.QualifiedName
	// Wanted, of Class, is what is asked for; of the node's GPUs, or linked sets, Seen is how
	// far each comes, and Enough how many would serve it.
	Wanted Request
	Class  *resourceapi.DeviceClass
	Seen   []Seen
	Enough int64
	// Err is why it is not known what the node lacks.
	Err error
}

// Lacks says what a node lacks for claims that do not fit, and of these what is farthest from
// being there: of the request that is, the nearest alternative. single says that it lacks
// something for one request alone, so that it cannot fit. The allocator is not asked.
func (f *Finder) Lacks(ctx context.Context, node string, claims []*resourceapi.ResourceClaim) (all []Lack,
	farthest Lack, single bool) {
	f.looker.forget()
	return f.looker.lacks(ctx, node, claims)
}

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
			nearest := slices.MaxFunc(lacks, func(a, b Lack) int { return cmp.Compare(a.Step, b.Step) })
			if nearest.Step < farthest.Step {
				farthest = nearest
			}
		}
	}
	switch {
	case len(all) > 0:
		return all, farthest, true
	case others:
		return one(OfOthers, NoStep)
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
		case !ofDriver(class.Name, class):
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
	for _, d := range o.devices {
		found := l.look(ctx, o, d, class, r, judged)
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
	if r.All {
		// All that match and are large enough now have to be free.
		matching := slices.DeleteFunc(slices.Clone(all), func(s Seen) bool {
			return s.Step != Suits && s.Step != Taken && s.Step != Tainted
		})
		r.Count = max(1, int64(len(matching)))
	}
	if enough >= r.Count {
		return Lack{}, false
	}
	return newLack(r, class, all, enough), true
}

// newLack is of the devices that come farthest without serving the request.
func newLack(r Request, class *resourceapi.DeviceClass, all []Seen, enough int64) Lack {
	lack := Lack{Wanted: r, Class: class, Seen: all, Enough: enough}
	for _, s := range all {
		if s.Step != Suits {
			lack.Step = max(lack.Step, s.Step)
		}
	}
	var of []Seen
	for _, s := range all {
		if s.Step == lack.Step {
			of = append(of, s)
		}
	}
	if len(of) == 0 {
		return lack
	}
	first := Freest(of)
	lack.Nearest = []string{first.Device.Name}
	for _, s := range of {
		if s.Device.Name != first.Device.Name {
			lack.Nearest = append(lack.Nearest, s.Device.Name)
		}
	}
	if lack.Step == Full {
		lack.Capacity, lack.Missing = first.Name, first.Asked.DeepCopy()
		lack.Missing.Sub(first.Has)
	}
	return lack
}

// withoutSets leaves out linked sets where single GPUs come as far: sets consist of those, so
// that GPUs would count twice.
func withoutSets(all []Seen) []Seen {
	var single, set Step
	for _, s := range all {
		if IsSet(s.Device) {
			set = max(set, s.Step)
		} else {
			single = max(single, s.Step)
		}
	}
	if single < set {
		return all
	}
	return slices.DeleteFunc(all, func(s Seen) bool { return IsSet(s.Device) })
}

// Freest is the one that has most of what is asked for.
func Freest(of []Seen) Seen {
	best := of[0]
	for _, s := range of[1:] {
		if s.Name == best.Name && s.Has.Cmp(best.Has) > 0 || best.Name != v1alpha1.CapMemory && s.Name == v1alpha1.CapMemory {
			best = s
		}
	}
	return best
}
