// SPDX-License-Identifier: Apache-2.0

// Package mpswatch tells in Events what gpu-mps-supervisor and the hook of containers leave in their directory: faults
// of programs that ended others, and containers whose start waits for a daemon.
package mpswatch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/beat"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

const (
	// interval is how often it is looked. Where MPS is not used there are no files.
	interval = 2 * time.Second
	// freshFor is how old a fault may be that is told: the plugin before this one has told the others.
	freshFor = 5 * time.Minute
	// mostNamed is how many pods a message names.
	mostNamed = 8
)

// Options are what a Watch works with.
type Options struct {
	Dir mps.Dir
	// Index is a GPU's, -1 if there is no such GPU any more.
	Index func(uuid string) int
	// Pods are the names of pods with claims, by UID, as far as they can be found out.
	Pods       func(ctx context.Context, uids []types.UID) (map[types.UID]types.NamespacedName, error)
	Events     *report.Reporter
	NodeEvents report.NodeEvents
	Clock      clock.Clock
}

// Watch tells. It has to Run.
type Watch struct {
	Options
	// told is when the fault was seen that was told last, over whether its end was told, by daemon.
	told map[string]time.Time
	over map[string]bool
	// waiting are the pods that were told that they wait.
	waiting map[types.UID]bool
}

// New returns a Watch.
func New(o Options) *Watch {
	return &Watch{Options: o, told: map[string]time.Time{}, over: map[string]bool{}, waiting: map[types.UID]bool{}}
}

// Run tells until the context ends.
func (w *Watch) Run(ctx context.Context) { beat.Until(ctx, w.Clock, interval, w.Look) }

// Look tells what is new.
func (w *Watch) Look(ctx context.Context) {
	waiting := map[types.UID]bool{}
	for _, dir := range []mps.Dir{w.Dir, w.Dir.OfNode()} {
		uuids, err := dir.Served()
		if err != nil {
			klog.FromContext(ctx).Error(err, "It is not known what became of MPS control daemons")
			continue
		}
		for i, uuid := range uuids {
			w.tellWaiting(ctx, dir, uuid, waiting)
			daemon, of := uuid, fmt.Sprintf("GPU %d", w.Index(uuid))
			if dir != w.Dir {
				// All have the same one.
				daemon, of = string(dir), "the GPUs of the node, which have one MPS daemon"
			}
			if s, err := dir.Status(uuid); err == nil && s.Fault != nil && (i == 0 || dir == w.Dir) {
				w.tellFault(ctx, daemon, of, *s.Fault)
			}
		}
	}
	for uid := range w.waiting {
		if !waiting[uid] {
			w.Events.Clear(uid, v1alpha1.ReasonContainerWaiting)
		}
	}
	w.waiting = waiting
}

func (w *Watch) tellWaiting(ctx context.Context, dir mps.Dir, uuid string, waiting map[types.UID]bool) {
	all, err := dir.Waiting(uuid)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A note of a container that waited is not removed")
	}
	for _, c := range all {
		if c.UID == "" {
			continue
		}
		waiting[c.UID] = true
		w.Events.Warn(report.Pod(c.Namespace, c.Pod, c.UID), v1alpha1.ReasonContainerWaiting, fmt.Sprintf(
			"A container of the pod waits to start on GPU %d: %s. It starts when the daemon serves; after 85 s, or 10 s where "+
				"the daemon is down, it is refused", w.Index(uuid), c.Reason))
	}
}

// tellFault tells the node and the pods of a fault, once, and the node when it is over.
func (w *Watch) tellFault(ctx context.Context, daemon, of string, f mps.Fault) {
	known, over := w.told[daemon].Equal(f.Seen), !f.Over.IsZero()
	switch {
	case !known && w.Clock.Since(f.Seen) > freshFor:
		return
	case known && over && !w.over[daemon]:
		w.NodeEvents.Normal(v1alpha1.ReasonMPSFault, fmt.Sprintf("After a fault of a program on %s, %s", of, f.Again()))
	}
	w.over[daemon] = over
	if known {
		return
	}
	w.told[daemon] = f.Seen
	var uids []types.UID
	for _, c := range f.Lost {
		if c.Pod != "" && !slices.Contains(uids, c.Pod) {
			uids = append(uids, c.Pod)
		}
	}
	pods, err := w.Pods(ctx, uids)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Not all pods are known whose programs MPS has ended")
	}
	w.NodeEvents.Warn(v1alpha1.ReasonMPSFault, nodeMessage(of, f, pods))
	for _, uid := range uids {
		if pod, named := pods[uid]; named {
			w.Events.Warn(report.Pod(pod.Namespace, pod.Name, uid), v1alpha1.ReasonMPSFault, podMessage(of, uid, f, pods))
		}
	}
}

// nodeMessage names all.
func nodeMessage(of string, f mps.Fault, pods map[types.UID]types.NamespacedName) string {
	whose := "a program, of which neither MPS nor the kernel's log says whose it was,"
	if f.Culprit != nil {
		whose = named(*f.Culprit, pods)
	}
	var lost []string
	for _, c := range f.Lost {
		if f.Culprit == nil || c.PID != f.Culprit.PID {
			lost = append(lost, named(c, pods))
		}
	}
	with := "no other program was known"
	if len(lost) > 0 {
		with = "lost with it are " + text.List(lost, mostNamed)
	}
	return fmt.Sprintf("On %s %s had a fatal fault%s, which ends the programs of all clients of MPS: %s; %s. %s", of,
		whose, f.Number(), with, f.Again(), advice)
}

// podMessage is for who may not know the pods of other namespaces.
func podMessage(of string, uid types.UID, f mps.Fault, pods map[types.UID]types.NamespacedName) string {
	var own []string
	for _, c := range f.Lost {
		if c.Pod == uid {
			own = append(own, c.String())
		}
	}
	what := fmt.Sprintf("MPS ended %s of this pod", strings.Join(own, ", "))
	switch {
	case f.Culprit == nil:
		what += fmt.Sprintf(" with a fatal fault%s of a program on %s: whose it was is not known", f.Number(), of)
	case f.Culprit.Pod == uid:
		what = fmt.Sprintf("On %s %s of this pod had a fatal fault%s, which ends the programs of all clients of MPS",
			of, f.Culprit, f.Number())
	case pods[f.Culprit.Pod].Namespace == pods[uid].Namespace:
		what += fmt.Sprintf(" with the fatal fault%s of %s on %s", f.Number(), named(*f.Culprit, pods), of)
	default:
		what += fmt.Sprintf(" with a fatal fault%s on %s, of a program of another namespace, which the node's Events name",
			f.Number(), of)
	}
	return fmt.Sprintf("%s; %s. %s", what, f.Again(), advice)
}

const advice = "Restart what does not start again by itself: docs/isolation.md#a-fault-of-one-program-ends-all."

func named(c mps.Client, pods map[types.UID]types.NamespacedName) string {
	if pod, known := pods[c.Pod]; known {
		return fmt.Sprintf("%s of pod %s", c, pod)
	}
	return c.String()
}
