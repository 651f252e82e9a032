// SPDX-License-Identifier: Apache-2.0

// Package scheduling says what fits where, and why not, as data; pkg/explain makes words of it.
// Whether claims fit on a node is the scheduler's own allocator's to say, which is set up here
// and nowhere else: whoever asks uses a Snapshot, in which the cluster's DeviceTaintRules
// count. A Finder says what is free for a pod now, a Simulation what is left beside pods that it
// placed, a Survey whether something could ever fit. The package is pure.
package scheduling

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
)

// Snapshot is a cluster as its scheduler sees it at one moment. It must not change while it is
// used.
type Snapshot struct {
	Nodes []*corev1.Node
	// Slices and Claims are those of all drivers and namespaces: what is left out is not
	// offered, or not taken. Slices have the taints of rules (WithRules).
	Slices  []*resourceapi.ResourceSlice
	Claims  []*resourceapi.ResourceClaim
	Classes []*resourceapi.DeviceClass
	// Closed says, by node, what keeps the pod that is asked about from nodes beside what they
	// say themselves, such as too little CPU. It may be nil.
	Closed map[string]Closed
}

// ByName are the nodes in the order of their names.
func (s Snapshot) ByName() []*corev1.Node {
	return slices.SortedFunc(slices.Values(s.Nodes),
		func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
}

// LetGo is the cluster as it is once nodes let go of what they hold back to spread shares, which they do for a pod that
// finds no room otherwise; and which nodes these are, none where nothing is held back.
func (s Snapshot) LetGo() (letGo Snapshot, from map[string]bool) {
	from = map[string]bool{}
	for i, slice := range s.Slices {
		if slice.Spec.Driver != v1alpha1.DriverName || !slices.ContainsFunc(slice.Spec.Devices, holdsBack) {
			continue
		}
		if len(from) == 0 {
			s.Slices = slices.Clone(s.Slices)
		}
		from[ptr.Deref(slice.Spec.NodeName, "")] = true
		slice = slice.DeepCopy()
		for j := range slice.Spec.Devices {
			slice.Spec.Devices[j].Capacity = devices.Unlimited(&slice.Spec.Devices[j])
		}
		s.Slices[i] = slice
	}
	return s, from
}

// WithRules are slices with the taints of the rules that select their devices, as the scheduler
// sees them. What is given is not changed; slices that no rule selects are the same.
func WithRules(
	published []*resourceapi.ResourceSlice, rules []*resourceapi.DeviceTaintRule,
) []*resourceapi.ResourceSlice {
	if len(rules) == 0 {
		return published
	}
	out := slices.Clone(published)
	for i, slice := range out {
		var own *resourceapi.ResourceSlice
		for j := range slice.Spec.Devices {
			for _, rule := range rules {
				if !selects(rule.Spec.DeviceSelector, slice.Spec, slice.Spec.Devices[j].Name) {
					continue
				}
				if own == nil {
					copied := *slice
					own, out[i] = &copied, &copied
					own.Spec.Devices = slices.Clone(slice.Spec.Devices)
				}
				device := &own.Spec.Devices[j]
				device.Taints = append(slices.Clip(device.Taints), rule.Spec.Taint)
			}
		}
	}
	return out
}

// selects reports whether a rule is for a device. A selector that says nothing selects all, none
// selects nothing.
func selects(s *resourceapi.DeviceTaintSelector, of resourceapi.ResourceSliceSpec, device string) bool {
	is := func(wanted *string, value string) bool { return wanted == nil || *wanted == value }
	return s != nil && is(s.Driver, of.Driver) && is(s.Pool, of.Pool.Name) && is(s.Device, device)
}

// QuestionID identifies a question.
type QuestionID [sha256.Size]byte

// Question identifies all that an answer for a pod depends on besides the cluster.
func Question(pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (QuestionID, error) {
	hash := sha256.New()
	part := func(m interface{ Marshal() ([]byte, error) }) error {
		data, err := m.Marshal()
		fmt.Fprintf(hash, "%d:%s", len(data), data)
		return err
	}
	if err := part(&corev1.PodSpec{NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity,
		Tolerations: pod.Spec.Tolerations}); err != nil {
		return QuestionID{}, fmt.Errorf("encode where pod %s/%s can be: %w", pod.Namespace, pod.Name, err)
	}
	for _, claim := range claims {
		described := &resourceapi.ResourceClaim{Spec: claim.Spec}
		if len(claims) > 1 {
			described.Name = claim.Name
		}
		if OfScheduler(claim) {
			described.Annotations = claim.Annotations
		}
		if claim.Status.Allocation != nil {
			described.Status.Allocation = &resourceapi.AllocationResult{NodeSelector: claim.Status.Allocation.NodeSelector}
		}
		if err := part(described); err != nil {
			return QuestionID{}, fmt.Errorf("encode claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
	}
	return QuestionID(hash.Sum(nil)), nil
}

// ExpressionsMost is how many compiled CEL expressions are kept where claims of all kinds are
// looked at.
const ExpressionsMost = 500

// NewAllocator is structured.NewAllocator.
type NewAllocator func(ctx context.Context, features structured.Features, allocated structured.AllocatedState,
	classes structured.DeviceClassLister, slices []*resourceapi.ResourceSlice, compiled *cel.Cache) (
	structured.Allocator, error)

// Engine makes Allocators, which share compiled expressions. It can be used by several
// goroutines.
type Engine struct {
	compiled     *cel.Cache
	newAllocator NewAllocator
	// costs are those of expressions, as int64.
	costs *lru.Cache
}

// NewEngine makes an Engine that keeps so many compiled expressions.
func NewEngine(expressions int) *Engine {
	return &Engine{stockallocator.Expressions(expressions), structured.NewAllocator, lru.New(expressions)}
}

// With is the Engine with another allocator than the scheduler's, for tests.
func (e *Engine) With(other NewAllocator) *Engine { return &Engine{e.compiled, other, e.costs} }

// Allocator finds devices as the scheduler does.
type Allocator struct {
	stock structured.Allocator
	// engine made it, of snapshot, with what is held.
	engine   *Engine
	snapshot Snapshot
	held     structured.AllocatedState
	// looks are stepLooks, costs what the selectors of claims cost for one device.
	looks map[string]int64
	costs map[*resourceapi.ResourceClaim]int64
}

// Allocator makes the one for a snapshot, without what claims hold all of whose users are pods
// that are gone; nil is for none.
func (e *Engine) Allocator(ctx context.Context, s Snapshot, gone func(types.UID) bool) (*Allocator, error) {
	a := &Allocator{engine: e, snapshot: s, held: heldBy(s.Claims, gone), looks: stepLooks(s.Slices),
		costs: map[*resourceapi.ResourceClaim]int64{}}
	return a, a.setUp(ctx)
}

// setUp has the allocator use what is held.
func (a *Allocator) setUp(ctx context.Context) (err error) {
	a.stock, err = a.engine.newAllocator(ctx, stockallocator.Features(), a.held,
		stockallocator.Classes(a.snapshot.Classes), a.snapshot.Slices, a.engine.compiled)
	if err != nil {
		return fmt.Errorf("set up the scheduler's allocator: %w", err)
	}
	return nil
}

// hold has the Allocator go on beside what more is held.
func (a *Allocator) hold(ctx context.Context, more []resourceapi.AllocationResult) error {
	if len(more) == 0 {
		return nil
	}
	for _, of := range more {
		stockallocator.Hold(&a.held, of.Devices.Results)
	}
	return a.setUp(ctx)
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

// given reports whether a claim is given back when some pods are gone.
func given(c *resourceapi.ResourceClaim, gone func(types.UID) bool) bool {
	pods, others := claim.Pods(c)
	return len(pods) > 0 && !others && !slices.ContainsFunc(pods,
		func(pod resourceapi.ResourceClaimConsumerReference) bool { return !gone(pod.UID) })
}

// Fit is what each of the claims would be allocated of a node, false if they do not all fit. An
// error is one of the claims, for which the scheduler gives up, or of the node alone
// (structured.ErrFailedAllocationOnNode), or ErrUnsearched where that takes more than the effort, or
// the context's.
func (a *Allocator) Fit(
	ctx context.Context, node *corev1.Node, claims []*resourceapi.ResourceClaim, effort *Effort,
) ([]resourceapi.AllocationResult, bool, error) {
	if len(claims) == 0 {
		return nil, true, nil
	}
	selectors, err := a.selectorLooks(node.Name, claims)
	if err != nil {
		return nil, false, err
	}
	looks, most := a.stepLooks(node.Name), min(nodeLooks, effort.left-selectors)
	s := &search{Context: ctx, most: most / looks}
	if s.most <= 0 {
		return nil, false, errNoEffort
	}
	results, err := a.stock.Allocate(s, node, claims)
	effort.left -= selectors + s.steps*looks
	switch {
	case err != nil && s.cutOff() && most < nodeLooks:
		return nil, false, errNoEffort
	case err != nil && s.cutOff():
		return nil, false, errManyWays
	case err != nil || len(results) != len(claims):
		return nil, false, err
	}
	return results, true, nil
}
