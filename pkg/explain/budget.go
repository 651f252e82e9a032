// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Limits bound what an explanation may cost: selectors are programs that anybody writes
// who may make a claim.
type Limits struct {
	// Cost is that of evaluating all selectors of a pod's claims for all kinds of
	// devices, in CEL's units; the scheduler lets each evaluation cost up to
	// resourceapi.CELSelectorExpressionMaxCost, and so does this package. Compiling
	// an expression counts, too.
	Cost uint64
	// Time is how long all of it may take, Together how long the search for a way to
	// serve all requests of a pod at once; that is exhaustive, and where it takes
	// longer, nothing is said of its result.
	Time, Combined time.Duration
}

const (
	// compileCost is what a byte of an expression counts when it is compiled,
	// evaluateCost what each evaluation counts beside what CEL says: a device is made
	// ready for CEL before anything is evaluated. Both are about what CEL's units take
	// in time.
	compileCost  = 100
	evaluateCost = 100
)

// errTooExpensive is that Limits.Cost is used up, errTooLong that Limits.Time is.
var (
	errTooExpensive = errors.New("too expensive to explain")
	errTooLong      = errors.New("takes too long to explain")
)

// tooExpensive is what there is to say then.
const tooExpensive = "why the pod waits is too expensive to explain: its claims have many selectors, or selectors " +
	"that take long to evaluate." +
	" The scheduler has to evaluate them for the devices of each node, too: write fewer, or simpler ones"

// meter is what one explanation may still cost.
type meter struct{ left uint64 }

func (m *meter) spend(cost uint64) error {
	if cost > m.left {
		m.left = 0
		return errTooExpensive
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
	return programs{compiler: compiler, known: lru.New(scheduling.ExpressionsMost)}
}

func (p programs) compile(ctx context.Context, m *meter, expression string) (*program, error) {
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
func (p *program) matches(ctx context.Context, m *meter, device cel.Device) (match bool, err, stopped error) {
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
