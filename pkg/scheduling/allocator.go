// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
)

const (
	// nodeMost is how long the scheduler's allocator may look at one node: its search is
	// exhaustive. The scheduler lets it have as long (filterTimeout of its plugin
	// DynamicResources).
	nodeMost = 10 * time.Second
	// ExpressionsMost is how many compiled CEL expressions are kept where claims of all kinds are
	// looked at.
	ExpressionsMost = 500
)

// NewAllocator is structured.NewAllocator.
type NewAllocator func(ctx context.Context, features structured.Features, allocated structured.AllocatedState,
	classes structured.DeviceClassLister, slices []*resourceapi.ResourceSlice, compiled *cel.Cache) (
	structured.Allocator, error)

// Engine makes Allocators, which share compiled expressions. It can be used by several
// goroutines.
type Engine struct {
	compiled     *cel.Cache
	newAllocator NewAllocator
}

// NewEngine makes an Engine that keeps so many compiled expressions.
func NewEngine(expressions int) *Engine {
	return &Engine{stockallocator.Expressions(expressions), structured.NewAllocator}
}

// With is the Engine with another allocator than the scheduler's, for tests.
func (e *Engine) With(other NewAllocator) *Engine { return &Engine{e.compiled, other} }

// Allocator finds devices as the scheduler does.
type Allocator struct {
	stock structured.Allocator
	// held is what it goes by.
	held structured.AllocatedState
}

// Allocator makes the one for a snapshot, without what claims hold all of whose users are pods
// that are gone; nil is for none.
func (e *Engine) Allocator(ctx context.Context, s Snapshot, gone func(types.UID) bool) (*Allocator, error) {
	return e.allocator(ctx, s, heldBy(s.Claims, gone))
}

func (e *Engine) allocator(ctx context.Context, s Snapshot, held structured.AllocatedState) (*Allocator, error) {
	stock, err := e.newAllocator(ctx, stockallocator.Features(), held, stockallocator.Classes(s.Classes), s.Slices,
		e.compiled)
	if err != nil {
		return nil, fmt.Errorf("set up the scheduler's allocator: %w", err)
	}
	return &Allocator{stock, held}, nil
}

// heldBy is what claims hold.
func heldBy(claims []*resourceapi.ResourceClaim, gone func(types.UID) bool) structured.AllocatedState {
	held := stockallocator.Nothing()
	for _, c := range claims {
		if c.Status.Allocation != nil && (gone == nil || !given(c, gone)) {
			stockallocator.Hold(&held, c.Status.Allocation.Devices.Results)
		}
	}
	return held
}

// given says whether a claim is given back when some pods are gone.
func given(c *resourceapi.ResourceClaim, gone func(types.UID) bool) bool {
	pods, others := claim.Pods(c)
	return len(pods) > 0 && !others && !slices.ContainsFunc(pods,
		func(pod resourceapi.ResourceClaimConsumerReference) bool { return !gone(pod.UID) })
}

// Fit is what each of the claims would be allocated of a node, false if they do not all fit. An
// error is one of the claims, for which the scheduler gives up, or of the node alone
// (structured.ErrFailedAllocationOnNode), or the context's, which ends after most; 0 is for no
// such end.
func (a *Allocator) Fit(
	ctx context.Context, node *corev1.Node, claims []*resourceapi.ResourceClaim, most time.Duration,
) ([]resourceapi.AllocationResult, bool, error) {
	if len(claims) == 0 {
		return nil, true, nil
	}
	if most > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, most)
		defer cancel()
	}
	results, err := a.stock.Allocate(ctx, node, claims)
	if err != nil || len(results) != len(claims) {
		return nil, false, err
	}
	return results, true, nil
}
