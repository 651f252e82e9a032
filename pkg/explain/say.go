// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/nvidia"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// What a message shows of a list, an expression, and an error that can quote one: an Event is
// to be read in a terminal.
const (
	listMost       = 5
	expressionMost = 200
	errorMost      = 1024
)

// word is what attributes are named by in an expression.
var word = regexp.MustCompile(`\w+`)

// say puts into words what all nodes lack.
func (c *Cluster) say(l scheduling.Lack) string {
	switch {
	case l.Kind == scheduling.SelectorFails:
		return sayFailed(l.Failed, l.Node)
	case l.Kind == scheduling.AtOnce && l.Step == scheduling.TooFew:
		return "no node has all requested devices at once" + constraints(l.Claims)
	case l.Kind == scheduling.AtOnce:
		return "no node has all requested devices at once but those that the pod's nodeSelector, its affinity or its other " +
			"claims exclude: " + list(nodesOf(l.On))
	}
	switch l.Step {
	case scheduling.OtherClass:
		return fmt.Sprintf("no node offers GPUs of class %s; %s", l.Wanted.Class, c.offered())
	case scheduling.Unmatched:
		return sayUnmatched(l.Wanted, l.On, l.Selector)
	case scheduling.TooSmall:
		return saySmall(l.Wanted, l.On)
	case scheduling.TooFew:
		return sayFew(l.Wanted, l.On)
	case scheduling.Excluded:
		return sayExcluded(l.On)
	case scheduling.Tainted:
		return sayClosed(l.Wanted, l.On)
	default:
		return sayBusy(l.On)
	}
}

// offered says what there is instead.
func (c *Cluster) offered() string {
	if len(c.Modes) == 0 {
		return "no node offers any GPUs"
	}
	modes := make([]string, 0, len(c.Modes))
	for _, m := range c.Modes {
		modes = append(modes, string(m))
	}
	if len(modes) == 1 {
		return "there are GPUs in the mode " + modes[0]
	}
	return "there are GPUs in the modes " + strings.Join(modes, ", ")
}

// sayNoClass is for a request, or one of several alternatives, whose class is missing.
func (c *Cluster) sayNoClass(r scheduling.Request, oneOfSeveral bool) string {
	text := fmt.Sprintf("DeviceClass %s does not exist", r.Class)
	if oneOfSeveral {
		text += ", so no node can take the pod, even for its other alternatives"
	}
	if better := advice.Class(r.Class); better != "" {
		return text + "; here it is " + better
	}
	return text + " (kubectl get deviceclasses lists those that do); " + c.offered()
}

func sayFailed(f *scheduling.SelectorError, node string) string {
	said := fmt.Sprintf("the selector %s cannot be evaluated for device %s of node %s (%v), so no node can take the pod",
		shown(f.Expression), f.Device.Name, node, text.Bound(f.Err.Error(), errorMost))
	if !strings.Contains(f.Expression, nvidia.DriverName) {
		return said
	}
	said += "; with the option nvidia-dra, devices have the names of " + nvidia.DriverName +
		" that docs/nvidia-dra.md lists"
	if name := missing(f); name != "" {
		said += "; this one has " + name + " by the name " + v1alpha1.DriverName
	}
	return said
}

// missing is what a selector misses of a device and would find in the domain of this driver; empty where it would not.
func missing(f *scheduling.SelectorError) string {
	_, name, _ := strings.Cut(f.Err.Error(), "no such key: ")
	_, attribute := f.Device.Attributes[resourceapi.QualifiedName(name)]
	if _, capacity := f.Device.Capacity[resourceapi.QualifiedName(name)]; attribute || capacity {
		return name
	}
	return ""
}

func sayUnmatched(r scheduling.Request, all []scheduling.Found, selector string) string {
	which := "selector " + shown(selector)
	if len(r.Selectors) > 1 {
		which = "selectors of the request: " + shown(selector) + " excludes the last"
	}
	text := fmt.Sprintf("no %s matches the %s; class %s has %s", noun(1, all, ofClass), which, r.Class,
		amountOf(all, ofClass))
	if has := mentioned(devicesIn(all, ofClass), selector); has != "" {
		text += ", with " + has
	}
	return text
}

// mentioned lists the values that devices have of the attributes that an expression names.
func mentioned(devices []*resourceapi.Device, expression string) string {
	words := map[string]bool{}
	for _, word := range word.FindAllString(expression, -1) {
		words[word] = true
	}
	values := map[string]map[string]bool{}
	for _, d := range devices {
		for name, value := range d.Attributes {
			id := string(name)
			id = id[strings.Index(id, "/")+1:]
			if !words[id] {
				continue
			}
			if values[id] == nil {
				values[id] = map[string]bool{}
			}
			values[id][valueOf(value)] = true
		}
	}
	var parts []string
	for _, id := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, id+" "+list(slices.SortedFunc(maps.Keys(values[id]), compareValues)))
	}
	return strings.Join(parts, "; ")
}

func valueOf(a resourceapi.DeviceAttribute) string {
	switch {
	case a.IntValue != nil:
		return strconv.FormatInt(*a.IntValue, 10)
	case a.BoolValue != nil:
		return strconv.FormatBool(*a.BoolValue)
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	default:
		return "(a list)"
	}
}

// compareValues orders numbers by what they are worth.
func compareValues(a, b string) int {
	x, errX := strconv.ParseInt(a, 10, 64)
	y, errY := strconv.ParseInt(b, 10, 64)
	if errX == nil && errY == nil {
		return cmp.Compare(x, y)
	}
	return strings.Compare(a, b)
}

// saySmall names the first capacity that no device has enough of, or all that are
// asked for if it is no single one.
func saySmall(r scheduling.Request, all []scheduling.Found) string {
	names := slices.Sorted(maps.Keys(r.Capacity))
	for _, name := range names {
		asked := r.Capacity[name]
		largest, has := largestOf(all, name)
		switch {
		case !has:
			return fmt.Sprintf("%s of %s asked for; the %s that match have the capacities %s", Written(name, asked), name,
				noun(2, all, matching), strings.Join(capacitiesOf(devicesIn(all, matching)...), ", "))
		case asked.Cmp(largest.amount) <= 0:
		case name == v1alpha1.CapSlots:
			return fmt.Sprintf("%s of %s asked for; a share takes one slot of its GPU", Written(name, asked), name)
		case largest.amount.IsZero():
			return fmt.Sprintf("%s of %s asked for; the %s that match give none (mode %s)", Written(name, asked), name,
				noun(2, all, matching), largest.mode)
		default:
			return fmt.Sprintf("%s of %s asked for; the largest %s that matches has %s (node %s, %s)",
				Written(name, asked), name, noun(1, all, matching), Written(name, largest.amount), largest.node, largest.model)
		}
	}
	parts := make([]string, 0, len(names))
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s of %s", Written(name, r.Capacity[name]), name))
	}
	return fmt.Sprintf("%s asked for; no %s that matches has as much of each", strings.Join(parts, " and "),
		noun(1, all, matching))
}

type largest struct {
	amount            resource.Quantity
	node, model, mode string
}

func largestOf(all []scheduling.Found, name resourceapi.QualifiedName) (largest, bool) {
	var out largest
	has := false
	for _, f := range all {
		for _, i := range f.Matching {
			d := &f.Devices[i]
			amount, ok := scheduling.Most(d, name)
			if !ok || has && amount.Cmp(out.amount) <= 0 {
				continue
			}
			has = true
			out = largest{amount, f.Nodes[0], valueOf(d.Attributes[v1alpha1.AttrModel]),
				valueOf(d.Attributes[v1alpha1.AttrMode])}
		}
	}
	return out, has
}

// Written is an amount in words: it rounds memory down, so that what is too much never looks as if it were
// just as much.
func Written(name resourceapi.QualifiedName, amount resource.Quantity) string {
	if name != v1alpha1.CapMemory || amount.CmpInt64(devices.GiB) < 0 || amount.CmpInt64(math.MaxInt64) > 0 {
		return amount.String()
	}
	whole, rest := amount.Value()/devices.GiB, amount.Value()%devices.GiB
	if rest == 0 {
		return fmt.Sprintf("%dGi", whole)
	}
	return fmt.Sprintf("%d.%dGi", whole, rest*10/devices.GiB)
}

func sayFew(r scheduling.Request, all []scheduling.Found) string {
	fullest := slices.MaxFunc(all,
		func(a, b scheduling.Found) int { return cmp.Compare(a.GPUs(a.Roomy), b.GPUs(b.Roomy)) })
	return fmt.Sprintf("%d %s of class %s asked for; no node has more than %d that match (node %s)",
		r.Count, noun(r.Count, all, roomy), r.Class, fullest.GPUs(fullest.Roomy), fullest.Nodes[0])
}

func sayExcluded(all []scheduling.Found) string {
	return fmt.Sprintf("the %s that match are on nodes that the pod's nodeSelector, its affinity or its other claims "+
		"exclude: %s",
		noun(2, all, roomy), list(nodesOf(all)))
}

func sayClosed(r scheduling.Request, all []scheduling.Found) string {
	var nodes []string
	for _, f := range all {
		for _, i := range f.Roomy {
			taint, isClosed := r.Untolerated(&f.Devices[i])
			if !isClosed {
				continue
			}
			for _, node := range f.Nodes {
				nodes = append(nodes, node+" ("+meaning(taint.Key)+")")
			}
			break
		}
	}
	slices.Sort(nodes)
	text := "the %s that match take no new claims at the moment: node %s; the Events of the node say more"
	if r.All {
		text = "all %s that match are asked for, and some take no new claims at the moment: node %s; the Events of the " +
			"node say more"
	}
	return fmt.Sprintf(text, noun(2, all, roomy), list(nodes))
}

func meaning(taint string) string {
	switch taint {
	case v1alpha1.TaintSwitching:
		return "waits to change its mode"
	case v1alpha1.TaintNotIsolated:
		return "isolation unavailable"
	case v1alpha1.TaintUnhealthy:
		return "unhealthy"
	case v1alpha1.TaintHeld:
		return "held by pods without a claim"
	case v1alpha1.TaintOtherDriver:
		return "another DRA driver publishes them, too"
	case v1alpha1.TaintWithdrawn:
		return "withdrawn, and held by earlier claims"
	case v1alpha1.TaintConflict:
		return "claims were allocated more of it than it has"
	case v1alpha1.TaintMonitor:
		return "only shown, to claims with adminAccess"
	default:
		return "taint " + taint
	}
}

func sayBusy(all []scheduling.Found) string {
	nodes := len(nodesOf(all))
	on := fmt.Sprintf("%d nodes", nodes)
	if nodes == 1 {
		on = "node " + nodesOf(all)[0]
	}
	return fmt.Sprintf("the %s that match are all taken or too full: %s on %s", noun(2, all, roomy), amountOf(all, roomy),
		on)
}

func nodesOf(all []scheduling.Found) []string {
	var nodes []string
	for _, f := range all {
		nodes = append(nodes, f.Nodes...)
	}
	slices.Sort(nodes)
	return nodes
}

func ofClass(f scheduling.Found) []int  { return f.OfClass }
func matching(f scheduling.Found) []int { return f.Matching }
func roomy(f scheduling.Found) []int    { return f.Roomy }

// devicesIn are those of the nodes that which chooses.
func devicesIn(all []scheduling.Found, which func(scheduling.Found) []int) (devices []*resourceapi.Device) {
	for _, f := range all {
		for _, i := range which(f) {
			devices = append(devices, &f.Devices[i])
		}
	}
	return devices
}

// amountOf is a number of devices in words.
func amountOf(all []scheduling.Found, which func(scheduling.Found) []int) string {
	n := scheduling.Count(all, which)
	return fmt.Sprintf("%d %s", n, noun(n, all, which))
}

// What devices are called that are of one kind, or of several.
const (
	wordGPU      = "GPU"
	wordInstance = "MIG instance"
	wordDevice   = "device"
)

// noun is what to call devices: single GPUs, sets, MIG instances, or several of these.
func noun(n int64, all []scheduling.Found, which func(scheduling.Found) []int) string {
	words := map[string]bool{}
	for _, f := range all {
		for _, i := range which(f) {
			words[wordFor(&f.Devices[i])] = true
		}
	}
	word := wordGPU
	switch len(words) {
	case 0:
	case 1:
		word = slices.Collect(maps.Keys(words))[0]
	default:
		word = wordDevice
	}
	if n != 1 {
		word += "s"
	}
	return word
}

func wordFor(d *resourceapi.Device) string {
	switch {
	case scheduling.IsSet(d):
		return "linked set"
	case scheduling.IsInstance(d):
		return wordInstance
	default:
		return wordGPU
	}
}

func list(names []string) string { return text.List(names, listMost) }

// shown is an expression as a message shows it, on one line and not too long.
func shown(expression string) string {
	text := []rune(strings.Join(strings.Fields(expression), " "))
	if len(text) > expressionMost {
		return string(text[:expressionMost]) + "…"
	}
	return string(text)
}
