// SPDX-License-Identifier: Apache-2.0

package pending

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// fresh is for how long what was found free is told: equal requests share one look, and
	// all of that time are answered of one moment.
	fresh = 5 * time.Second
	// lookPart is the part of the time that looking may take, 1/lookPart, lookBurst how much of
	// it may be saved up, lookMost how long one look may take. The last lookFirst of what is left
	// is for pods of which nothing was found out yet.
	lookPart  = 10
	lookBurst = 2 * time.Second
	lookMost  = time.Second
	lookFirst = time.Second
)

// looks find what is free, for all pods that wait, within a part of the time.
type looks struct {
	// situation is the cluster now, with the GPUs' UUIDs or without, now what time it is.
	situation func(ctx context.Context, withUUIDs bool) (scheduling.Snapshot, error)
	now       func() time.Time
	engine    *scheduling.Engine
	// left is for how long it may be looked, at when that was so.
	left time.Duration
	at   time.Time
	// finders are of the moment made, rooms what they found.
	made    time.Time
	finders map[bool]*scheduling.Finder
	rooms   map[scheduling.QuestionID]scheduling.Room
}

func newLooks(situation func(ctx context.Context, withUUIDs bool) (scheduling.Snapshot, error),
	now func() time.Time) *looks {
	return &looks{situation: situation, now: now, engine: scheduling.NewEngine(scheduling.ExpressionsMost),
		left: lookBurst, at: now()}
}

// room is where a pod finds devices. It is false where looking would take too long. answered is
// whether that was found out for the pod before.
func (l *looks) room(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim,
	withUUIDs, answered bool) (scheduling.Room, bool, error) {
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
	if l.left <= 0 || answered && l.left <= lookFirst {
		return scheduling.Room{}, false, nil
	}
	defer func() { l.left -= l.now().Sub(now) }()
	limited, cancel := context.WithTimeout(ctx, lookMost)
	defer cancel()
	room, err := l.look(limited, pod, claims, withUUIDs)
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

func (l *looks) look(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim,
	withUUIDs bool) (scheduling.Room, error) {
	finder := l.finders[withUUIDs]
	if finder == nil {
		situation, err := l.situation(ctx, withUUIDs)
		if err != nil {
			return scheduling.Room{}, err
		}
		if finder, err = l.engine.NewFinder(ctx, situation); err != nil {
			return scheduling.Room{}, err
		}
		l.finders[withUUIDs] = finder
	}
	return finder.FindFirst(ctx, pod, claims)
}
