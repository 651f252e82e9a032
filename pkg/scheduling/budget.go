// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"

	resourceapi "k8s.io/api/resource/v1"
)

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
	// readsUUID is whether its result can depend on a card's UUID.
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
	compiled := &program{CompilationResult: p.compiler.GetOrCompile(expression)}
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
