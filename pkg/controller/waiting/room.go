// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// rooms find what is free, for all pods that wait, within a part of the time.
type rooms struct {
	// newFinder makes one of the cluster now, with the GPUs' UUIDs or without; now is what time it is.
	newFinder func(ctx context.Context, withUUIDs bool) (*scheduling.Finder, error)
	now       func() time.Time
	// left is for how long it may be looked, at when that was so.
	left time.Duration
	at   time.Time
	// finders are of the moment made, known what they found.
	made    time.Time
	finders map[bool]*scheduling.Finder
	known   map[scheduling.QuestionID]scheduling.Room
}

func newRooms(newFinder func(ctx context.Context, withUUIDs bool) (*scheduling.Finder, error),
	now func() time.Time) *rooms {
	return &rooms{newFinder: newFinder, now: now, left: lookBurst, at: now()}
}

// of is where a pod finds devices. It is false where looking would take too long. told is
// whether the pod was told why it waits: others go first.
func (r *rooms) of(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim,
	withUUIDs, told bool) (scheduling.Room, bool, error) {
	question, err := scheduling.Question(pod, claims)
	if err != nil {
		return scheduling.Room{}, false, err
	}
	now := r.now()
	if now.Sub(r.made) >= fresh {
		r.made, r.finders, r.known = now, map[bool]*scheduling.Finder{}, map[scheduling.QuestionID]scheduling.Room{}
	}
	if room, known := r.known[question]; known {
		return room, true, nil
	}
	r.left, r.at = min(lookBurst, r.left+now.Sub(r.at)/lookPart), now
	if r.left <= 0 || told && r.left <= lookFirst {
		return scheduling.Room{}, false, nil
	}
	defer func() { r.left -= r.now().Sub(now) }()
	limited, cancel := context.WithTimeout(ctx, lookMost)
	defer cancel()
	finder := r.finders[withUUIDs]
	if finder == nil {
		finder, err = r.newFinder(limited, withUUIDs)
	}
	var room scheduling.Room
	if err == nil {
		r.finders[withUUIDs] = finder
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
	r.known[question] = room
	return room, true, nil
}

// newFinder is of the cluster as its caches have it, and as DeviceTaintRules make it: of the devices
// of other drivers it knows nothing.
func (e *explainer) newFinder(ctx context.Context, withUUIDs bool) (*scheduling.Finder, error) {
	rules, served, err := cache.DeviceTaintRules(ctx, e.client)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	e.rulesUnknown = !served
	s, err := e.caches.Snapshot(view.NewPools(withUUIDs), rules)
	if err != nil {
		return nil, err
	}
	return e.engine.NewFinder(ctx, s)
}
