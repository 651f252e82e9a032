// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// nearestMost is how many nodes a message names that come nearest to room.
	nearestMost = 2
	// withNearest makes the message with these another one than that without: who was told the one is told the other.
	withNearest = ". Nearest"
)

// answer is what there is to say to a pod.
type answer struct {
	// text is the message, empty where there is nothing to say; about is what of it makes it
	// another one: what is free on which node changes all the time.
	text, about string
	// full says that GPUs are what the pod waits for, and others have them.
	full bool
	// again is when to look again, RepeatAfter where it is zero; stays says that until then what
	// the pod was told, if anything, stays.
	again time.Duration
	stays bool
}

func says(text string) answer { return answer{text: text, about: text} }

// add adds a part to what there is to say.
func (a *answer) add(separator, text string) {
	if a.text != "" && text != "" {
		text = separator + text
	}
	a.text, a.about = a.text+text, a.about+text
}

// look is one at a pod that the scheduler refused.
type look struct {
	pod *corev1.Pod
	// said is what the scheduler said of it; told says that it was told why it waits.
	said string
	told bool
	*memory
	// claims are those of the pod and the one that the scheduler makes for its extended resources, without the CPUs that
	// they ask for; why is what keeps them from the GPUs whatever is free.
	claims []*resourceapi.ResourceClaim
	cpus   askedCPUs
	why    explain.Explanation
}

// othersHold reports whether it might help the pod if others went.
func (l *look) othersHold() bool {
	return l.why.TooExpensive || l.why.Busy && l.why.Message != ""
}

func (e *explainer) asksForOurs(claim *resourceapi.ResourceClaim) bool {
	some, _ := e.cluster.Ours(claim)
	return some
}

// explain finds what there is to say of the pod's claims; nothing where these are not what it waits for.
func (e *explainer) explain(ctx context.Context, l *look) (answer, error) {
	claims, there, err := podstate.Claims(ctx, e.client, l.pod)
	if err != nil || !there {
		return answer{}, err
	}
	if same := explain.SameClaim(l.pod); same != "" && slices.ContainsFunc(claims, e.asksForOurs) {
		return says(same), nil
	}
	if own := scheduling.ClaimForExtended(l.pod, e.cluster.ClassOf); own != nil {
		claims = append(claims, own)
	}
	l.claims, l.cpus.amount = withoutCPUs(claims)
	if l.cpus.amount > 0 && strings.Contains(l.said, podstate.NoDevices) {
		if l.cpus.faults, err = e.cpuFaults(ctx); err != nil {
			return answer{}, err
		}
	}
	if len(l.claims) == 0 {
		return says(l.cpus.missing(l.said)), nil
	}
	if l.why, err = e.cluster.Explain(ctx, l.pod, l.claims); err != nil {
		return answer{}, err
	}
	if l.why.Busy && l.why.Message != "" && strings.Contains(l.said, podstate.NoDevices) {
		a, err := e.busy(ctx, l)
		if err == nil && a.full {
			a.add("", l.why.OnACK(l.claims))
		}
		return a, err
	}
	l.found = found{}
	if l.why.Busy {
		return answer{}, nil
	}
	more, err := e.cluster.More(ctx, l.pod, l.claims, l.why)
	a := says(l.why.Message + more)
	if l.why.Failing {
		// Nodes open and close to the pod all the time.
		a.again = lookAgain
	}
	return a, err
}

// What is added to the message for a pod for which there are devices.
const (
	// orOthers: of the devices of others it is not known what is free.
	orOthers = ". It may be devices of other drivers that are missing, which the pod asks for, too"
	// yetWaits: the pod's GPUs have been free for a while.
	yetWaits = ", and it still waits. The pod needs something else that the node lacks: the scheduler's Event says what"
	// yetWaitsRules is yetWaits where it is not known what DeviceTaintRules close.
	yetWaitsRules = ", and it still waits. A DeviceTaintRule may close them, or the pod needs something else that the " +
		"node lacks: kubectl inspect cgpu explain pod/%s reads the rules, the scheduler's Event says the rest"
	// closedByRules: what the driver publishes is open. closedNow: some of it is not, or all of it is on nodes that are
	// closed to the pod.
	closedByRules = "the GPUs that the pod asks for take no new claims: DeviceTaintRules close them"
	// unsearched is for requests that find such GPUs each.
	unsearched = "whether a node has room for all requests of the pod at once was not searched to the end: they can be " +
		"met in too many ways"
	closedNow = "the GPUs that the pod asks for take no new claims at the moment"
)

// busy finds what there is to say to a pod for which there are devices: whether some are free is
// found out by the scheduler's allocator.
func (e *explainer) busy(ctx context.Context, l *look) (answer, error) {
	a := answer{text: l.why.Message, about: l.why.Message, full: true}
	ours, looks := l.claims, true
	if l.why.Others {
		ours, looks = e.lookedAt(l.claims)
	}
	if !looks {
		a.add("", orOthers+l.cpus.mayBeMissing())
		return a, nil
	}
	now := e.rooms.now()
	apart := e.cluster.TellsApart(ctx, scheduling.NewMeter(explainCost), ours)
	room, known, err := e.rooms.of(ctx, l.pod, ours, apart, l.told)
	if known && !room.Fits() {
		l.found = found{}
	}
	switch {
	case err != nil:
		return answer{}, err
	case room.Fits():
		on := room.Nodes[len(room.Nodes)-1].Name
		return e.free(l, on, l.free(on, now), len(ours) < len(l.claims)), nil
	case !known:
		if l.why.Unsearched {
			a = says(unsearched)
		}
		if a = l.unknown(a, l.told, now); a.stays {
			return a, nil
		}
	case room.Refused != nil:
	case len(room.Unsearched()) > 0:
		text, helps := explain.Unsearched(room)
		a = answer{text: text + ". What would help: " + helps, about: unsearched}
	default:
		if slices.ContainsFunc(room.Nodes, func(n scheduling.NodeRoom) bool {
			return n.Fits && n.Closed.By != scheduling.ByPod
		}) {
			a = says("no node that the pod can be on has its GPUs free")
			a.full = true
		} else if text := closed(room); text != "" {
			a = says(text)
		}
		if nearest := explain.Nearest(room, nearestMost); nearest != "" {
			a.text += ". " + nearest
			a.about += withNearest
		}
	}
	a.add("", l.cpus.mayBeMissing())
	return a, nil
}

// free finds what there is to say to a pod whose GPUs are free on a node, forLong if they have been for a while. It may
// also wait for devices of others, or for CPUs.
func (e *explainer) free(l *look, on string, forLong, others bool) answer {
	but, again := "", time.Duration(0)
	switch gang, hasGang := podstate.Gang(l.pod); {
	case l.cpus.amount > 0:
		but = l.cpus.mayBeMissing()
	case others:
		but = orOthers
	case hasGang && !e.speaks(l.pod, gang):
		return answer{}
	case hasGang:
		but = ", but its gang (PodGroup " + gang.Name + ") is placed only when enough of its pods find room at once: " +
			"kubectl inspect cgpu explain pod/" + l.pod.Name + " reports whether they do"
	case !forLong:
		return answer{again: lookAgain}
	case e.rulesUnknown:
		but, again = fmt.Sprintf(yetWaitsRules, l.pod.Name), lookAgain
	default:
		but, again = yetWaits, lookAgain
	}
	return answer{text: "the GPUs that the pod asks for are free on node " + on + but, about: but, again: again}
}

// lookedAt are the claims without those for devices of others, of which it is not known what is
// free. It is false where looking would find out nothing: a claim may ask for GPUs and for
// devices of others, such as NICs, at once, and without it GPUs would count as free that are not.
func (e *explainer) lookedAt(claims []*resourceapi.ResourceClaim) (ours []*resourceapi.ResourceClaim, looks bool) {
	for _, claim := range claims {
		some, others := e.cluster.Ours(claim)
		switch waits := claim.Status.Allocation == nil; {
		case waits && some && others:
			return nil, false
		case waits && others:
			continue
		case waits && some:
			looks = true
		}
		ours = append(ours, claim)
	}
	return ours, looks
}

// closed is what there is to say where taints are what the GPUs that come nearest have against the pod, else nothing.
// The driver's own, which are not put down to DeviceTaintRules, begin with its name.
func closed(room scheduling.Room) string {
	farthest, text := scheduling.NoStep, closedByRules
	for _, n := range room.Nodes {
		if n.Closed.By != scheduling.Open {
			continue
		}
		farthest = max(farthest, n.Farthest.Step)
		if slices.ContainsFunc(n.Farthest.Seen, func(s scheduling.Seen) bool {
			return strings.HasPrefix(s.Taint.Key, v1alpha1.DriverName+"/")
		}) {
			text = closedNow
		}
	}
	if farthest != scheduling.Tainted {
		return ""
	}
	return text
}
