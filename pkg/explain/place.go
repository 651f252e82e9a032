// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
)

// Wanted is a pod that is to be placed, with its claims.
type Wanted struct {
	Pod    *corev1.Pod
	Claims []*resourceapi.ResourceClaim
}

// Place places pods one after the other, each on the first node, by name, on which the
// scheduler's allocator finds its devices beside those of the pods before it. It returns the
// node of each, empty for one that finds none. Which nodes the scheduler would choose depends
// on more than devices; a pod that finds none here might find some if others were elsewhere.
func Place(ctx context.Context, s Situation, wanted []Wanted) ([]string, error) {
	p := placer{s: s, nodes: slices.SortedFunc(slices.Values(s.Nodes), byNodeName), state: stockallocator.Nothing(),
		compiled:  stockallocator.Expressions(compiledMost),
		allocated: map[claimName]*resourceapi.ResourceClaim{}, from: map[QuestionID]int{}}
	for _, claim := range s.Claims {
		if claim.Status.Allocation != nil {
			stockallocator.Hold(&p.state, claim.Status.Allocation.Devices.Results)
		}
	}
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
	s         Situation
	nodes     []*corev1.Node
	state     structured.AllocatedState
	compiled  *cel.Cache
	allocator structured.Allocator
	// allocated are the claims that were, as pods can share them; from is the first node on
	// which equal pods may find room: those before it are no emptier than they were.
	allocated map[claimName]*resourceapi.ResourceClaim
	from      map[QuestionID]int
}

// refresh has the allocator go by what is allocated now.
func (p *placer) refresh(ctx context.Context) (err error) {
	p.allocator, err = structured.NewAllocator(ctx, stockallocator.Features(), p.state,
		stockallocator.Classes(p.s.Classes), p.s.Slices, p.compiled)
	if err != nil {
		return fmt.Errorf("set up the scheduler's allocator: %w", err)
	}
	return nil
}

func (p *placer) place(ctx context.Context, w Wanted) (string, error) {
	claims := slices.Clone(w.Claims)
	for i, claim := range claims {
		if known := p.allocated[claimName{claim.Namespace, claim.Name}]; known != nil {
			claims[i] = known
		}
	}
	may, err := where(w.Pod, claims)
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
		if closedTo(ctx, node, w.Pod, may) != "" || p.s.Closed[node.Name] != "" {
			continue
		}
		results, err := allocate(ctx, p.allocator, node, unallocated)
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		// Of a claim that nobody can allocate, the answer for the pod itself says more.
		if err != nil || len(results) != len(unallocated) {
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
		stockallocator.Hold(&p.state, results[i].Devices.Results)
	}
	return p.refresh(ctx)
}

// allocate asks an allocator for devices of a node, for as long as the scheduler does.
func allocate(ctx context.Context, allocator structured.Allocator, node *corev1.Node,
	claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, allocateMost)
	defer cancel()
	return allocator.Allocate(ctx, node, claims)
}
