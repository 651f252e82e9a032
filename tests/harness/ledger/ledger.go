// SPDX-License-Identifier: Apache-2.0

// Package ledger adds up who held which GPU when, and finds out where that was
// more than the GPU has.
package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Use is a part of a GPU in somebody's hands: Part of Whole, in whatever unit, from
// From until, and without, To.
type Use struct {
	Holder, GPU string
	Part, Whole int64
	From, To    time.Time
}

// Conflict is a moment at which a GPU was promised more than once.
type Conflict struct {
	GPU     string
	At      time.Time
	Holders []string
	// Parts is the sum of what they held, in ten thousandths of the GPU, each part
	// rounded down.
	Parts int64
}

// String names the GPU, how much of it was held, and by whom.
func (c Conflict) String() string {
	return fmt.Sprintf("%.2f%% of %s held at %s by %s", float64(c.Parts)/100, c.GPU, c.At.Format(time.StampMicro),
		strings.Join(c.Holders, ", "))
}

const whole = 10000

// Conflicts finds the moments at which the uses of a GPU came to more than the GPU,
// ordered by GPU and time: one for each use that began although there was no room.
// Uses of one GPU may count in different units.
func Conflicts(uses []Use) []Conflict {
	byGPU := map[string][]Use{}
	for _, use := range uses {
		byGPU[use.GPU] = append(byGPU[use.GPU], use)
	}
	var found []Conflict
	for _, g := range slices.Sorted(maps.Keys(byGPU)) {
		all := byGPU[g]
		slices.SortStableFunc(all, func(a, b Use) int {
			return cmp.Or(a.From.Compare(b.From), strings.Compare(a.Holder, b.Holder))
		})
		var held []Use
		for _, use := range all {
			held = append(slices.DeleteFunc(held, func(u Use) bool { return !use.From.Before(u.To) }), use)
			if parts := sum(held); parts > whole {
				found = append(found, Conflict{GPU: g, At: use.From, Holders: holders(held), Parts: parts})
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
