// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// Lack is what a node has too little of for a request.
type Lack struct {
	// Request is the request's name, with its claim's where there are several; empty where
	// the lack is that of all of them.
	Request string
	// Step is how far the nearest device comes, Text says what each lacks.
	Step Step
	Text string
	// Devices are those that come that far, Missing how much more has to be free of the first
	// of them, and of what: zero where that is not a matter of an amount.
	Devices  []string
	Missing  resource.Quantity
	Capacity resourceapi.QualifiedName
}

// lacks says of a node that does not fit what it lacks, and of these what is farthest from
// being there: of the request that is, the nearest alternative. single says that it lacks
// something for one request alone, so that it cannot fit.
func (l *looker) lacks(ctx context.Context, node string, claims []*resourceapi.ResourceClaim) (all []Lack,
	farthest Lack, single bool) {
	one := func(lack Lack) ([]Lack, Lack, bool) { return []Lack{lack}, lack, false }
	o := l.offers[node]
	switch {
	case o == nil:
		return one(Lack{Text: "it offers no GPUs of this driver"})
	case !o.whole:
		return one(Lack{Text: "its GPUs are published in part, which lasts a moment"})
	case len(o.devices) == 0:
		return one(Lack{Text: "it offers no GPUs at the moment: kubectl describe node " + node + " says why"})
	}
	farthest.Step = Suits
	others := false
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			lacks, foreign := l.lacksOf(ctx, o, claims, claim, &claim.Spec.Devices.Requests[i])
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
		return one(Lack{Text: "devices of other drivers that the pod asks for, or those and GPUs at once"})
	default:
		return one(Lack{Step: Suits, Text: "each request would fit, all at once do not" + constraints(claims)})
	}
}

// lacksOf says what a node lacks for each alternative of a request; nothing where it serves
// one of them. foreign says that one is for another driver's devices.
func (l *looker) lacksOf(ctx context.Context, o *offer, claims []*resourceapi.ResourceClaim,
	claim *resourceapi.ResourceClaim, wanted *resourceapi.DeviceRequest) (lacks []Lack, foreign bool) {
	for _, r := range served(wanted) {
		class, err := l.classes.Get(r.class)
		switch {
		case err != nil:
			lacks = append(lacks, Lack{Request: nameIn(claims, claim, r), Text: text.Bound(err.Error(), errorMost)})
			continue
		case !ofDriver(class.Name, class):
			return nil, true
		}
		of := asked{claim, r.name}
		if l.judged[of] == nil {
			l.judged[of] = map[*resourceapi.Device]seen{}
		}
		lack, lacking := l.lack(ctx, o, class, r, l.judged[of])
		if !lacking {
			return nil, false
		}
		lack.Request = nameIn(claims, claim, r)
		lacks = append(lacks, lack)
	}
	return lacks, false
}

// nameIn is how a request is called among those of a pod.
func nameIn(claims []*resourceapi.ResourceClaim, claim *resourceapi.ResourceClaim, r request) string {
	switch {
	case len(claims) > 1:
		return "claim " + claim.Name + ", request " + r.name
	case len(claim.Spec.Devices.Requests) > 1 || strings.Contains(r.name, "/"):
		return "request " + r.name
	default:
		return ""
	}
}

// lack looks at all devices of a node for one request, or one alternative of it. It is false
// where there are enough that would serve it.
func (l *looker) lack(ctx context.Context, o *offer, class *resourceapi.DeviceClass, r request,
	judged map[*resourceapi.Device]seen) (Lack, bool) {
	best := map[string]seen{}
	var order []string
	for _, d := range o.devices {
		found := l.look(ctx, o, d, class, r, judged)
		gpu := gpuOf(d)
		if had, is := best[gpu]; !is {
			order = append(order, gpu)
		} else if had.step >= found.step {
			continue
		}
		best[gpu] = found
	}
	var all []seen
	for _, gpu := range order {
		all = append(all, best[gpu])
	}
	if !r.all {
		all = withoutSets(all)
	}
	var enough int64
	for _, s := range all {
		if s.step == Suits {
			enough++
		}
	}
	if r.all {
		// All that match and are large enough now have to be free.
		matching := slices.DeleteFunc(slices.Clone(all), func(s seen) bool {
			return s.step != Suits && s.step != Taken && s.step != Tainted
		})
		r.count = max(1, int64(len(matching)))
	}
	if enough >= r.count {
		return Lack{}, false
	}
	return said(r, class, all, enough), true
}

// withoutSets leaves out linked sets where single GPUs come as far: sets consist of those, so
// that GPUs would count twice.
func withoutSets(all []seen) []seen {
	var single, set Step
	for _, s := range all {
		if isSet(s.device) {
			set = max(set, s.step)
		} else {
			single = max(single, s.step)
		}
	}
	if single < set {
		return all
	}
	return slices.DeleteFunc(all, func(s seen) bool { return isSet(s.device) })
}

// said puts into words what the devices of a node lack, those first that come farthest.
func said(r request, class *resourceapi.DeviceClass, all []seen, enough int64) Lack {
	byStep := map[Step][]seen{}
	for _, s := range all {
		byStep[s.step] = append(byStep[s.step], s)
	}
	var parts []string
	if r.count > 1 {
		parts = append(parts, fmt.Sprintf("asked %d GPUs, %d free", r.count, enough))
	}
	var lack Lack
	for _, step := range []Step{HeldBack, Full, Taken, Tainted, TooSmall, Unmatched, OtherClass} {
		of := byStep[step]
		if len(of) == 0 || step <= Unmatched && lack.Devices != nil {
			continue
		}
		if lack.Devices == nil {
			lack.Step, lack.Devices = step, nearest(of)
			if step == Full {
				first := freest(of)
				lack.Capacity, lack.Missing = first.name, first.asked.DeepCopy()
				lack.Missing.Sub(first.has)
			}
		}
		parts = append(parts, words(step, r, class, of, len(all))...)
	}
	lack.Text = strings.Join(parts, "; ")
	return lack
}

// nearest are the names of devices, the one with the most free first.
func nearest(of []seen) []string {
	names := []string{freest(of).device.Name}
	for _, s := range of {
		if s.device.Name != names[0] {
			names = append(names, s.device.Name)
		}
	}
	return names
}

// freest is the one that has most of what is asked for.
func freest(of []seen) seen {
	best := of[0]
	for _, s := range of[1:] {
		if s.name == best.name && s.has.Cmp(best.has) > 0 || best.name != v1alpha1.CapMemory && s.name == v1alpha1.CapMemory {
			best = s
		}
	}
	return best
}

// words says what devices lack that fail the same step, of so many that the node has.
func words(step Step, r request, class *resourceapi.DeviceClass, of []seen, total int) []string {
	switch step {
	case HeldBack:
		return []string{"held back for a moment, as shares are spread: " + gpus(of, total)}
	case Full:
		return amountsOfEach(of, "asked %s, largest free %s on %s")
	case Taken:
		return []string{"taken: " + gpus(of, total)}
	case Tainted:
		byMeaning := map[string][]seen{}
		for _, s := range of {
			what := meaning(s.taint.Key)
			byMeaning[what] = append(byMeaning[what], s)
		}
		var out []string
		for _, what := range slices.Sorted(maps.Keys(byMeaning)) {
			out = append(out, what+": "+gpus(byMeaning[what], total))
		}
		return out
	case TooSmall:
		return amountsOfEach(of, "asked %s, the largest GPU has %s (%s)")
	case Unmatched:
		return []string{unmatched(of)}
	default:
		return []string{otherClass(r, class, of)}
	}
}

// amountsOfEach says of each capacity which device has most of it.
func amountsOfEach(of []seen, format string) []string {
	byName := map[resourceapi.QualifiedName][]seen{}
	for _, s := range of {
		byName[s.name] = append(byName[s.name], s)
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		s := freest(byName[name])
		out = append(out, string(name)+": "+fmt.Sprintf(format, Written(name, s.asked), Written(name, s.has),
			gpuOf(s.device)))
	}
	return out
}

// gpus lists the GPUs of devices.
func gpus(of []seen, total int) string {
	if len(of) == total && total > 1 {
		return fmt.Sprintf("all %d GPUs", total)
	}
	names := make([]string, 0, len(of))
	for _, s := range of {
		names = append(names, gpuOf(s.device))
	}
	return list(names)
}

// unmatched says which selector matches none, and what the devices have instead.
func unmatched(of []seen) string {
	text := "no GPU matches " + shown(of[0].selector)
	k := &kind{}
	for _, s := range of {
		k.devices = append(k.devices, *s.device)
	}
	if has := mentioned([]found{{group: group{kind: k}, ofClass: k.all()}}, of[0].selector); has != "" {
		text += ", there is " + has
	}
	return text
}

// otherClass says what the devices of a node are instead of the class.
func otherClass(r request, class *resourceapi.DeviceClass, of []seen) string {
	values := func(name resourceapi.QualifiedName) []string {
		seen := map[string]bool{}
		for _, s := range of {
			if value := s.device.Attributes[name].StringValue; value != nil {
				seen[*value] = true
			}
		}
		return slices.Sorted(maps.Keys(seen))
	}
	model := class.Annotations[v1alpha1.AnnotationModel]
	if has := values(v1alpha1.AttrModel); model != "" && len(has) > 0 && !slices.Contains(has, model) {
		return fmt.Sprintf("model: asked %s, has %s", model, list(has))
	}
	if has := values(v1alpha1.AttrMode); len(has) > 0 {
		return fmt.Sprintf("mode: asked class %s, offers %s", r.class, list(has))
	}
	return "no GPU of class " + r.class
}

// Asked says in words what claims ask for, a line for each request.
func Asked(claims []*resourceapi.ResourceClaim) []string {
	var out []string
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			var alternatives []string
			for _, r := range served(&claim.Spec.Devices.Requests[i]) {
				alternatives = append(alternatives, r.words())
			}
			out = append(out, fmt.Sprintf("claim %s, request %s: %s", claim.Name, claim.Spec.Devices.Requests[i].Name,
				strings.Join(alternatives, ", or ")))
		}
	}
	return out
}

// words says what a request asks for.
func (r request) words() string {
	text := fmt.Sprintf("%d of class %s", r.count, r.class)
	if r.all {
		text = "all of class " + r.class
	}
	for _, name := range slices.Sorted(maps.Keys(r.capacity)) {
		text += fmt.Sprintf(", %s %s", name, Written(name, r.capacity[name]))
	}
	for _, selector := range r.selectors {
		text += ", " + shown(selector)
	}
	if r.admin {
		text += ", as an administrator"
	}
	return text
}
