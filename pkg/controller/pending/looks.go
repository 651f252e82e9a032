// SPDX-License-Identifier: Apache-2.0

package pending

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// fresh is for how long what was found free is told: equal requests share one look, and
	// all of that time are answered of one moment.
	fresh = 5 * time.Second
	// lookPart is the part of the time that looking may take, 1/lookPart, lookBurst how much of
	// it may be saved up, lookMost how long one look may take. The last lookFirst of what is left
	// is for pods that were not told anything yet.
	lookPart  = 10
	lookBurst = 2 * time.Second
	lookMost  = time.Second
	lookFirst = time.Second
)

// looks find what is free, for all pods that wait, within a part of the time.
type looks struct {
	// newFinder makes one of the cluster now, with the GPUs' UUIDs or without; now is what time it is.
	newFinder func(ctx context.Context, withUUIDs bool) (*scheduling.Finder, error)
	now       func() time.Time
	// left is for how long it may be looked, at when that was so.
	left time.Duration
	at   time.Time
	// finders are of the moment made, rooms what they found.
	made    time.Time
	finders map[bool]*scheduling.Finder
	rooms   map[scheduling.QuestionID]scheduling.Room
}

func newLooks(newFinder func(ctx context.Context, withUUIDs bool) (*scheduling.Finder, error),
	now func() time.Time) *looks {
	return &looks{newFinder: newFinder, now: now, left: lookBurst, at: now()}
}

// room is where a pod finds devices. It is false where looking would take too long. told is
// whether the pod was told why it waits: others go first.
func (l *looks) room(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim,
	withUUIDs, told bool) (scheduling.Room, bool, error) {
	question, err := scheduling.Question(pod, claims)
	if err != nil {
		return scheduling.Room{}, false, err
	}
	now := l.now()
	if now.Sub(l.made) >= fresh {
		l.made, l.finders, l.rooms = now, map[bool]*scheduling.Finder{}, map[scheduling.QuestionID]scheduling.Room{}
	}
	if room, known := l.rooms[question]; known {
		return room, true, nil
	}
	l.left, l.at = min(lookBurst, l.left+now.Sub(l.at)/lookPart), now
	if l.left <= 0 || told && l.left <= lookFirst {
		return scheduling.Room{}, false, nil
	}
	defer func() { l.left -= l.now().Sub(now) }()
	limited, cancel := context.WithTimeout(ctx, lookMost)
	defer cancel()
	finder := l.finders[withUUIDs]
	if finder == nil {
		finder, err = l.newFinder(limited, withUUIDs)
	}
	var room scheduling.Room
	if err == nil {
		l.finders[withUUIDs] = finder
		room, err = finder.Find(limited, pod, claims, scheduling.FirstRoom)
	}
	switch {
	case err != nil && limited.Err() != nil && ctx.Err() == nil:
		klog.FromContext(ctx).V(2).Info("What is free for a pod that waits takes too long to find out", "pod",
			klog.KObj(pod), "after", lookMost)
		return scheduling.Room{}, false, nil
	case err != nil:
		return scheduling.Room{}, false, err
	}
	l.rooms[question] = room
	return room, true, nil
}

// newFinder is of the cluster as its caches have it, and as DeviceTaintRules make it: of the devices
// of other drivers it knows nothing.
func (w *watcher) newFinder(ctx context.Context, withUUIDs bool) (*scheduling.Finder, error) {
	rules, served, err := cache.DeviceTaintRules(ctx, w.Client)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
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
			return nil, err
		}
		s.Slices = append(s.Slices, scheduling.WithRules(offered, rules)...)
	}
	return w.Engine.NewFinder(ctx, s)
}

const (
	// withoutNearest is how long a pod waits for a look at what is free before it is told without
	// what a look finds.
	withoutNearest = 3 * fresh
	// withNearest makes the message with the nodes that come nearest another one than that
	// without: who was told the one is told the other.
	withNearest = ". Nearest"
)

// memory is what earlier looks at a pod leave.
type memory struct {
	uid types.UID
	// freeOn is the node on which its GPUs are found free at each look since freeSince, empty
	// where they were not at the last.
	freeOn    string
	freeSince time.Time
	// unknownSince is since when there is no time to look; zero where there was.
	unknownSince time.Time
}

// memoryOf is what is remembered of a pod. Only sync may use it, which is called again as long
// as there is something, and forgets it at the end.
func (w *watcher) memoryOf(pod *corev1.Pod) *memory {
	key := cache.Key(pod)
	if m := w.memories[key]; m == nil || m.uid != pod.UID {
		w.memories[key] = &memory{uid: pod.UID}
	}
	return w.memories[key]
}

// free notes that a look has found the GPUs free on a node, and reports whether they have been there
// for so long that the scheduler would have taken them.
func (m *memory) free(on string, now time.Time) bool {
	if on != m.freeOn {
		m.freeOn, m.freeSince = on, now
	}
	m.unknownSince = time.Time{}
	return now.Sub(m.freeSince) >= lookAgain
}

// unknown is what there is to say while there is no time to look: nothing at first, then the message alone. What the
// pod was told stays; where its GPUs were free, the message may be wrong.
func (m *memory) unknown(a answer, told bool, now time.Time) answer {
	if m.unknownSince.IsZero() {
		m.unknownSince = now
	}
	since := now.Sub(m.unknownSince)
	a.again, a.stays = min(max(fresh, since), RepeatAfter), told || since < withoutNearest || m.freeOn != ""
	return a
}
