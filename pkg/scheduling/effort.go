// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
)

// How long the scheduler's allocator may search is bounded in looks: an answer must not depend on how busy the machine
// is. A look is a quarter of a microsecond or less on a slow core. Each step of the search takes some, one more for
// each of the node's devices, and four for one that can be shared. A unit of the estimated cost of a CEL expression
// takes as long.
const (
	// nodeLooks is for one node: its search, and once more for the selectors. It is about twice what a pod may cost the
	// scheduler there (100 ms), so that no pod that the policies admit is cut off, whichever the mode.
	nodeLooks   = 1_000_000
	anyLooks    = 8
	sharedLooks = 4
	// everyEffort is for who looks at all nodes, and firstEffort for who asks often, in nodes.
	everyEffort = 50
	firstEffort = 5
)

// ErrUnsearched is that the search of a node was cut off: it is not known whether the claims fit there.
var ErrUnsearched = errors.New("not searched to the end")

var (
	errManyWays = fmt.Errorf("%w: the requests can be met in too many ways", ErrUnsearched)
	errNoEffort = fmt.Errorf("%w: the nodes before it took too long", ErrUnsearched)
	// ErrSelectors is the ErrUnsearched of selectors.
	ErrSelectors = fmt.Errorf("%w: the selectors take too long to evaluate", ErrUnsearched)
)

// Effort is what a question may still cost the scheduler's allocator, on all nodes together. It is for one goroutine at
// a time.
type Effort struct{ left int64 }

// NewEffort is enough to search so many nodes for as long as one may be searched; most take far less.
func NewEffort(nodes int64) *Effort { return &Effort{nodes * nodeLooks} }

// search is the context of one search. The allocator asks for its error at each step, and so ends after most of them.
type search struct {
	context.Context
	steps, most int64
}

func (s *search) Err() error {
	if s.steps++; s.cutOff() {
		return ErrUnsearched
	}
	return s.Context.Err()
}

func (s *search) cutOff() bool { return s.steps > s.most }

// stepLooks are, by node, how many looks its devices take; those for "" are taken on each node.
func stepLooks(published []*resourceapi.ResourceSlice) map[string]int64 {
	out := map[string]int64{}
	for _, slice := range published {
		node := ptr.Deref(slice.Spec.NodeName, "")
		for i := range slice.Spec.Devices {
			if ptr.Deref(slice.Spec.Devices[i].AllowMultipleAllocations, false) {
				out[node] += sharedLooks
			} else {
				out[node]++
			}
		}
	}
	return out
}

func (a *Allocator) stepLooks(node string) int64 { return anyLooks + a.looks[node] + a.looks[""] }

// selectorLooks is what evaluating the claims' selectors for the devices of a node may take; an error is that it is too
// much. Those of DeviceClasses are not a tenant's.
func (a *Allocator) selectorLooks(node string, claims []*resourceapi.ResourceClaim) (int64, error) {
	var cost int64
	for _, claim := range claims {
		of, known := a.costs[claim]
		if !known {
			of = a.engine.cost(claim)
			a.costs[claim] = of
		}
		cost += of
	}
	if cost *= a.stepLooks(node); cost > nodeLooks {
		return 0, ErrSelectors
	}
	return cost, nil
}

// cost is what a claim's selectors cost for one device by CEL's estimate, and no more than matters. That of one that
// does not compile is the allocator's to tell of.
func (e *Engine) cost(claim *resourceapi.ResourceClaim) int64 {
	var sum int64
	for i := range claim.Spec.Devices.Requests {
		for _, r := range Alternatives(&claim.Spec.Devices.Requests[i]) {
			for _, expression := range r.Selectors {
				known, ok := e.costs.Get(expression)
				cost, _ := known.(int64)
				if !ok {
					cost = int64(min(stockallocator.Cost(expression), nodeLooks+1))
					e.costs.Add(expression, cost)
				}
				sum = min(sum+cost, nodeLooks+1)
			}
		}
	}
	return sum
}
