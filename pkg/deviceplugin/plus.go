// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"maps"
	"slices"
)

// Plus returns what is taken with what holder holds of the card with the UUID beside
// these pods: something that has no claim either. The holder is named among the card's
// pods.
func (t Reserved) Plus(uuid, holder string, amounts Amount) Reserved {
	cards := maps.Clone(t.cards)
	if cards == nil {
		cards = map[string]Card{}
	}
	card := cards[uuid]
	card.Amount = card.plus(amounts)
	card.MemoryOnly = card.MemoryOnly || amounts.Units > 0 && amounts.Cores == 0
	card.Pods = append(slices.Clip(card.Pods), holder)
	cards[uuid] = card
	return Reserved{Pods: t.Pods, cards: cards}
}

// OfDriver returns what is taken with all of the card with the UUID, which another DRA driver
// grants to pods. Those that have it are named among the card's pods.
func (t Reserved) OfDriver(uuid, driver string, pods []string) Reserved {
	cards := maps.Clone(t.cards)
	if cards == nil {
		cards = map[string]Card{}
	}
	card := cards[uuid]
	card.Whole, card.Driver = true, driver
	card.Pods = slices.Concat(card.Pods, pods)
	cards[uuid] = card
	return Reserved{Pods: t.Pods, cards: cards}
}
