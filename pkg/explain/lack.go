// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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
	case scheduling.OfCPUs:
		lacks, _ := lackOfCPUs(l.Node, l.CPUs)
		return lacks
	case scheduling.AtOnce:
		return "each request would fit, all at once do not" + constraints(l.Claims)
	case scheduling.Conflict:
		return list(l.Nearest) + " exclude each other, but claims have them: the scheduler allocates no GPU of the node " +
			"until one of them is released, or the node has closed them"
	case scheduling.SharesHeldBack:
		return "held back for a moment, as shares are spread: what all requests need at once"
	case scheduling.NoClass, scheduling.Failed:
		return text.Bound(l.Err.Error(), errorMost)
	case scheduling.Unsearched:
		return l.Err.Error()
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
	byStep, farthest := map[scheduling.Step][]scheduling.Seen{}, scheduling.NoStep
	for _, s := range l.Seen {
		byStep[s.Step], farthest = append(byStep[s.Step], s), max(farthest, s.Step)
	}
	var parts []string
	if l.Wanted.Count > 1 {
		of := slices.DeleteFunc(slices.Clone(l.Seen), func(s scheduling.Seen) bool { return s.Step == scheduling.OtherClass })
		what := nounOf(of)
		if l.Class.Labels[v1alpha1.LabelProfile] != "" {
			what = wordInstance
		}
		parts = append(parts, fmt.Sprintf("asked %d %ss, %d free", l.Wanted.Count, what, l.Enough))
	}
	for step := scheduling.HeldBack; step >= scheduling.OtherClass; step-- {
		told := step == farthest || step > scheduling.Unmatched
		if of := byStep[step]; len(of) > 0 && told {
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
		return append([]string{"taken: " + gpus(of, total)}, scattered(of, l.Seen)...)
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
		return amountsOfEach(of, "asked %s, the largest "+nounOf(of)+" has %s (%s)")
	case scheduling.Unmatched:
		return []string{noneMatches(of)}
	default:
		return []string{otherClass(l.Wanted.Class, l.Class, of)}
	}
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
		if _, has := s.Device.Capacity[name]; !has {
			out = append(out, string(name)+": no such capacity")
			continue
		}
		out = append(out, string(name)+": "+fmt.Sprintf(format, Written(name, s.Asked), Written(name, s.Has),
			scheduling.GPUOf(s.Device)))
	}
	return out
}

// nounOf is what to call devices where linked sets count as GPUs.
func nounOf(of []scheduling.Seen) string {
	instances := 0
	for _, s := range of {
		if scheduling.IsInstance(s.Device) {
			instances++
		}
	}
	switch instances {
	case 0:
		return wordGPU
	case len(of):
		return wordInstance
	default:
		return wordDevice
	}
}

// gpus lists the GPUs of devices.
func gpus(of []scheduling.Seen, total int) string {
	if len(of) == total && total > 1 {
		return fmt.Sprintf("all %d %ss", total, nounOf(of))
	}
	names := make([]string, 0, len(of))
	for _, s := range of {
		names = append(names, scheduling.GPUOf(s.Device))
	}
	return list(names)
}

// noneMatches says which selector matches none, and what the devices have instead.
func noneMatches(of []scheduling.Seen) string {
	text := "no " + nounOf(of) + " matches " + shown(of[0].Selector)
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

// nearestText is how much of what a node lacks stands in one line with others, in runes.
const nearestText = 120

// Nearest says in sentences which nodes come nearest to room for the pod, at most so many, and what
// they lack; of nodes that are closed to the pod, and not excluded by it, only those that would
// have room. It is empty where there is none.
func Nearest(r scheduling.Room, most int) string {
	var near, closed []scheduling.NodeRoom
	for _, n := range r.Nodes {
		switch {
		case n.Closed.By == scheduling.Open && n.GPUs > 0:
			near = append(near, n)
		case n.Closed.By != scheduling.Open && n.Closed.By != scheduling.ByPod && n.Fits:
			closed = append(closed, n)
		}
	}
	slices.SortStableFunc(near, scheduling.Nearer)
	var parts []string
	if len(closed) > 0 {
		text := fmt.Sprintf("Node %s has the GPUs free, but %s", closed[0].Name, Closed(closed[0]))
		if more := len(closed) - 1; more > 0 {
			text += fmt.Sprintf("; so have %d more that are closed to it", more)
		}
		parts = append(parts, text)
	}
	var nearest []string
	for _, n := range near[:min(len(near), most)] {
		var texts []string
		for _, lack := range n.Lacks {
			texts = append(texts, Lack(lack))
		}
		nearest = append(nearest, fmt.Sprintf("node %s (%s)", n.Name, shortened(strings.Join(texts, "; "))))
	}
	if len(nearest) > 0 {
		text := "Nearest: " + strings.Join(nearest, ", ")
		if more := len(near) - len(nearest); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ". ")
}

// Unsearched says of a pod for which no room was found that it is not known whether there is any, and what would help;
// both are empty where all nodes that it can be on were searched to the end.
func Unsearched(r scheduling.Room) (says, helps string) {
	lacks := r.Unsearched()
	if len(lacks) == 0 {
		return "", ""
	}
	nodes := "1 node that it can be on was "
	if len(lacks) > 1 {
		nodes = fmt.Sprintf("%d nodes that it can be on were ", len(lacks))
	}
	helps = "fewer devices, requests and alternatives in one pod, or a matchAttribute constraint that ties requests to " +
		"one GPU"
	if errors.Is(lacks[0].Err, scheduling.ErrSelectors) {
		helps = "selectors without loops, or fewer of them"
	}
	return "whether a node has room for its GPUs is not known: " + nodes + lacks[0].Err.Error(), helps
}

func shortened(text string) string {
	if runes := []rune(text); len(runes) > nearestText {
		return string(runes[:nearestText]) + "…"
	}
	return text
}

// Refused says why the scheduler gives up.
func Refused(r scheduling.Room) string {
	if r.TooMany == "" {
		return r.Refused.Error()
	}
	return fmt.Sprintf("%v (on node %s; a selector of the request that matches fewer devices there would help, or a "+
		"nodeSelector of the pod that leaves the node out)", r.Refused, r.TooMany)
}

// Closed says what keeps a pod from a node.
func Closed(n scheduling.NodeRoom) string {
	switch n.Closed.By {
	case scheduling.ByPod:
		return "the pod's nodeSelector, its affinity or its other claims exclude it"
	case scheduling.Unschedulable:
		return "it takes no new pods (kubectl uncordon " + n.Name + " ends that)"
	case scheduling.ByTaint:
		return "the pod does not tolerate its taint " + n.Closed.Taint.ToString()
	case scheduling.ByResources:
		lacks := make([]string, 0, len(n.Closed.Short))
		for _, short := range n.Closed.Short {
			free := short.Free
			if free.Sign() < 0 {
				free = resource.Quantity{}
			}
			lacks = append(lacks, fmt.Sprintf("%s: asked %s, free %s", short.Name, short.Asked.String(), free.String()))
		}
		return strings.Join(lacks, "; ")
	case scheduling.PluginsUnknown:
		return "what it has for device plugins is not known"
	case scheduling.ResourcesUnknown:
		return "what it has is not known"
	default:
		return ""
	}
}

// Asked says in words what claims ask for, a line for each request.
func Asked(claims []*resourceapi.ResourceClaim) []string {
	var out []string
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			var alternatives []string
			for _, r := range scheduling.Served(&claim.Spec.Devices.Requests[i]) {
				alternatives = append(alternatives, asked(r))
			}
			out = append(out, fmt.Sprintf("claim %s, request %s: %s", claim.Name, claim.Spec.Devices.Requests[i].Name,
				strings.Join(alternatives, ", or ")))
		}
	}
	return out
}

// asked says what a request asks for.
func asked(r scheduling.Request) string {
	text := fmt.Sprintf("%d of class %s", r.Count, r.Class)
	if r.All {
		text = "all of class " + r.Class
	}
	for _, name := range slices.Sorted(maps.Keys(r.Capacity)) {
		text += fmt.Sprintf(", %s %s", name, Written(name, r.Capacity[name]))
	}
	for _, selector := range r.Selectors {
		text += ", " + shown(selector)
	}
	if r.Admin {
		text += ", as an administrator"
	}
	return text
}
