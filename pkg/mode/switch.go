// SPDX-License-Identifier: Apache-2.0

package mode

import "time"

// Settle is how long a node's devices have been closed to new claims before it
// looks, for the last time, whether any is allocated. A scheduler that has not
// seen the taint yet allocates within that time. What it allocates later still is
// refused when it is prepared: then the node's mode does not serve it any more
// (Mode.Serves).
const Settle = 5 * time.Second

// Node is what a decision about a node's mode uses.
type Node struct {
	// Wanted is what the labels and the node's isolation come to.
	Wanted Offer
	// Published is what the node's devices are published as, the zero Offer if
	// there are none.
	Published Offer
	// ClosedFor is how long the published devices have been closed to new
	// claims; 0 if they are open.
	ClosedFor time.Duration
	// Occupied is whether a claim is allocated from the published devices, or
	// prepared; nil where that is not known.
	Occupied *bool
}

// Step is what to publish next.
type Step struct {
	// Offer is what to publish the devices as.
	Offer
	// Closed says that the devices are to be closed to new claims, since the
	// node waits to change its mode.
	Closed bool
}

// Next decides the next step. A published offer is left only when it has been
// closed to new claims for Settle and nothing is allocated from it any more. Of
// two modes, the scheduler does not count a share of a GPU as a use of the whole
// GPU, nor the reverse, so that with claims of both a GPU would be promised
// twice. Of two kinds of isolation, neither holds what it limits against the
// other's users. Wishing the published offer back opens it again at any time.
// It is not decided where that takes Occupied, and that is not known: then the
// published offer stays closed.
func Next(n Node) (step Step, decided bool) {
	switch {
	case n.Published.Mode == "" || n.Published.Equal(n.Wanted):
		return Step{Offer: n.Wanted}, true
	case n.ClosedFor < Settle:
		return Step{Offer: n.Published, Closed: true}, true
	case n.Occupied == nil || *n.Occupied:
		return Step{Offer: n.Published, Closed: true}, n.Occupied != nil
	default:
		return Step{Offer: n.Wanted}, true
	}
}
