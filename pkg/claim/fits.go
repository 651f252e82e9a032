package claim

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Holder is a claim and what it was granted.
type Holder struct {
	Namespace, Name string
	UID             types.UID
	Grants          []Grant
}

// Unclaimed is what pods that hold no claim hold of the card with the UUID;
// taken.Taken.Card is one.
type Unclaimed func(uuid string) deviceplugin.Card

// MaxShares is how many shares of a card what isolates the grant can keep apart,
// 0 if it sets no limit; isolation.Backend.MaxShares is it.
type MaxShares func(g Grant) (int64, error)

// usage is what is taken of one card by claims.
type usage struct {
	exclusive *Holder
	shared    *Holder
	mode      mode.Mode // of the shares

	units, cores, slots int64
}

// CheckFits reports whether the wanted grants fit beside those that others
// hold, and beside what pods without a claim do. The scheduler has checked this already; the driver checks again
// because two schedulers, or a changed slice, can promise a card twice, and
// nobody after the driver would notice. The error names the card and a holder, unless
// that is in another namespace; HeldBy does.
// A lower number of shares that the node's label sets is left to the scheduler:
// claims that were allocated before it was lowered stay good.
func CheckFits(others []Holder, unclaimed Unclaimed, most MaxShares, wanted Holder) error {
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
		limit, err := most(g)
		if err != nil {
			return err
		}
		if err := cards[g.Card.UUID].fits(wanted.Namespace, g, unclaimed(g.Card.UUID), limit); err != nil {
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
	u.slots += g.slots()
	return u
}

// slots is how many of the card's shares the grant counts as.
func (g Grant) slots() int64 { return max(1, g.Slots) }

// fits says whether a grant of a claim in the namespace fits.
func (u *usage) fits(namespace string, g Grant, unclaimed deviceplugin.Card, maxShares int64) error {
	if u == nil {
		u = &usage{}
	}
	refuse := func(holder *Holder, format string, args ...any) error {
		by := slices.Clone(unclaimed.Pods)
		if holder != nil {
			by = []string{holder.fullName()}
		}
		return &heldError{text: fmt.Sprintf(format, args...), by: by}
	}
	if u.exclusive != nil {
		return refuse(u.exclusive, "already held as a whole by %s", u.exclusive.nameFor(namespace))
	}
	if unclaimed.Closes(g.Mode) {
		return refuse(nil, "asked for in mode %s, but pods that a device plugin started hold %s without a claim: %s",
			g.Mode, heldBy(unclaimed), podsFor(namespace, unclaimed))
	}
	if !g.Mode.Shared() {
		if u.shared != nil {
			return refuse(u.shared, "asked for as a whole, but %s holds a share of it", u.shared.nameFor(namespace))
		}
		return nil
	}
	if u.shared != nil && u.mode != g.Mode {
		return refuse(u.shared, "asked for in mode %s, but %s holds a share of it in mode %s", g.Mode, u.shared.nameFor(namespace), u.mode)
	}
	without := without(namespace, unclaimed)
	if total := g.Card.Units(); u.units+unclaimed.Units+g.Units > total {
		return refuse(u.shared, "%d GiB asked for, but %d of %d GiB are already granted%s", g.Units, u.units+unclaimed.Units, total, without)
	}
	if u.cores+unclaimed.Cores+g.CoresPercent > 100 {
		return refuse(u.shared, "%d %% of its compute asked for, but %d %% are already granted%s", g.CoresPercent, u.cores+unclaimed.Cores, without)
	}
	if held := u.slots + unclaimed.Shares; maxShares > 0 && held+g.slots() > maxShares {
		return refuse(u.shared, "%d of its shares asked for, but %d of the %d that %s keeps apart are already granted%s", g.slots(), held, maxShares, g.Isolation, without)
	}
	return nil
}

func heldBy(unclaimed deviceplugin.Card) string {
	if unclaimed.Whole {
		return "all of it"
	}
	return "a part of it in another way"
}

// without says which of it is not held by claims.
func without(namespace string, unclaimed deviceplugin.Card) string {
	if len(unclaimed.Pods) == 0 {
		return ""
	}
	return fmt.Sprintf(", of them %d GiB and %d %% without a claim to pods that a device plugin started: %s",
		unclaimed.Units, unclaimed.Cores, podsFor(namespace, unclaimed))
}
