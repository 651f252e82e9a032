// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"fmt"
	"slices"

	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
)

// kind is what nodes offer that are alike, and what was found out about it.
type kind struct {
	// Devices are as if nobody had anything of their GPUs, offered what they offer as they are published: pods without a
	// claim may leave less of them.
	Devices  []resourceapi.Device
	offered  []map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
	counters []resourceapi.CounterSet
	// outcomes holds what expressions give for the devices.
	outcomes map[string]*outcomes
}

// outcomes are what one expression gives for the devices of a kind, by their
// indices.
type outcomes struct {
	known []outcome
	errs  map[int]error
}

type outcome uint8

const (
	unknown outcome = iota
	matches
	differs
	fails
)

// newKind decodes what the slices of a node's pool offer; with UUIDs if the GPUs
// are to be told apart.
func newKind(pool []*view.Slice, withUUIDs bool) (*kind, error) {
	k := &kind{outcomes: map[string]*outcomes{}}
	for _, slice := range pool {
		offer := slice.Shape.Offer
		if withUUIDs {
			offer = slice.Offer
		}
		devices, counters, err := offer()
		if err != nil {
			return nil, err
		}
		for i := range devices {
			k.Devices, k.offered = append(k.Devices, asWhole(&devices[i])), append(k.offered, devices[i].Capacity)
		}
		k.counters = append(k.counters, counters...)
	}
	return k, nil
}

// has reports whether any device has a taint of the key.
func (k *kind) has(taint string) bool {
	return slices.ContainsFunc(k.Devices, func(d resourceapi.Device) bool {
		return slices.ContainsFunc(d.Taints, devices.IsTaint(taint))
	})
}

// SelectorError is a selector that cannot be evaluated for a device.
type SelectorError struct {
	Expression string
	Device     *resourceapi.Device
	Err        error
}

// choose returns those of the devices, by their indices, that all expressions
// match. As in the scheduler, a later expression is not evaluated for a device
// that an earlier one does not match. failed is the first that cannot be
// evaluated; such devices are left out. An error is of the limits or the context.
func (k *kind) choose(ctx context.Context, m *Meter, p programs, among []int, expressions []string) (chosen []int,
	failed *SelectorError, err error) {
	for _, i := range among {
		all := true
		for _, expression := range expressions {
			result, why, err := k.outcome(ctx, m, p, i, expression)
			if err != nil {
				return nil, nil, err
			}
			if result == fails && failed == nil {
				failed = &SelectorError{Expression: expression, Device: &k.Devices[i], Err: why}
			}
			if all = result == matches; !all {
				break
			}
		}
		if all {
			chosen = append(chosen, i)
		}
	}
	return chosen, failed, nil
}

// outcome evaluates an expression for a device, once. why is what fails; an error is of
// the limits or the context.
func (k *kind) outcome(ctx context.Context, m *Meter, p programs, device int, expression string) (result outcome, why,
	err error) {
	of := k.outcomes[expression]
	if of == nil {
		// Kinds can be there for long, and expressions come and go.
		if len(k.outcomes) >= ExpressionsMost {
			clear(k.outcomes)
		}
		of = &outcomes{known: make([]outcome, len(k.Devices)), errs: map[int]error{}}
		k.outcomes[expression] = of
	}
	if of.known[device] == unknown {
		compiled, err := p.compile(ctx, m, expression)
		switch {
		case err != nil:
			return unknown, nil, err
		case compiled.cost > nodeLooks/uint64(anyLooks+len(k.Devices)):
			// The Meter would be used up after few devices, each of which takes long.
			return unknown, nil, ErrTooExpensive
		}
		d := &k.Devices[device]
		match, why, err := compiled.matches(ctx, m, cel.Device{
			Driver: v1alpha1.DriverName, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes,
			Capacity: d.Capacity,
		})
		switch {
		case err != nil:
			return unknown, nil, err
		case why != nil:
			of.known[device], of.errs[device] = fails, why
		case match:
			of.known[device] = matches
		default:
			of.known[device] = differs
		}
	}
	return of.known[device], of.errs[device], nil
}

// all are the indices of all devices.
func (k *kind) all() []int {
	indices := make([]int, len(k.Devices))
	for i := range indices {
		indices[i] = i
	}
	return indices
}

// published makes slices of a kind again, for the scheduler's allocator. They have
// no taints: those come and go.
func (k *kind) published(node string) []*resourceapi.ResourceSlice {
	devices := slices.Clone(k.Devices)
	for i := range devices {
		devices[i].Taints = nil
		devices[i].Attributes = view.WithUUID(devices[i].Attributes)
	}
	pool := resourceapi.ResourcePool{Name: v1alpha1.PoolName(node), ResourceSliceCount: 1}
	if len(k.counters) > 0 {
		pool.ResourceSliceCount++
	}
	out := []*resourceapi.ResourceSlice{{
		ObjectMeta: metav1.ObjectMeta{Name: "devices"},
		Spec:       resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, NodeName: &node, Pool: pool, Devices: devices},
	}}
	if len(k.counters) > 0 {
		out = append(out, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "counters"},
			Spec: resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, NodeName: &node, Pool: pool,
				SharedCounters: k.counters},
		})
	}
	return out
}

const (
	// compileCost is what a byte of an expression counts when it is compiled,
	// evaluateCost what each evaluation counts beside what CEL says: a device is made
	// ready for CEL before anything is evaluated. Both are about what CEL's units take
	// in time.
	compileCost  = 100
	evaluateCost = 100
)

// ErrTooExpensive is that a Meter's cost is used up.
var ErrTooExpensive = errors.New("too expensive to explain")

// Meter is what a question may still cost, in CEL's units: selectors are programs that anybody
// writes who may make a claim. Compiling them counts, too.
type Meter struct{ left uint64 }

// NewMeter makes one that lets so much be spent.
func NewMeter(cost uint64) *Meter { return &Meter{cost} }

func (m *Meter) spend(cost uint64) error {
	if cost > m.left {
		m.left = 0
		return ErrTooExpensive
	}
	m.left -= cost
	return nil
}

// program is a compiled expression, or why it cannot be compiled.
type program struct {
	cel.CompilationResult
	// cost is what evaluating it can cost, by CEL's estimate.
	cost uint64
	// readsUUID is whether its result can depend on a GPU's UUID.
	readsUUID bool
}

// programs compiles expressions, and keeps those that were used last.
type programs struct {
	compiler *cel.Cache
	known    *lru.Cache
}

func newPrograms(compiler *cel.Cache) programs {
	return programs{compiler: compiler, known: lru.New(ExpressionsMost)}
}

func (p programs) compile(ctx context.Context, m *Meter, expression string) (*program, error) {
	if known, ok := p.known.Get(expression); ok {
		if compiled, ok := known.(*program); ok {
			return compiled, nil
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("compile a selector: %w", context.Cause(ctx))
	}
	if err := m.spend(compileCost * uint64(len(expression))); err != nil {
		return nil, err
	}
	compiled := &program{CompilationResult: p.compiler.GetOrCompile(expression), cost: stockallocator.Cost(expression)}
	compiled.readsUUID = compiled.Error == nil && readsUUID(compiled.CompilationResult)
	p.known.Add(expression, compiled)
	return compiled, nil
}

// matches evaluates a program for a device. stopped says that there is no result, as
// the limits are reached or the context has ended; err that there never is one.
func (p *program) matches(ctx context.Context, m *Meter, device cel.Device) (match bool, err, stopped error) {
	if p.Error != nil {
		return false, fmt.Errorf("it does not compile: %w", p.Error), nil
	}
	if ctx.Err() != nil {
		return false, nil, context.Cause(ctx)
	}
	match, details, err := p.DeviceMatches(ctx, device)
	if ctx.Err() != nil {
		return false, nil, context.Cause(ctx)
	}
	cost := uint64(resourceapi.CELSelectorExpressionMaxCost)
	if details != nil && details.ActualCost() != nil {
		cost = *details.ActualCost()
	}
	return match, err, m.spend(evaluateCost + cost)
}

// readsUUID reports whether what an expression gives can depend on the UUID of a
// GPU. It is false only where the expression reads single attributes of the
// device, each by a name that stands there and is another one; then GPUs that
// differ in nothing but their UUID need be looked at once.
func readsUUID(compiled cel.CompilationResult) bool {
	parsed, issues := compiled.Environment.Parse(compiled.Expression)
	return issues.Err() != nil || !avoidsUUID(parsed.NativeRep().Expr())
}

// The fields of the variable "device" in selectors.
const (
	deviceVariable  = "device"
	attributesField = "attributes"
)

func avoidsUUID(e celast.Expr) bool {
	if name, ok := attributeName(e); ok {
		return name != string(v1alpha1.AttrUUID) && name != string(v1alpha1.AttrParentUUID)
	}
	if field, ok := deviceField(e); ok {
		return field != attributesField
	}
	switch e.Kind() {
	case celast.IdentKind:
		return e.AsIdent() != deviceVariable
	case celast.LiteralKind:
		return true
	case celast.SelectKind:
		return avoidsUUID(e.AsSelect().Operand())
	case celast.CallKind:
		call := e.AsCall()
		return (!call.IsMemberFunction() || avoidsUUID(call.Target())) && allAvoidUUID(call.Args())
	case celast.ListKind:
		return allAvoidUUID(e.AsList().Elements())
	case celast.ComprehensionKind:
		c := e.AsComprehension()
		return allAvoidUUID([]celast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()})
	default:
		return false
	}
}

func allAvoidUUID(expressions []celast.Expr) bool {
	for _, e := range expressions {
		if !avoidsUUID(e) {
			return false
		}
	}
	return true
}

// attributeName is the name that device.attributes["domain"].name reads, in any
// of the ways to write it.
func attributeName(e celast.Expr) (string, bool) {
	domain, name, ok := member(e)
	if !ok {
		return "", false
	}
	attributes, _, ok := member(domain)
	if !ok {
		return "", false
	}
	field, ok := deviceField(attributes)
	return name, ok && field == attributesField
}

// deviceField is the name of a field of the device.
func deviceField(e celast.Expr) (string, bool) {
	device, name, ok := member(e)
	return name, ok && device.Kind() == celast.IdentKind && device.AsIdent() == deviceVariable
}

// member splits x.name, x["name"], x.?name and x[?"name"].
func member(e celast.Expr) (of celast.Expr, name string, ok bool) {
	switch e.Kind() {
	case celast.SelectKind:
		return e.AsSelect().Operand(), e.AsSelect().FieldName(), true
	case celast.CallKind:
		call := e.AsCall()
		switch call.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
		default:
			return nil, "", false
		}
		args := call.Args()
		if len(args) != 2 || args[1].Kind() != celast.LiteralKind {
			return nil, "", false
		}
		literal, isString := args[1].AsLiteral().(types.String)
		return args[0], string(literal), isString
	default:
		return nil, "", false
	}
}
