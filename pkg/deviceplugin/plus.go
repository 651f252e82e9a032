package deviceplugin

import (
	"maps"
	"slices"
)

// Plus returns what is taken with what holder holds of the card with the UUID beside
// these pods: something that has no claim either. The holder is named among the card's
// pods.
func (t Taken) Plus(uuid, holder string, held Amount) Taken {
	cards := maps.Clone(t.cards)
	if cards == nil {
		cards = map[string]Card{}
	}
	card := cards[uuid]
	card.Amount = card.plus(held)
	card.MemoryOnly = card.MemoryOnly || held.Units > 0 && held.Cores == 0
	card.Pods = append(slices.Clip(card.Pods), holder)
	cards[uuid] = card
	return Taken{Pods: t.Pods, cards: cards}
}
