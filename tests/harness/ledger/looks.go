// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"slices"
	"time"
)

// Look is what was found at one time of the claims that the API server has, or why
// nothing was.
type Look struct {
	At        time.Time
	Conflicts []Conflict
	Err       error
}

// Outage is one of the API server: From when it was killed To when everybody who watches it knows
// again what it has. What was allocated twice meanwhile is to be Over some time after.
type Outage struct{ From, To, Over time.Time }

func (o Outage) has(at time.Time) bool { return !at.Before(o.From) && !at.After(o.To) }

// Judge says what is wrong with looks, in their order, around the one outage of the API
// server, and who was allocated a GPU twice that the outage explains. A scheduler forgets a
// write that the API server took without an answer, and may allocate twice until it has learnt
// of it, docs/internals/performance.md. Whoever joins the holders of such a GPU later is not
// explained, nor is what does not end. Looks may fail during the outage only, and have to
// succeed before it and again.
func Judge(looks []Look, outage Outage) (wrong []string, explained map[string]bool) {
	before, again := 0, 0
	explained = map[string]bool{}
	// byGPU are the holders that the outage explains.
	byGPU := map[string]map[string]bool{}
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
		for _, conflict := range look.Conflicts {
			if byGPU[conflict.GPU] == nil {
				byGPU[conflict.GPU] = map[string]bool{}
			}
			known := byGPU[conflict.GPU]
			stranger := func(holder string) bool { return !known[holder] }
			switch {
			case look.At.Before(outage.From):
				wrong = append(wrong, fmt.Sprintf("at %s, before the outage, a card was allocated twice: %s", at, conflict))
			case look.At.After(outage.Over), i == len(looks)-1:
				wrong = append(wrong, fmt.Sprintf("at %s a card is still allocated twice: %s", at, conflict))
			case outage.has(look.At):
				for _, holder := range conflict.Holders {
					known[holder], explained[holder] = true, true
				}
			case slices.ContainsFunc(conflict.Holders, stranger):
				wrong = append(wrong, fmt.Sprintf("at %s, after the outage, a card was allocated once more: %s", at, conflict))
			}
		}
	}
	if before == 0 || again == 0 {
		wrong = append(wrong,
			fmt.Sprintf("the claims were looked at %d times before the API server was killed and %d times after", before, again))
	}
	return wrong, explained
}
