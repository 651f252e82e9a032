// SPDX-License-Identifier: Apache-2.0

// Package ledger adds up who held which card when, and finds out where that was
// more than the card has.
package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Use is a part of a card in somebody's hands: Part of Whole, in whatever unit, from
// From until, and without, To.
type Use struct {
	Holder, Card string
	Part, Whole  int64
	From, To     time.Time
}

// Conflict is a moment at which a card was promised more than once.
type Conflict struct {
	Card    string
	At      time.Time
	Holders []string
	// Parts is the sum of what they held, in ten thousandths of the card, each part
	// rounded down.
	Parts int64
}

// String names the card, how much of it was held, and by whom.
func (c Conflict) String() string {
	return fmt.Sprintf("%.2f%% of %s held at %s by %s", float64(c.Parts)/100, c.Card, c.At.Format(time.StampMicro),
		strings.Join(c.Holders, ", "))
}

const whole = 10000

// Conflicts finds the moments at which the uses of a card came to more than the card,
// ordered by card and time: one for each use that began although there was no room.
// Uses of one card may count in different units.
func Conflicts(uses []Use) []Conflict {
	byCard := map[string][]Use{}
	for _, use := range uses {
		byCard[use.Card] = append(byCard[use.Card], use)
	}
	var found []Conflict
	for _, card := range slices.Sorted(maps.Keys(byCard)) {
		all := byCard[card]
		slices.SortStableFunc(all, func(a, b Use) int {
			return cmp.Or(a.From.Compare(b.From), strings.Compare(a.Holder, b.Holder))
		})
		var held []Use
		for _, use := range all {
			held = append(slices.DeleteFunc(held, func(u Use) bool { return !use.From.Before(u.To) }), use)
			if parts := sum(held); parts > whole {
				found = append(found, Conflict{Card: card, At: use.From, Holders: holders(held), Parts: parts})
			}
		}
	}
	return found
}

func sum(uses []Use) int64 {
	var parts int64
	for _, use := range uses {
		parts += use.Part * whole / use.Whole
	}
	return parts
}

func holders(uses []Use) []string {
	var names []string
	for _, use := range uses {
		names = append(names, use.Holder)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
