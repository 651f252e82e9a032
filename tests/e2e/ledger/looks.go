// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"time"
)

// Look is what was found at one time of the claims that the API server has, or why
// nothing was.
type Look struct {
	At        time.Time
	Conflicts []Conflict
	Err       error
}

// Outage is when the API server was killed and until when it may take it to answer again.
type Outage struct{ From, To time.Time }

func (o Outage) has(at time.Time) bool { return !at.Before(o.From) && !at.After(o.To) }

// Judge says what is wrong with looks, in their order, around the one outage of the API
// server. A scheduler forgets a write that the API server took without an answer, and may
// allocate twice from then on, docs/internals/development.md; in the end that has to be
// over. Looks may fail during the outage only, and have to succeed before it and again.
func Judge(looks []Look, outage Outage) []string {
	var wrong []string
	before, again := 0, 0
	for i, look := range looks {
		at := look.At.Format(time.TimeOnly)
		switch {
		case look.Err != nil:
			if !outage.has(look.At) {
				wrong = append(wrong, fmt.Sprintf("at %s the claims could not be looked at: %v", at, look.Err))
			}
			continue
		case look.At.Before(outage.From):
			before++
		default:
			again++
		}
		if len(look.Conflicts) > 0 && (look.At.Before(outage.From) || i == len(looks)-1) {
			wrong = append(wrong, fmt.Sprintf("at %s these claims were allocated: %v", at, look.Conflicts))
		}
	}
	if before == 0 || again == 0 {
		wrong = append(wrong,
			fmt.Sprintf("the claims were looked at %d times before the API server was killed and %d times after", before, again))
	}
	return wrong
}
