// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// Lack says what a node lacks, with the request that it lacks it for.
func Lack(l scheduling.Lack) string {
	if name := nameOf(l); name != "" {
		return name + ": " + lack(l)
	}
	return lack(l)
}

func lack(l scheduling.Lack) string {
	switch l.Kind {
	case scheduling.NoDriver:
		return "it offers no GPUs of this driver"
	case scheduling.InPart:
		return "its GPUs are published in part, which lasts a moment"
	case scheduling.NoGPUs:
		return "it offers no GPUs at the moment: kubectl describe node " + l.Node + " says why"
	case scheduling.OfOthers:
		return "devices of other drivers that the pod asks for, or those and GPUs at once"
	case scheduling.AtOnce:
		return "each request would fit, all at once do not" + constraints(l.Claims)
	case scheduling.NoClass, scheduling.Failed:
		return text.Bound(l.Err.Error(), errorMost)
	case scheduling.NotLookedAt:
		return "not looked at: " + l.Err.Error()
	default:
		return devicesOf(l)
	}
}

// nameOf is how the request of a lack is called among those of the pod.
func nameOf(l scheduling.Lack) string {
	switch {
	case l.Request == "":
		return ""
	case len(l.Claims) > 1:
		return "claim " + l.Claim + ", request " + l.Request
	case len(l.Claims[0].Spec.Devices.Requests) > 1 || strings.Contains(l.Request, "/"):
		return "request " + l.Request
	default:
		return ""
	}
}

// devicesOf says what the devices of a node lack, of those first that come farthest.
func devicesOf(l scheduling.Lack) string {
	byStep := map[scheduling.Step][]scheduling.Seen{}
	for _, s := range l.Seen {
		byStep[s.Step] = append(byStep[s.Step], s)
	}
	var parts []string
	if l.Wanted.Count > 1 {
		parts = append(parts, fmt.Sprintf("asked %d GPUs, %d free", l.Wanted.Count, l.Enough))
	}
	for step := scheduling.HeldBack; step >= scheduling.OtherClass; step-- {
		if of := byStep[step]; len(of) > 0 && (step == l.Step || step > scheduling.Unmatched) {
			parts = append(parts, words(step, l, of)...)
		}
	}
	return strings.Join(parts, "; ")
}

// words says what devices lack that fail the same step.
func words(step scheduling.Step, l scheduling.Lack, of []scheduling.Seen) []string {
	total := len(l.Seen)
	switch step {
	case scheduling.HeldBack:
		return []string{"held back for a moment, as shares are spread: " + gpus(of, total)}
	case scheduling.Full:
		return amountsOfEach(of, "asked %s, largest free %s on %s")
	case scheduling.Taken:
		return append([]string{"taken: " + gpus(of, total)}, scattered(of)...)
	case scheduling.Tainted:
		byMeaning := map[string][]scheduling.Seen{}
		for _, s := range of {
			what := meaning(s.Taint.Key)
			byMeaning[what] = append(byMeaning[what], s)
		}
		var out []string
		for _, what := range slices.Sorted(maps.Keys(byMeaning)) {
			out = append(out, what+": "+gpus(byMeaning[what], total))
		}
		return out
	case scheduling.TooSmall:
		return amountsOfEach(of, "asked %s, the largest GPU has %s (%s)")
	case scheduling.Unmatched:
		return []string{noneMatches(of)}
	default:
		return []string{otherClass(l.Wanted.Class, l.Class, of)}
	}
}

// scattered says on which GPU enough memory slices are free for a MIG instance, but not in a row where one can begin.
func scattered(of []scheduling.Seen) []string {
	most := slices.MaxFunc(of, func(a, b scheduling.Seen) int { return cmp.Compare(a.FreeSlices, b.FreeSlices) })
	size := ptr.Deref(most.Device.Attributes[v1alpha1.AttrPlacementSize].IntValue, 0)
	if most.FreeSlices == 0 || int64(most.FreeSlices) < size {
		return nil
	}
	return []string{fmt.Sprintf("GPU %d has %d memory slices free, but not %d in a row where a %s can begin",
		ptr.Deref(most.Device.Attributes[v1alpha1.AttrIndex].IntValue, -1), most.FreeSlices, size,
		ptr.Deref(most.Device.Attributes[v1alpha1.AttrProfile].StringValue, ""))}
}

// amountsOfEach says of each capacity which device has most of it.
func amountsOfEach(of []scheduling.Seen, format string) []string {
	byName := map[resourceapi.QualifiedName][]scheduling.Seen{}
	for _, s := range of {
		byName[s.Name] = append(byName[s.Name], s)
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		s := scheduling.Freest(byName[name])
		out = append(out, string(name)+": "+fmt.Sprintf(format, Written(name, s.Asked), Written(name, s.Has),
			scheduling.GPUOf(s.Device)))
	}
	return out
}

// gpus lists the GPUs of devices.
func gpus(of []scheduling.Seen, total int) string {
	if len(of) == total && total > 1 {
		return fmt.Sprintf("all %d GPUs", total)
	}
	names := make([]string, 0, len(of))
	for _, s := range of {
		names = append(names, scheduling.GPUOf(s.Device))
	}
	return list(names)
}

// noneMatches says which selector matches none, and what the devices have instead.
func noneMatches(of []scheduling.Seen) string {
	text := "no GPU matches " + shown(of[0].Selector)
	var devices []*resourceapi.Device
	for _, s := range of {
		devices = append(devices, s.Device)
	}
	if has := mentioned(devices, of[0].Selector); has != "" {
		text += ", there is " + has
	}
	return text
}

// otherClass says what the devices of a node are instead of the class.
func otherClass(name string, class *resourceapi.DeviceClass, of []scheduling.Seen) string {
	values := func(name resourceapi.QualifiedName) []string {
		seen := map[string]bool{}
		for _, s := range of {
			if value := s.Device.Attributes[name].StringValue; value != nil {
				seen[*value] = true
			}
		}
		return slices.Sorted(maps.Keys(seen))
	}
	model := class.Annotations[v1alpha1.AnnotationModel]
	if has := values(v1alpha1.AttrModel); model != "" && len(has) > 0 && !slices.Contains(has, model) {
		return fmt.Sprintf("model: asked %s, has %s", model, list(has))
	}
	if profile := class.Labels[v1alpha1.LabelProfile]; profile != "" {
		if has := values(v1alpha1.AttrProfile); len(has) > 0 {
			return fmt.Sprintf("MIG profile: asked %s, has %s", profile, list(has))
		}
		return "no MIG instance"
	}
	if has := values(v1alpha1.AttrMode); len(has) > 0 {
		return fmt.Sprintf("mode: asked class %s, offers %s", name, list(has))
	}
	return "no GPU of class " + name
}

// constraints lists what the claims ask of their devices in common.
func constraints(claims []*resourceapi.ResourceClaim) string {
	var parts []string
	for _, claim := range claims {
		for _, constraint := range claim.Spec.Devices.Constraints {
			switch {
			case constraint.MatchAttribute != nil:
				parts = append(parts, "matchAttribute "+string(*constraint.MatchAttribute))
			case constraint.DistinctAttribute != nil:
				parts = append(parts, "distinctAttribute "+string(*constraint.DistinctAttribute))
			}
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " with " + list(parts)
}
