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

// UseFile is the name of the file, in a GPU's directory, with its Use.
const UseFile = "use.json"

// Use is what a GPU is used for by MPS. The plugin writes it for the supervisor, to a file:
// it outlives both.
type Use struct {
	// Reserved is that the GPU is offered for nothing but shares by MPS.
	Reserved bool `json:"reserved,omitempty"`
	// Claimed is that claims are prepared whose containers use the GPU by MPS.
	Claimed bool `json:"claimed,omitempty"`
	// Beside is that others have some of the GPU, whose programs are not to be kept off it: they run
	// beside MPS, which holds its clients to their limits all the same.
	Beside bool `json:"beside,omitempty"`
	// Limits are the largest of those claims; zero without claims.
	Limits
	// Seq grows with each change.
	Seq int64 `json:"seq,omitempty"`
}

// Limits are what MPS holds a process to.
type Limits struct {
	MemoryMiB int64 `json:"memoryMiB,omitempty"`
	// ThreadPercent is of the GPU's multiprocessors.
	ThreadPercent int64 `json:"threadPercent,omitempty"`
}

// Covers reports whether a process that is held to these limits has what others grant it.
// Without limits it has.
func (l Limits) Covers(other Limits) bool {
	return (l.MemoryMiB == 0 || l.MemoryMiB >= other.MemoryMiB) &&
		(l.ThreadPercent == 0 || l.ThreadPercent >= other.ThreadPercent)
}

// Guarded reports whether nothing but clients of MPS may have contexts on the GPU, unless others are Beside.
func (u Use) Guarded() bool { return u.Reserved || u.Claimed }

// With is the use with that of another claim.
func (u Use) With(l Limits) Use {
	u.Claimed = true
	u.MemoryMiB, u.ThreadPercent = max(u.MemoryMiB, l.MemoryMiB), max(u.ThreadPercent, l.ThreadPercent)
	return u
}

// Use is what the plugin last wrote of the GPU; the zero Use if it wrote nothing.
func (d Dir) Use(uuid string) (Use, error) {
	u, _, err := read[Use](d.useFile(uuid), "read what MPS is used for on the GPU")
	return u, err
}

// SetUse is for the plugin: it writes what Use reads.
func (d Dir) SetUse(uuid string, u Use) error {
	_, err := d.changeUse(uuid, func(Use) Use { return u })
	return err
}

// UseIsSet is for the plugin: it reports whether SetUse would change nothing. Then it need not see to it that
// no claim is prepared meanwhile.
func (d Dir) UseIsSet(uuid string, u Use) bool {
	last, err := d.Use(uuid)
	u.Seq = last.Seq
	if err != nil || u != last {
		return false
	}
	if last.Seq == 0 {
		_, err = os.Stat(d.gpu(uuid))
		return errors.Is(err, os.ErrNotExist)
	}
	return true
}

// downTimeout outlasts the processes of a claim that has just ended: they keep the GPU from
// the next one.
const downTimeout = 2 * time.Second

// Admit is for the plugin: it adds a claim with these limits to the GPU's Use, and waits until the
// daemon serves it, but no longer than ctx lasts. It need not wait where the daemon has a
// server and limits that cover the claim's.
func (d Dir) Admit(ctx context.Context, uuid string, l Limits) error {
	start := time.Now()
	before, err := d.changeUse(uuid, func(u Use) Use { return u.With(l) })
	if err != nil {
		return err
	}
	for p := (pause{}); ; {
		// The status of a supervisor that was killed since does not hold any more.
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
		case s.State == Down && waited >= downTimeout:
			return fmt.Errorf("the GPU's MPS control daemon is %s: %s", s.State, s.Reason)
		}
		if err := p.wait(ctx); err != nil {
			return fmt.Errorf("gpu-mps-supervisor has not made room on the GPU for a process with %d MiB (%w): see its log",
				l.MemoryMiB, err)
		}
	}
}

// admits reports whether a claim with such limits may use the GPU. before and now are the GPU's
// use before that claim was added, and now.
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
	// A supervisor of an earlier version knows nothing of Beside; Seq tells uses apart.
	setUp := *s.Use
	setUp.Beside = now.Beside
	// The daemon is set up for the use with the claim, or for one before it that kept others from the
	// GPU, too.
	return setUp == now || *s.Use == before && before.Guarded()
}

const writeUse = "write what MPS is used for on the GPU"

// changeUse replaces the use by another one, and returns the one before.
func (d Dir) changeUse(uuid string, change func(Use) Use) (before Use, err error) {
	// Two instances of the plugin, and threads of one, may change it at the same time.
	f, err := lock(d.gpu(uuid), os.O_RDONLY, unix.LOCK_EX, lockTimeout)
	if errors.Is(err, os.ErrNotExist) {
		if change(before) == before {
			return before, nil
		}
		if err := os.MkdirAll(d.gpu(uuid), 0o755); err != nil {
			return before, fmt.Errorf("make the GPU's directory: %w: it has to be mounted writable", err)
		}
		f, err = lock(d.gpu(uuid), os.O_RDONLY, unix.LOCK_EX, lockTimeout)
	}
	if err != nil {
		return before, fmt.Errorf(writeUse+": %w", err)
	}
	defer f.Close()
	before, err = d.Use(uuid)
	after := change(before)
	after.Seq = before.Seq
	// A use without a Seq is a removed file, which the supervisor waits for.
	if err == nil && after == before && before.Seq > 0 {
		return before, nil
	}
	after.Seq++
	return before, write(d.useFile(uuid), writeUse, after)
}

func (d Dir) useFile(uuid string) string { return filepath.Join(d.gpu(uuid), UseFile) }
