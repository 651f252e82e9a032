// SPDX-License-Identifier: Apache-2.0

// Package mpswatch tells in Events what gpu-mps-supervisor and the hook of containers leave in their directory: faults
// of programs that ended others, and containers whose start waits for a daemon.
package mpswatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/beat"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const (
	// interval is how often it is looked. Where MPS is not used there are no files.
	interval = 2 * time.Second
	// freshFor is how old a fault may be that is told: the plugin before this one has told the others.
	freshFor = 5 * time.Minute
)

// Options are what a Watch works with.
type Options struct {
	Dir mps.Dir
	// Pods are the names of pods with claims, by UID, as far as they can be found out.
	Pods       func(ctx context.Context, uids map[types.UID]bool) (map[types.UID]types.NamespacedName, error)
	Events     *report.Reporter
	NodeEvents report.NodeEvents
	Clock      clock.Clock
}

// Watch tells. It has to Run.
type Watch struct {
	Options
	// told are the faults that were told last, by daemon.
	told map[string]mps.Fault
	// waiting are the pods that were told that they wait.
	waiting map[types.UID]bool
}

// New returns a Watch.
func New(o Options) *Watch { return &Watch{Options: o, told: map[string]mps.Fault{}} }

// Run tells until the context ends.
func (w *Watch) Run(ctx context.Context) { beat.Until(ctx, w.Clock, interval, w.Look) }

// Look tells what is new.
func (w *Watch) Look(ctx context.Context) {
	before := w.waiting
	w.waiting = map[types.UID]bool{}
	for _, dir := range []mps.Dir{w.Dir, w.Dir.OfNode()} {
		uuids, err := dir.Served()
		for _, uuid := range uuids {
			err = errors.Join(err, w.tellWaiting(dir, uuid))
			if s, statusErr := dir.Status(uuid); statusErr == nil && s.Fault != nil {
				// One daemon of several GPUs has one directory.
				w.tellFault(ctx, dir.PipeDir(uuid), uuid, *s.Fault)
			}
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "It is not known what became of MPS control daemons")
		}
	}
	for uid := range before {
		if !w.waiting[uid] {
			w.Events.Clear(uid, v1alpha1.ReasonContainerWaiting)
		}
	}
}

func (w *Watch) tellWaiting(dir mps.Dir, uuid string) error {
	all, err := dir.Waiting(uuid)
	for _, c := range all {
		if c.UID != "" {
			w.waiting[c.UID] = true
			w.Events.Warn(report.Pod(c.Namespace, c.Pod, c.UID), v1alpha1.ReasonContainerWaiting, fmt.Sprintf(
				"A container waits to start on %s: %s. It starts when the daemon serves; after %.0f s, or %.0f s where the "+
					"daemon is down, it is refused", uuid, c.Reason, mps.LatePatience.Seconds(), mps.DownPatience.Seconds()))
		}
	}
	return err
}

// tellFault tells the node and the pods of a fault, once, and the node when it is over. Pods do not learn of others'
// namespaces.
func (w *Watch) tellFault(ctx context.Context, daemon, uuid string, f mps.Fault) {
	told := w.told[daemon]
	known := told.Seen.Equal(f.Seen)
	if known && told.Over.Equal(f.Over) || !known && w.Clock.Since(f.Seen) > freshFor {
		return
	}
	w.told[daemon] = f
	uids := map[types.UID]bool{}
	for _, c := range f.Lost {
		uids[c.Pod] = c.Pod != ""
	}
	pods, err := w.Pods(ctx, uids)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Not all pods are known whose programs MPS has ended")
	}
	message := func(namespace string) string {
		return fmt.Sprintf("On %s %s. Restart what does not start again by itself: "+
			"docs/isolation.md#fault-propagation", uuid, f.Tell(func(c mps.Client) string {
			pod, named := pods[c.Pod]
			switch {
			case !named:
				return c.String()
			case namespace != "" && pod.Namespace != namespace:
				return "a process of another namespace, which the node's Events name"
			}
			return fmt.Sprintf("%s of pod %s", c, pod)
		}))
	}
	w.NodeEvents.Warn(v1alpha1.ReasonMPSFault, message(""))
	if known {
		return
	}
	for uid, pod := range pods {
		w.Events.Warn(report.Pod(pod.Namespace, pod.Name, uid), v1alpha1.ReasonMPSFault, message(pod.Namespace))
	}
}
