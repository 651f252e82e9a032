package claim

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Holder is a claim and what it was granted.
type Holder struct {
	Namespace, Name string
	UID             types.UID
	Grants          []Grant
}

// usage is what is taken of one card.
type usage struct {
	exclusive    *Holder
	shared       *Holder
	mode         mode.Mode // of the shares
	units, cores int64
}

// CheckFits reports whether the wanted grants fit beside those that others
// hold. The scheduler has checked this already; the driver checks again
// because two schedulers, or a changed slice, can promise a card twice, and
// nobody after the driver would notice. The error names the card and a holder.
func CheckFits(others []Holder, wanted Holder) error {
	cards := map[string]*usage{}
	for i := range others {
		for _, g := range others[i].Grants {
			cards[g.Card.UUID] = cards[g.Card.UUID].plus(g, &others[i])
		}
	}
	for _, g := range wanted.Grants {
		if g.Admin {
			continue
		}
		if err := cards[g.Card.UUID].fits(g); err != nil {
			return fmt.Errorf("request %q: card %d (%s): %w", g.Request, g.Card.Index, g.Card.UUID, err)
		}
		cards[g.Card.UUID] = cards[g.Card.UUID].plus(g, &wanted)
	}
	return nil
}

func (u *usage) plus(g Grant, h *Holder) *usage {
	if u == nil {
		u = &usage{}
	}
	if g.Admin {
		return u
	}
	if !g.Mode.Shared() {
		u.exclusive = h
		return u
	}
	u.shared, u.mode = h, g.Mode
	u.units += g.Units
	u.cores += g.CoresPercent
	return u
}

func (u *usage) fits(g Grant) error {
	if u == nil {
		u = &usage{}
	}
	if u.exclusive != nil {
		return fmt.Errorf("already held as a whole by claim %s/%s", u.exclusive.Namespace, u.exclusive.Name)
	}
	if !g.Mode.Shared() {
		if u.shared != nil {
			return fmt.Errorf("asked for as a whole, but claim %s/%s holds a share of it", u.shared.Namespace, u.shared.Name)
		}
		return nil
	}
	if u.shared != nil && u.mode != g.Mode {
		return fmt.Errorf("asked for in mode %s, but claim %s/%s holds a share of it in mode %s", g.Mode, u.shared.Namespace, u.shared.Name, u.mode)
	}
	if total := g.Card.Units(); u.units+g.Units > total {
		return fmt.Errorf("%d GiB asked for, but %d of %d GiB are already granted", g.Units, u.units, total)
	}
	if u.cores+g.CoresPercent > 100 {
		return fmt.Errorf("%d %% of its compute asked for, but %d %% are already granted", g.CoresPercent, u.cores)
	}
	return nil
}
