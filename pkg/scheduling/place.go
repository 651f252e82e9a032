// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
)

// Pod is one that is to be placed, with its claims.
type Pod struct {
	Pod    *corev1.Pod
	Claims []*resourceapi.ResourceClaim
}

// Place places pods one after the other, each on the first node, by name, on which the
// scheduler's allocator finds its devices beside those of the pods before it. It returns the
// node of each, empty for one that finds none. Which nodes the scheduler would choose depends
// on more than devices; a pod that finds none here might find some if others were elsewhere.
func (e *Engine) Place(ctx context.Context, s Snapshot, wanted []Pod) ([]string, error) {
	p := placer{engine: e, s: s, nodes: s.byName(), held: heldBy(s.Claims, nil),
		allocated: map[claimName]*resourceapi.ResourceClaim{}, from: map[QuestionID]int{}}
	if err := p.refresh(ctx); err != nil {
		return nil, err
	}
	placed := make([]string, len(wanted))
	for i, w := range wanted {
		node, err := p.place(ctx, w)
		if err != nil {
			return nil, fmt.Errorf("place pod %s/%s: %w", w.Pod.Namespace, w.Pod.Name, err)
		}
		placed[i] = node
	}
	return placed, nil
}

type claimName struct{ namespace, name string }

// placer is a situation in which more and more is allocated.
type placer struct {
	engine    *Engine
	s         Snapshot
	nodes     []*corev1.Node
	held      structured.AllocatedState
	allocator *Allocator
	// allocated are the claims that were, as pods can share them; from is the first node on
	// which equal pods may find room: those before it are no emptier than they were.
	allocated map[claimName]*resourceapi.ResourceClaim
	from      map[QuestionID]int
}

// refresh has the allocator go by what is allocated now.
func (p *placer) refresh(ctx context.Context) (err error) {
	p.allocator, err = p.engine.allocator(ctx, p.s, p.held)
	return err
}

func (p *placer) place(ctx context.Context, w Pod) (string, error) {
	claims := slices.Clone(w.Claims)
	for i, claim := range claims {
		if known := p.allocated[claimName{claim.Namespace, claim.Name}]; known != nil {
			claims[i] = known
		}
	}
	may, err := Possible(w.Pod, claims)
	if err != nil {
		return "", err
	}
	question, err := Question(w.Pod, claims)
	if err != nil {
		return "", err
	}
	unallocated := waitingOf(claims)
	for i := p.from[question]; i < len(p.nodes); i++ {
		p.from[question] = i
		node := p.nodes[i]
		if ClosedTo(ctx, node, w.Pod, may).By != Open || p.s.Closed[node.Name].By != Open {
			continue
		}
		results, fits, err := p.allocator.Fit(ctx, node, unallocated, nodeMost)
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		// Of a claim that nobody can allocate, the answer for the pod itself says more.
		if err != nil || !fits {
			continue
		}
		return node.Name, p.hold(ctx, unallocated, results)
	}
	p.from[question] = len(p.nodes)
	return "", nil
}

// hold enters what claims were allocated.
func (p *placer) hold(ctx context.Context, claims []*resourceapi.ResourceClaim,
	results []resourceapi.AllocationResult) error {
	if len(claims) == 0 {
		return nil
	}
	for i, claim := range claims {
		held := claim.DeepCopy()
		held.Status.Allocation = &results[i]
		p.allocated[claimName{claim.Namespace, claim.Name}] = held
		stockallocator.Hold(&p.held, results[i].Devices.Results)
	}
	return p.refresh(ctx)
}
