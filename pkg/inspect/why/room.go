// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// helpMost is how many ways out of one kind are named.
const helpMost = 3

// room says which nodes were looked at. It adds to the headline where there is room, and of a claim for which no pod
// waits that the scheduler would give up.
func (a *Answer) room(ctx context.Context, in Input, pod *corev1.Pod, claims []*resourceapi.ResourceClaim,
	what string) (room scheduling.Room, err error) {
	if in.Room != nil {
		room = *in.Room
	} else if room, err = in.Engine.FindLacks(ctx, in.Snapshot, pod, claims); err != nil {
		return room, err
	}
	a.nodes(room)
	unsearched, helps := explain.Unsearched(room)
	if a.Unsearched = unsearched != ""; !a.Unsearched {
		a.Fits = ptr.To(room.Fits())
	}
	switch {
	case room.Refused != nil && in.Pod != nil: // who calls has better words for it, or these
	case room.Refused != nil:
		a.say("The scheduler", "would give up: "+explain.Refused(room))
	case room.Fits():
		a.fits(in, pod, room, what)
	case a.Unsearched:
		if in.Pod == nil {
			a.say("As things are,", unsearched)
		}
		a.Help = append(a.Help, helps)
		a.help(in, room)
	case allOnNodes(claims): // all nodes count as free for it, and who calls says where it can be alone
	default:
		a.help(in, room)
	}
	return room, nil
}

// nodes lists the nodes that offer GPUs or have room, the nearest first; none where a DeviceClass is missing, which no
// node makes up for.
func (a *Answer) nodes(room scheduling.Room) {
	if errors.Is(room.Refused, scheduling.ErrNoClass) {
		return
	}
	var shown []scheduling.NodeRoom
	for _, n := range room.Nodes {
		if a.GPUs += n.GPUs; n.GPUs > 0 || n.Open() {
			shown = append(shown, n)
		}
	}
	slices.SortStableFunc(shown, func(a, b scheduling.NodeRoom) int {
		return cmp.Or(scheduling.Nearer(a, b), excludedLast(a, b))
	})
	a.More = max(0, len(shown)-nodesMost)
	for _, n := range shown[:len(shown)-a.More] {
		line := Node{Name: n.Name, GPUs: n.GPUs}
		if n.Closed.By != scheduling.Open {
			line.Lacks = append(line.Lacks, explain.Closed(n))
		}
		for _, lack := range n.Lacks {
			line.Lacks = append(line.Lacks, explain.Lack(lack))
		}
		a.Nodes = append(a.Nodes, line)
	}
}

// excludedLast orders nodes that the pod itself excludes, which nothing done to the node can change, after others.
func excludedLast(a, b scheduling.NodeRoom) int {
	excluded := func(n scheduling.NodeRoom) int {
		if n.Closed.By == scheduling.ByPod {
			return 1
		}
		return 0
	}
	return excluded(a) - excluded(b)
}

// fits is for a pod for which there is room.
func (a *Answer) fits(in Input, pod *corev1.Pod, room scheduling.Room, what string) {
	where, also := in.where(room)
	switch {
	case in.OthersUnknown || in.NodesUnknown:
		var unseen []string
		if in.OthersUnknown {
			unseen = append(unseen, "what pods of other namespaces hold")
		}
		if in.NodesUnknown {
			unseen = append(unseen, "what labels and taints of nodes keep it from")
		}
		a.say(what, "would find its GPUs free "+where+", were it not for "+strings.Join(unseen, " and ")+
			", which you may not see")
	case in.Pod == nil:
		a.say("It", "would fit "+where)
		if also != "" {
			a.say("It", "would fit "+also)
		}
	case a.Gang != nil && a.Gang.Fits == nil:
		a.sayWaits(what, "its own GPUs are free "+where+"; whether its gang finds all that it needs is open, as "+
			"not all of its pods were looked at to the end")
	case a.Gang != nil && *a.Gang.Fits:
		a.say(what, "waits, but not for GPUs: its own are free "+where+", and its gang finds all that it needs. The "+
			"scheduler is about to place it, or lacks something else")
	case a.Gang != nil:
		text := "waits for its gang: "
		if notThere := a.Gang.notThere(); notThere != "" {
			text += notThere + "; "
		}
		text += "its own GPUs are free " + where
		if len(a.Gang.NoRoom) > 0 {
			text += ", those of the others that are needed at once are not"
		}
		a.say(what, text)
		if a.Gang.HeldBack {
			a.Help = append(a.Help, "a moment: nodes let shares go that they hold back, a few seconds after they see who waits")
		}
	case pod.Spec.SchedulingGroup != nil:
		a.sayWaits(what, "its own GPUs are free "+where+"; the gang may need more at once")
	default:
		a.say(what, "waits, but not for GPUs: those it asks for are free "+where+
			". The scheduler is about to place it, or lacks something else")
	}
}

// where names the nodes with room. Of a claim for which no pod waits, also are others, which a pod has to tolerate.
func (in Input) where(room scheduling.Room) (where, also string) {
	var open, tainted []string
	nodes := in.byName()
	for _, n := range room.Nodes {
		if !n.Open() {
			continue
		}
		var details, taints []string
		if devices := n.Devices(); len(devices) > 0 {
			details = append(details, strings.Join(devices, ", "))
		}
		for _, taint := range nodes[n.Name].Spec.Taints {
			if in.Pod == nil && taint.Effect != corev1.TaintEffectPreferNoSchedule {
				taints = append(taints, taint.ToString())
			}
		}
		to := &open
		if len(taints) > 0 {
			to, details = &tainted, append(details, "tainted "+strings.Join(taints, ", "))
		}
		text := "node " + n.Name
		if len(details) > 0 {
			text += " (" + strings.Join(details, "; ") + ")"
		}
		*to = append(*to, text)
	}
	tolerated := "on " + some(tainted) + ", for a pod that tolerates the taints"
	switch {
	case len(tainted) == 0:
		return "on " + some(open), ""
	case len(open) == 0:
		return tolerated, ""
	default:
		return "on " + some(open), tolerated
	}
}

// say adds a sentence about something to the headline.
func (a *Answer) say(what, text string) {
	a.Why = text
	if a.Headline != "" {
		a.Headline += ". "
	}
	a.Headline += what + " " + text
}

// sayWaits adds that something waits for a reason.
func (a *Answer) sayWaits(what, reason string) {
	a.say(what, "waits: "+reason)
	a.Why = reason
}

func some(names []string) string { return text.List(names, helpMost) }

// help names the ways out that are nearest.
func (a *Answer) help(in Input, room scheduling.Room) {
	var closed, near []scheduling.NodeRoom
	for _, n := range room.Nodes {
		if n.Fits && n.Closed.By != scheduling.Open {
			closed = append(closed, n)
		}
		if n.Closed.By == scheduling.Open && n.GPUs > 0 && len(n.Lacks) > 0 {
			near = append(near, n)
		}
	}
	slices.SortStableFunc(closed, excludedLast)
	for _, n := range closed[:min(len(closed), helpMost)] {
		a.Help = append(a.Help, fmt.Sprintf("node %s has the GPUs free, but %s", n.Name, explain.Closed(n)))
	}
	slices.SortStableFunc(near, scheduling.Nearer)
	// Who holds what is looked for on the nodes that are named alone: each look is at all claims.
	for _, n := range near[:min(len(near), helpMost)] {
		text := explain.Help(n, func(devices []string) string { return heldBy(in, n.Name, devices) })
		if text != "" && n.Nearness() == near[0].Nearness() && !slices.Contains(a.Help, text) {
			a.Help = append(a.Help, text)
		}
	}
}

// heldBy says who holds devices of a node, or others of the same GPUs.
func heldBy(in Input, node string, wanted []string) string {
	gpus := map[int]bool{}
	for _, device := range wanted {
		for _, index := range indicesOf(device) {
			gpus[index] = true
		}
	}
	held := map[string]bool{}
	for _, c := range in.Snapshot.Claims {
		for _, result := range claim.Held(c, v1alpha1.PoolName(node)) {
			if !slices.ContainsFunc(indicesOf(result.Device), func(i int) bool { return gpus[i] }) {
				continue
			}
			text := "claim " + c.Namespace + "/" + c.Name
			if pods := users(c); len(pods) > 0 {
				text = "pod " + strings.Join(pods, ", ")
			}
			if memory, ok := result.ConsumedCapacity[v1alpha1.CapMemory]; ok {
				text += " (" + explain.Written(v1alpha1.CapMemory, memory) + ")"
			}
			held[text] = true
		}
	}
	if len(held) == 0 {
		return ""
	}
	return "; held by " + some(slices.Sorted(maps.Keys(held)))
}

// indicesOf are the GPUs of a device, none where it is not the driver's.
func indicesOf(device string) []int {
	indices, _, _ := devices.ParseDeviceName(device)
	return indices
}
