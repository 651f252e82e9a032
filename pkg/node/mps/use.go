// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// UseFile is the name of the file, in a card's directory, with its Use.
const UseFile = "use.json"

// Use is what a card is used for by MPS. The plugin says it, and the supervisor goes by
// it: it is kept in a file, so that it outlives both.
type Use struct {
	// Reserved says that the card is offered for nothing but shares by MPS.
	Reserved bool `json:"reserved,omitempty"`
	// Claimed says that claims are prepared whose containers use the card by MPS.
	Claimed bool `json:"claimed,omitempty"`
	// Limits are the largest of those claims; zero without claims.
	Limits
	// Seq grows with each change.
	Seq int64 `json:"seq,omitempty"`
}

// Limits are what MPS holds a process to.
type Limits struct {
	MemoryMiB int64 `json:"memoryMiB,omitempty"`
	// ThreadPercent is of the card's multiprocessors.
	ThreadPercent int64 `json:"threadPercent,omitempty"`
}

// Covers says whether a process that is held to these limits has what others grant it.
// Without limits it has.
func (l Limits) Covers(other Limits) bool {
	return (l.MemoryMiB == 0 || l.MemoryMiB >= other.MemoryMiB) &&
		(l.ThreadPercent == 0 || l.ThreadPercent >= other.ThreadPercent)
}

// Guarded says whether nothing but clients of MPS may have contexts on the card.
func (u Use) Guarded() bool { return u.Reserved || u.Claimed }

// With is the use with that of another claim.
func (u Use) With(l Limits) Use {
	u.Claimed = true
	u.MemoryMiB, u.ThreadPercent = max(u.MemoryMiB, l.MemoryMiB), max(u.ThreadPercent, l.ThreadPercent)
	return u
}

// Use reads what the card is used for; nothing, if nobody has said it.
func (d Dir) Use(uuid string) (Use, error) {
	var u Use
	if _, err := readJSON(d.useFile(uuid), "read what MPS is used for on the GPU", &u); err != nil {
		return Use{}, err
	}
	return u, nil
}

// SetUse is for the plugin: it says what the card is used for.
func (d Dir) SetUse(uuid string, u Use) error {
	_, err := d.changeUse(uuid, func(Use) Use { return u })
	return err
}

// downPatience outlasts processes of a claim that has just ended, and keep the card from
// the next one.
const downPatience = 2 * time.Second

// Admit is for the plugin: it says that a claim with these limits is about to use the
// card, and waits until there is room for it, but no longer than ctx lasts. Mostly there is:
// that takes no time where the card is for MPS alone, or has other claims, and none with
// smaller limits.
func (d Dir) Admit(ctx context.Context, uuid string, l Limits) error {
	start := time.Now()
	before, err := d.changeUse(uuid, func(u Use) Use { return u.With(l) })
	if err != nil {
		return err
	}
	for p := (pause{}); ; {
		// What a supervisor said that was killed since is true no more.
		if err := d.checkSupervised(); err != nil {
			return err
		}
		s, err := d.Status(uuid)
		if err != nil {
			return err
		}
		now, err := d.Use(uuid)
		if err != nil {
			return err
		}
		waited := time.Since(start)
		switch {
		case s.admits(before, now, l):
			return nil
		case s.State == Down && waited >= downPatience:
			return fmt.Errorf("the GPU's MPS control daemon is %s: %s", s.State, s.Reason)
		}
		if err := p.wait(ctx); err != nil {
			return fmt.Errorf("gpu-mps-supervisor has not made room on the GPU for a process with %d MiB (%w): see its log",
				l.MemoryMiB, err)
		}
	}
}

// admits says whether a claim with such limits may use the card. before and now are what
// the card was used for before the claim said so, and is now.
func (s Status) admits(before, now Use, l Limits) bool {
	switch {
	case s.State != Ready:
		return false
	case s.Use == nil:
		// A supervisor of an earlier version does nothing about it.
		return true
	case !s.InForce.Covers(l):
		return false
	}
	// What is in effect holds for the claim, too, or is on its way to what does: nothing
	// else can be, when all that was said before the claim is done.
	return *s.Use == now || *s.Use == before && before.Guarded()
}

const sayUse = "say what MPS is used for on the GPU"

// changeUse changes what is said, if that is a change, and returns what was said before.
func (d Dir) changeUse(uuid string, change func(Use) Use) (before Use, err error) {
	// Several processes may have something to say, and threads of one.
	f, err := os.Open(d.card(uuid))
	if errors.Is(err, os.ErrNotExist) {
		if change(before) == before {
			return before, nil
		}
		if err := os.MkdirAll(d.card(uuid), 0o755); err != nil {
			return before, fmt.Errorf("make the GPU's directory: %w: it has to be mounted writable", err)
		}
		f, err = os.Open(d.card(uuid))
	}
	if err != nil {
		return before, fmt.Errorf(sayUse+": %w", err)
	}
	defer f.Close()
	if err := flock(f, unix.LOCK_EX, lookersPatience); err != nil {
		return before, fmt.Errorf(sayUse+": %w", err)
	}
	before, err = d.Use(uuid)
	after := change(before)
	after.Seq = before.Seq
	// Where the file was removed the supervisor waits for another.
	if err == nil && after == before && before.Seq > 0 {
		return before, nil
	}
	after.Seq++
	return before, writeJSON(d.useFile(uuid), sayUse, after)
}

func (d Dir) useFile(uuid string) string { return filepath.Join(d.card(uuid), UseFile) }
