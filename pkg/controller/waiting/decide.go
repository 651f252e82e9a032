// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

// fruitless is when a node is nominated again for a pod whose nominations came to nothing: the pod needs something that
// is not looked at here.
var fruitless = backoff.Doubling{Least: 2 * time.Second, Most: 5 * time.Minute}

// state is what is known of a pod that waits.
type state struct {
	held
	// counts says that a node is to be nominated for it: it counts where the scheduler is faster.
	counts bool
	wish   *wish
	// classes is the version of the DeviceClasses that wish was found out by.
	classes uint64
	// nominated is the node that this controller chose last, empty for none, at is when it did; written says that the API
	// server took it, shown that the cache has had it since, and version is that of the fleet when the node was seen to
	// have room.
	nominated string
	at        time.Time
	written   bool
	shown     bool
	version   uint64
	// learned says that what the pod asks for counts among what pods ask for.
	learned bool
	// tries are the nominations that came to nothing.
	tries backoff.Tries
}

// decision is what to do for a pod: to write the node, none where it is empty, or to look again after some time.
type decision struct {
	write bool
	node  string
	again time.Duration
}

// decide chooses the node of a pod, which counts there from now on.
func (n *Nominator) decide(ctx context.Context, pod *corev1.Pod, w *wish) (decision, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, now, named := n.pods[pod.UID], n.Clock.Now(), pod.Status.NominatedNodeName
	if live, there := n.chooser.fleet.pods.Get(cache.Key(pod)); s == nil || there && live.Spec.NodeName != "" {
		return decision{}, nil
	}
	if named != "" && !cache.NominatedByController(pod) {
		return decision{}, n.respect(ctx, pod, w)
	}
	switch {
	case named == s.nominated:
		s.shown = true
	case !s.shown && !s.at.IsZero() && now.Sub(s.at) < underway:
		return decision{again: underway}, nil
	case named == "":
		// The scheduler found no room there, or on no node.
		n.chooser.promise(promise{uid: pod.UID})
		s.nominated, s.tries = "", s.tries.Plus(fruitless, now)
	default:
		// An earlier leader wrote it.
		s.nominated, s.written, s.shown, s.at = named, true, true, now
	}
	if wait := s.tries.Wait(now); named == "" && wait > 0 {
		return decision{again: wait}, nil
	}
	if named != "" {
		if right, err := n.isRight(ctx, pod, w, s); right || err != nil {
			return decision{}, err
		}
	}
	if err := n.learn(ctx, w, s); err != nil {
		return decision{}, err
	}
	var p promise
	var err error
	if n.Planned != nil {
		p, err = n.chooser.on(ctx, n.Planned(pod), pod, w)
	}
	if err == nil && p.node == "" {
		p, err = n.chooser.best(ctx, pod, w, n.settingFor(pod))
	}
	if err != nil || p.node == named {
		return decision{}, err
	}
	if p.node != "" {
		n.chooser.promise(p)
	}
	s.nominated, s.at, s.written, s.shown, s.version = p.node, now, false, false, n.chooser.version
	return decision{write: true, node: p.node}, nil
}

// isRight reports whether the nomination that a pod has stays: the scheduler has not refused it, or the node has room.
func (n *Nominator) isRight(ctx context.Context, pod *corev1.Pod, w *wish, s *state) (bool, error) {
	has, counted := n.chooser.promises[pod.UID]
	if _, refused := podstate.Unschedulable(pod); counted && (!refused || !n.chooser.changedSince(has.node, s.version)) {
		return true, nil
	}
	n.chooser.promise(promise{uid: pod.UID})
	p, err := n.chooser.on(ctx, s.nominated, pod, w)
	if err != nil || p.node == "" {
		return false, err
	}
	n.chooser.promise(p)
	s.version = n.chooser.version + 1 // of when the promise is read
	return true, nil
}

// respect counts a pod on the node that somebody else nominated.
func (n *Nominator) respect(ctx context.Context, pod *corev1.Pod, w *wish) error {
	named := pod.Status.NominatedNodeName
	if n.chooser.promises[pod.UID].node == named {
		return nil
	}
	n.chooser.promise(promise{uid: pod.UID})
	p, err := n.chooser.on(ctx, named, pod, w)
	if err != nil {
		return err
	}
	n.chooser.promise(promise{uid: pod.UID, node: named, allocated: p.allocated, requests: w.requests})
	return nil
}

// learn has what a pod asks for count among what pods ask for, once.
func (n *Nominator) learn(ctx context.Context, w *wish, s *state) error {
	if s.learned {
		return nil
	}
	if err := n.teach(); err != nil {
		return err
	}
	if asks := n.chooser.kindOf(ctx, w).asks; asks != nil {
		n.chooser.index.Learn(asks.Ask)
		s.learned = true
	}
	return nil
}

// teach has the pods on nodes tell, once, what was learned before a restart.
func (n *Nominator) teach() error {
	if err := n.chooser.refresh(); err != nil || n.taught {
		return err
	}
	n.taught = true
	for _, ask := range n.chooser.placedAsks() {
		n.chooser.index.Learn(ask)
	}
	return nil
}

// wrote notes whether a nomination stands in the pod. Where it does not, the pod counts no more on the node.
func (n *Nominator) wrote(uid types.UID, node string, written bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.pods[uid]
	switch {
	case s == nil || s.nominated != node:
	case written:
		s.written = true
	default:
		s.nominated, s.at = "", time.Time{}
	}
	if !written && n.chooser.promises[uid].node == node {
		n.chooser.promise(promise{uid: uid})
	}
}
