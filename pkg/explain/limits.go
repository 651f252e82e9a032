// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"time"
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

// errTooLong is that Limits.Time is used up.
var errTooLong = errors.New("takes too long to explain")

// tooExpensive is what there is to say then.
const tooExpensive = "why the pod waits is too expensive to explain: its claims have many selectors, or selectors " +
	"that take long to evaluate." +
	" The scheduler has to evaluate them for the devices of each node, too: write fewer, or simpler ones"
