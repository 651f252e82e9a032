// SPDX-License-Identifier: Apache-2.0

package pending

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// nearestMost is how many nodes a message names that come nearest to room.
	nearestMost = 2
	// lookAgain is when a pod is looked at again whose GPUs are free: the scheduler is about to
	// place it, or others take them.
	lookAgain = time.Minute
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

// What is added to the message for a pod for which there are devices.
const (
	// orOthers: of the devices of others it is not known what is free.
	orOthers = ". It may be devices of other drivers that are missing, which the pod asks for, too"
	// yetWaits: the pod's GPUs have been free for a while.
	yetWaits = ", and it still waits. The pod needs something else that the node lacks: the scheduler's Event says what"
	// yetWaitsRules is yetWaits where it is not known what DeviceTaintRules close.
	yetWaitsRules = ", and it still waits. A DeviceTaintRule may close them, or the pod needs something else that the " +
		"node lacks: kubectl inspect cgpu explain pod/%s reads the rules, the scheduler's Event says the rest"
	// closedByRules: what the driver publishes is open.
	closedByRules = "the GPUs that the pod asks for take no new claims: DeviceTaintRules close them"
)

// busy is what there is to say to a pod for which there are devices: whether some are free is
// found out by the scheduler's allocator.
func (w *watcher) busy(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim, cpus int64,
	message string) (answer, error) {
	a := says(message)
	a.full = true
	mayBeCPUs := func() {
		if cpus > 0 {
			a.add("", fmt.Sprintf(orCPUs, cpus))
		}
	}
	ours, looks := w.lookedAt(claims)
	if !looks {
		a.add("", orOthers)
		mayBeCPUs()
		return a, nil
	}
	m, now := w.memoryOf(pod), w.looks.now()
	apart := w.cluster.TellsApart(ctx, scheduling.NewMeter(explainCost), ours)
	room, known, err := w.looks.room(ctx, pod, ours, apart, m.answered(now))
	switch {
	case err != nil:
		return answer{}, err
	case !known:
		if a = m.unknown(a, now); !a.stays {
			mayBeCPUs()
		}
		return a, nil
	case room.Refused != nil:
		m.full(message, a.about, now)
		mayBeCPUs()
		return a, nil
	case !room.Fits():
		if slices.ContainsFunc(room.Nodes, func(n scheduling.NodeRoom) bool {
			return n.Fits && n.Closed.By != scheduling.ByPod
		}) {
			a = says("no node that the pod can be on has its GPUs free")
			a.full = true
		} else if closed(room) {
			a = says(closedByRules)
		}
		if nearest := explain.Nearest(room, nearestMost); nearest != "" {
			a.text += ". " + strings.ToUpper(nearest[:1]) + nearest[1:]
			a.about += withNearest
		}
		m.full(message, a.about, now)
		mayBeCPUs()
		return a, nil
	}
	on := room.Nodes[len(room.Nodes)-1].Name
	forLong := m.free(on, now)
	free := func(but string) (answer, error) {
		return answer{text: "the GPUs that the pod asks for are free on node " + on + but, about: but}, nil
	}
	switch group := pod.Spec.SchedulingGroup; {
	case cpus > 0:
		return free(fmt.Sprintf(orCPUs, cpus))
	case len(ours) < len(claims):
		return free(orOthers)
	case group != nil && group.PodGroupName != nil && !w.speaks(pod):
		return answer{}, nil
	case group != nil && group.PodGroupName != nil:
		return free(", but its gang (PodGroup " + *group.PodGroupName + ") is placed only when enough of its pods find " +
			"room at once: kubectl inspect cgpu explain pod/" + pod.Name + " says whether they do")
	case forLong:
		but := yetWaits
		if w.rulesUnknown {
			but = fmt.Sprintf(yetWaitsRules, pod.Name)
		}
		a, err := free(but)
		a.again = lookAgain
		return a, err
	default:
		return answer{again: lookAgain}, nil
	}
}

// lookedAt are the claims without those for devices of others, of which it is not known what is
// free. It is false where looking would find out nothing: a claim may ask for GPUs and for
// devices of others, such as NICs, at once, and without it GPUs would count as free that are not.
func (w *watcher) lookedAt(claims []*resourceapi.ResourceClaim) (ours []*resourceapi.ResourceClaim, looks bool) {
	for _, claim := range claims {
		some, others := w.cluster.Ours(claim)
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

// closed says whether taints are what the GPUs that come nearest have against the pod.
func closed(room scheduling.Room) bool {
	farthest := scheduling.NoStep
	for _, n := range room.Nodes {
		if n.Closed.By == scheduling.Open {
			farthest = max(farthest, n.Farthest.Step)
		}
	}
	return farthest == scheduling.Tainted
}

// situation is the cluster as its caches have it, and as DeviceTaintRules make it: of the devices
// of other drivers it knows nothing.
func (w *watcher) situation(ctx context.Context, withUUIDs bool) (scheduling.Snapshot, error) {
	rules, served, err := cache.DeviceTaintRules(ctx, w.Client)
	if err != nil && !apierrors.IsForbidden(err) {
		return scheduling.Snapshot{}, err
	}
	w.rulesUnknown = !served
	s := scheduling.Snapshot{
		Claims:  w.claims.List(),
		Classes: w.classes.List(),
	}
	published := map[string][]*view.Slice{}
	for _, slice := range w.slices.List() {
		published[slice.Node] = append(published[slice.Node], slice)
	}
	pools := view.NewPools(withUUIDs)
	for _, node := range w.nodes.List() {
		s.Nodes = append(s.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels}, Spec: w.Closed(node.Name)})
		newest, whole := view.Newest(node.Name, published[node.Name])
		if !whole {
			continue
		}
		offered, err := pools.ForAllocator(node.Name, newest)
		if err != nil {
			return s, err
		}
		s.Slices = append(s.Slices, scheduling.WithRules(offered, rules)...)
	}
	return s, nil
}

// speakers are, by gang, the pod that is told what its gang waits for: the others would be told
// the same.
type speakers map[toolscache.ObjectName]string

// speaks says whether a pod is told for its gang: another that was waits no more.
func (w *watcher) speaks(pod *corev1.Pod) bool {
	gang, key := gangOf(pod), cache.Key(pod)
	if told := w.speakers[gang]; told != key && w.inGang(told, gang) {
		return false
	}
	w.speakers[gang] = key
	return true
}

// inGang says whether there is such a pod, which waits with a gang.
func (w *watcher) inGang(key string, gang toolscache.ObjectName) bool {
	pod, exists := w.pods.Get(key)
	if !exists || gangOf(pod) != gang {
		return false
	}
	_, waits := podstate.Unschedulable(pod)
	return waits
}

// forgetGangs forgets those whose speakers wait no more.
func (w *watcher) forgetGangs() {
	maps.DeleteFunc(w.speakers, func(gang toolscache.ObjectName, told string) bool { return !w.inGang(told, gang) })
}

// gangOf is the gang of a pod, without a name where it has none.
func gangOf(pod *corev1.Pod) toolscache.ObjectName {
	gang, _ := podstate.Gang(pod)
	return gang
}
