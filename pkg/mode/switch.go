package mode

import "time"

// Settle is how long a node's devices have been closed to new claims before it
// looks, for the last time, whether any is allocated. A scheduler that has not
// seen the taint yet allocates within that time. What it allocates later still is
// refused when it is prepared: then the node's mode does not serve it any more
// (Mode.Serves).
const Settle = 5 * time.Second

// Node is what a decision about a node's mode goes by.
type Node struct {
	// Wanted is the mode that the labels ask for.
	Wanted Mode
	// Published is the mode that the node's devices are published in, "" if
	// there are none.
	Published Mode
	// ClosedFor is how long the published devices have been closed to new
	// claims; 0 if they are open.
	ClosedFor time.Duration
	// Occupied says whether a claim is allocated from the published devices,
	// or prepared. It is asked only if the answer matters.
	Occupied func() (bool, error)
}

// Step is what to publish next.
type Step struct {
	// Mode is the mode to publish the devices in.
	Mode Mode
	// Closed says that the devices are to be closed to new claims, since the
	// node waits to change its mode.
	Closed bool
}

// Next decides the next step. A published mode is left only when it has been
// closed to new claims for Settle and nothing is allocated from it any more:
// the scheduler does not count a share of a card as a use of the whole card,
// nor the reverse, so that with claims of two modes a card would be promised
// twice. Wishing the published mode back opens it again at any time.
func Next(n Node) (Step, error) {
	switch {
	case n.Published == n.Wanted || n.Published == "":
		return Step{Mode: n.Wanted}, nil
	case n.ClosedFor < Settle:
		return Step{Mode: n.Published, Closed: true}, nil
	}
	occupied, err := n.Occupied()
	if err != nil || occupied {
		return Step{Mode: n.Published, Closed: true}, err
	}
	return Step{Mode: n.Wanted}, nil
}
