// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/lru"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling/offer"
)

const (
	// kindsMost is for how many kinds of pods it is remembered which nodes have no room, and what scores: 6 MB with 1,000
	// nodes.
	kindsMost = 256
	// triesMost is on how many nodes the allocator is asked for one pod: the best of them are the likeliest to have room,
	// and the scheduler finds the others.
	triesMost = 8
)

// kindID identifies a kind.
type kindID struct {
	question    scheduling.QuestionID
	cpu, memory int64
	// costly marks pods that may only go to nodes that the scheduler searches in time.
	costly bool
}

// question is what pods with the same claims ask for, as the score counts it; shaped is fleet.shaped when it was found
// out, ranked is false where nodes are not ranked by it, such as for all devices of a node. foreign says which devices
// are none that they ask for, by DeviceClasses of a version.
type question struct {
	requests []score.Request
	ranked   bool
	shaped   uint64
	foreign  map[view.Shape][]bool
	classes  uint64
}

// isForeign reports whether the device at a place of a shape is none that pods ask for.
func (q question) isForeign(shape view.Shape, place int) bool {
	foreign := q.foreign[shape]
	return place < len(foreign) && foreign[place]
}

// kind is what pods that ask for the same have in common.
type kind struct {
	// asks is what they ask for, nil where nodes are not ranked by it, and shaped is fleet.shaped when it was found out.
	asks   *score.Kind
	shaped uint64
	// misses are the nodes without room, at their versions; none is fleet.version when no node had any.
	misses map[string]uint64
	none   uint64
}

// chooser finds the best node for pods, one after the other.
type chooser struct {
	*fleet
	engine                    *scheduling.Engine
	kinds, questions, endings *lru.Cache
}

func newChooser(f *fleet, e *scheduling.Engine) *chooser {
	return &chooser{f, e, lru.New(kindsMost), lru.New(kindsMost), lru.New(kindsMost)}
}

// asked is what a pod asks for, which is found out once for all with its claims: it takes selectors of all devices.
func (c *chooser) asked(ctx context.Context, w *wish) question {
	known, _ := c.questions.Get(w.kind.question)
	q, is := known.(question)
	if is && q.shaped == c.shaped {
		return q
	}
	shapes, offered := c.offers()
	before := q
	q = question{shaped: c.shaped, foreign: map[view.Shape][]bool{}, classes: c.classes.version}
	for i, shape := range shapes {
		if of, known := before.foreign[shape]; known && before.classes == q.classes {
			q.foreign[shape] = of
		} else {
			q.foreign[shape] = c.engine.Foreign(ctx, c.classes.all, offered[i], w.claims)
		}
	}
	q.requests, q.ranked = offer.Asked(ctx, w.claims, offered,
		func(ctx context.Context, i int, r scheduling.Request) []resourceapi.Device {
			own := without(offered[i], func(j int) bool { return q.isForeign(shapes[i], j) })
			return c.engine.Suitable(ctx, c.classes.all, own, r)
		})
	if ctx.Err() == nil { // else a selector may have been cut off
		c.questions.Add(w.kind.question, q)
	}
	return q
}

// kindOf is the kind of a pod. What it asks for is found out again when nodes offer something else.
func (c *chooser) kindOf(ctx context.Context, w *wish) *kind {
	known, _ := c.kinds.Get(w.kind)
	k, _ := known.(*kind)
	if k == nil {
		k = &kind{misses: map[string]uint64{}}
		c.kinds.Add(w.kind, k)
	}
	if k.shaped != c.shaped {
		q := c.asked(ctx, w)
		if k.asks = nil; q.ranked {
			k.asks = &score.Kind{Ask: offer.Ask(w.requests, q.requests)}
		}
		if ctx.Err() == nil {
			k.shaped = c.shaped
		}
	}
	return k
}

// best is the node that a pod should be on, and what it would be allocated there; without a node where none of the best
// has room.
func (c *chooser) best(ctx context.Context, pod *corev1.Pod, w *wish, by score.Setting) (promise, error) {
	if err := c.refresh(); err != nil {
		return promise{}, err
	}
	k := c.kindOf(ctx, w)
	if k.asks == nil && !w.kind.costly || k.none == c.version {
		return promise{}, nil
	}
	may, err := scheduling.Possible(pod, w.claims)
	if err != nil {
		return promise{}, err
	}
	nodes, effort, tries := maps.Keys(c.known), scheduling.NewEffort(1), 0
	if k.asks != nil {
		nodes = c.index.Best(k.asks, by, rand.IntN)
	}
	if w.kind.costly { // one node that takes long does not keep the pod from the others
		effort = scheduling.NewEffort(triesMost)
	}
	for name := range nodes {
		n := c.known[name]
		if k.misses[name] == n.version || c.excluded(ctx, n, pod, may, w) {
			continue
		}
		if tries++; tries > triesMost {
			return promise{}, nil
		}
		if p, err := c.fit(ctx, n, pod, w, effort); err != nil || p.node != "" {
			return p, err
		}
		k.misses[name] = n.version
	}
	k.none = c.version
	return promise{}, nil
}

// on is what a pod would be allocated on a node, whatever other nodes have; without a node where it has no room there.
func (c *chooser) on(ctx context.Context, name string, pod *corev1.Pod, w *wish) (promise, error) {
	if err := c.refresh(); err != nil {
		return promise{}, err
	}
	n := c.known[name]
	may, err := scheduling.Possible(pod, w.claims)
	if n == nil || err != nil || c.excluded(ctx, n, pod, may, w) {
		return promise{}, err
	}
	return c.fit(ctx, n, pod, w, scheduling.NewEffort(1))
}

// fit is what the scheduler's allocator finds for a pod on a node. A node that it gives up on, or cannot be searched to
// the end, has no room as far as nominations go.
func (c *chooser) fit(ctx context.Context, n *node, pod *corev1.Pod, w *wish, effort *scheduling.Effort) (promise,
	error) {
	allocator, err := c.engine.Allocator(ctx, scheduling.Snapshot{Slices: n.searched(c.asked(ctx, w)),
		Claims: n.claims, Classes: c.classes.all}, nil)
	if err != nil {
		return promise{}, fmt.Errorf("look for devices on node %s: %w", n.Name, err)
	}
	allocated, fits, err := allocator.Fit(ctx, n.Node, w.claims, effort)
	if err != nil && ctx.Err() != nil {
		return promise{}, fmt.Errorf("look for devices on node %s: %w", n.Name, errors.Join(context.Cause(ctx), err))
	}
	if err != nil || !fits {
		return promise{}, nil
	}
	return promise{uid: pod.UID, node: n.Name, allocated: allocated, requests: w.requests}, nil
}
