// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

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
	// OfCPUs: of what others publish it is CPUs alone, as CPUs says.
	OfCPUs
	// AtOnce: each request would fit, all of them at once do not.
	AtOnce
	// Conflict: claims were allocated what they cannot have together. As long as the node's plugin has not closed it, the
	// allocator gives nothing of the pool that is counted.
	Conflict
	// SharesHeldBack: all of them at once would fit, but not yet, as shares are spread.
	SharesHeldBack
	// Failed: the allocator failed, as Err says. Unsearched: it was cut off, as Err, an ErrUnsearched, says.
	Failed
	Unsearched
	// SelectorFails: a selector cannot be evaluated for a device, as Failed says.
	SelectorFails
)

// Lack is what a node, or for a Survey all nodes together, have too little of for a pod.
type Lack struct {
	Kind LackKind
	// Node is empty where it is that of a Survey, unless one of its nodes keeps the pod from all.
	Node string
	// Claims are those that wait; Claim and Request name what of them the lack is of, empty where
	// it is that of all.
	Claims         []*resourceapi.ResourceClaim
	Claim, Request string
	// More is how many more devices have to serve the request, Step how far the last of them comes
	// if they are the nearest: NoStep where the node has too few. Nearest are those that come that
	// far, the one with the most free first. Missing is how much more has to be free of the first
	// of them, and of what: zero where that is not a matter of an amount.
	More     int64
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
	// On are the nodes that a Survey's lack is about, with what they have for the request. Selector is the one after which
	// none of their devices is left, Failed the one that cannot be evaluated for a device: of Node, or without one only of
	// nodes that take no such pods now.
	On       []Found
	Selector string
	Failed   *SelectorError
	// Unclear says that a selector cannot be evaluated for some of them, which counts as one that
	// does not match.
	Unclear bool
	// CPUs is what there is of them, for OfCPUs.
	CPUs *CPUs
	// Err is why it is not known what the node lacks.
	Err error
}

// Step is how far a device comes on the way to serving a request; a later one is nearer.
type Step int

// The steps that a device can fail.
const (
	// NoStep: it is not about the driver's devices, or about more of them than there are of those asked for.
	NoStep Step = iota
	// OtherClass: the class does not select it. Unmatched: a selector of the request does not.
	OtherClass
	Unmatched
	// TooSmall: the whole GPU would not be enough. TooFew: no node has as many. What comes no farther can never serve it.
	TooSmall
	TooFew
	// Excluded: it is on nodes that the pod cannot be on.
	Excluded
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
	// Taint is what closes it, Selector what does not match it, or cannot be evaluated.
	Taint    resourceapi.DeviceTaint
	Selector string
	unclear  bool
	// FreeSlices is how many memory slices are free of the GPU of a MIG instance that would be made for a claim, and
	// that is Taken, ShortOf what else than slices is missing for it.
	FreeSlices int
	ShortOf    []string
}

// newLack is what is missing of devices that could serve a request: as many of them as do not yet, the nearest first.
// It is about the farthest of these; what is held back comes by itself.
func newLack(lack Lack, wanted []Seen) Lack {
	farthest := NoStep
	for _, s := range wanted {
		farthest = max(farthest, s.Step)
	}
	// Where the class and the selectors leave some, the others are none of those asked for.
	others := slices.DeleteFunc(slices.Clone(wanted), func(s Seen) bool {
		return s.Step == Suits || s.Step <= Unmatched && s.Step < farthest
	})
	slices.SortStableFunc(others, func(a, b Seen) int { return cmp.Compare(b.Step, a.Step) })
	lack.More = lack.Wanted.Count - lack.Enough
	if lack.More > int64(len(others)) {
		return lack
	}
	lack.Step = others[lack.More-1].Step
	others = slices.DeleteFunc(others, func(s Seen) bool {
		heldBack := s.Step == HeldBack && lack.Step < HeldBack
		if heldBack {
			lack.More--
		}
		return heldBack || s.Step < lack.Step
	})
	first := Freest(others)
	lack.Nearest = []string{first.Device.Name}
	for _, s := range others {
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

// byDistance orders what is missing, that which is farthest from being there first.
func byDistance(a, b Lack) int {
	return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(b.More, a.More))
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

// withoutParts leaves one of the instances, or places for some, of each GPU in MIG mode that are not those asked for:
// if the GPU were another, there would be one of it.
func withoutParts(all []Seen) []Seen {
	seen := map[int64]bool{}
	return slices.DeleteFunc(slices.Clone(all), func(s Seen) bool {
		index := ptr.Deref(s.Device.Attributes[v1alpha1.AttrIndex].IntValue, -1)
		again := seen[index]
		part := s.Step == OtherClass && IsInstance(s.Device)
		seen[index] = again || part
		return part && again
	})
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
