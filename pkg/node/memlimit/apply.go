// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
)

// Start is a container that starts with a share.
type Start struct {
	// Entry is the container. Apply decides on its WholePod.
	Entry
	// OnlyShare is whether the claim has this one share, for whichever container.
	OnlyShare bool
	// MaxContainers is how many containers may have the share at the same time, 0 for any number.
	MaxContainers int
}

// Apply sets the limits of a container that starts, and reads them back. Where they do not
// read as they were set, it is an error, and the container must not start. It is
// idempotent. It blocks while another process sets limits on the GPU.
//
// A start that fails leaves the pod's limit as it was: Check would say that the pod's other containers had been without
// theirs. So that limit changes last, and is written down before, as the hook may be ended meanwhile.
func (h Host) Apply(g GPU, c Target, s Start) error {
	return h.locked(c, func(entries []Entry, keep func([]Entry) error) error {
		others := slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool {
			return e.Container == s.Container && e.Share == s.Share
		})
		if err := h.checkContainers(others, s); err != nil {
			return err
		}
		e := s.Entry
		e.WholePod = c.Kind == Misc && wholePod(others, s)
		all := append(others, e)
		limits := wanted(all, c)
		if err := h.setOwn(g, e, limits); err != nil {
			return err
		}
		if err := keep(all); err != nil {
			return err
		}
		held, err := h.setPod(g, c, all, e)
		if err == nil {
			return keep(held)
		}
		if _, ofPod := limits[e.PodDir]; ofPod {
			before, had := wanted(entries, c)[e.PodDir]
			if !had {
				before = memlimit.NoLimit
			}
			_ = g.Set(h.dir(e.PodDir), before) // Where that fails, Check sets it again.
		}
		return errors.Join(err, keep(entries))
	})
}

// apply sets the limits of an entry's control groups. held are the entries as setPod has them.
func (h Host) apply(g GPU, c Target, entries []Entry, e Entry) (held []Entry, err error) {
	if err := h.setOwn(g, e, wanted(entries, c)); err != nil {
		return entries, err
	}
	return h.setPod(g, c, entries, e)
}

// setOwn sets the limit of the container's control group, if it has one of its own.
func (h Host) setOwn(g GPU, e Entry, limits map[string]uint64) error {
	if e.WholePod {
		return nil
	}
	return h.set(g, e.Dir, limits[e.Dir])
}

// setPod sets the limit of the pod's control group, if it has one, and has that hold a container that has none of
// its own. Where it cannot, since the driver's table has an earlier container's limit on the group (§2), which nothing
// takes off, the container gets its share as a limit of its own: held are the entries with that.
func (h Host) setPod(g GPU, c Target, entries []Entry, e Entry) (held []Entry, err error) {
	limits := wanted(entries, c)
	pod, ofPod := limits[e.PodDir]
	if !ofPod {
		return entries, nil
	}
	if !e.WholePod {
		return entries, h.set(g, e.PodDir, pod)
	}
	before, err := g.Get(h.dir(e.Dir))
	if err != nil && !errors.Is(err, memlimit.ErrUnset) {
		return entries, err
	}
	if err := h.set(g, e.PodDir, pod); err != nil {
		return entries, err
	}
	if hides, err := h.hides(g, e, before, pod); err != nil || !hides {
		return entries, err
	}
	held = slices.Clone(entries)
	at := slices.Index(held, e)
	e.WholePod = false
	held[at] = e
	// The pod's limit goes with the last running container that it holds: those that have ended hold it no longer.
	held = h.current(held)
	limits = wanted(held, c)
	if err := h.set(g, e.Dir, limits[e.Dir]); err != nil {
		return entries, err
	}
	if _, still := limits[e.PodDir]; still {
		return held, nil
	}
	return held, g.Set(h.dir(e.PodDir), memlimit.NoLimit)
}

// hides reports whether a container's control group has a limit of its own, which would hide the one that its pod was
// given just now. before is how the group read until then.
func (h Host) hides(g GPU, e Entry, before memlimit.Limit, pod uint64) (bool, error) {
	got, err := g.Get(h.dir(e.Dir))
	switch {
	case errors.Is(err, memlimit.ErrUnset):
		return false, nil
	case err != nil:
		return false, err
	case !matches(got, pod):
		return true, nil
	case !matches(before, pod):
		return false, nil // It follows the pod's.
	case got.Used > 0:
		return false, nil // What is used is the pod's: the container has not started yet.
	}
	// It read the same before, as beside another container of the pod: does it follow?
	lower := pod - mib
	if err := g.Set(h.dir(e.PodDir), lower); err != nil {
		return false, err
	}
	got, err = g.Get(h.dir(e.Dir))
	return !matches(got, lower), errors.Join(err, h.set(g, e.PodDir, pod))
}

// checkContainers reports that as many others have the share as may: a container of another pod has all
// of it, since pods have no control group in common that is theirs alone (§10a, step 5).
func (h Host) checkContainers(others []Entry, s Start) error {
	if s.MaxContainers == 0 || s.Lifted {
		return nil
	}
	have := 0
	for _, o := range others {
		if o.Share == s.Share && h.exists(o.Dir) {
			have++
		}
	}
	if have >= s.MaxContainers {
		return fmt.Errorf("%d containers have its share already, and no more may (setting CONTAINERS_PER_SHARE of the "+
			"plugin): give it a claim of its own", have)
	}
	return nil
}

// wholePod reports whether the share is to be its pod's limit: see wanted.
func wholePod(others []Entry, s Start) bool {
	return s.OnlyShare && !s.Lifted && !slices.ContainsFunc(others, func(o Entry) bool {
		return o.PodDir == s.PodDir && o.Share != s.Share && o.WholePod
	})
}

// set sets a limit and reads it back.
func (h Host) set(g GPU, group string, limit uint64) error {
	if err := g.Set(h.dir(group), limit); err != nil {
		return err
	}
	got, err := g.Get(h.dir(group))
	if err == nil && !matches(got, limit) {
		err = fmt.Errorf("the limit of control group %s was set and reads %s, not %s", group, describe(got), format(limit))
	}
	return err
}

func matches(got memlimit.Limit, limit uint64) bool { return got.Soft == 0 && got.Hard == limit }

// verify reports that an entry's control groups do not have their limits.
func (h Host) verify(g GPU, e Entry, limits map[string]uint64) error {
	pod, ofPod := limits[e.PodDir]
	if ofPod {
		if got, err := g.Get(h.dir(e.PodDir)); err != nil || !matches(got, pod) {
			return mismatch(e.PodDir, got, pod, err)
		}
	}
	want := limits[e.Dir]
	if e.WholePod {
		// By Misc it reads as the one above that counts. One that reads as unlimited would hide that.
		want = pod
	}
	got, err := g.Get(h.dir(e.Dir))
	if e.WholePod && errors.Is(err, memlimit.ErrUnset) {
		return nil
	}
	if err != nil || !matches(got, want) {
		return mismatch(e.Dir, got, want, err)
	}
	return nil
}

func mismatch(group string, got memlimit.Limit, want uint64, err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("the limit of control group %s reads %s, not %s", group, describe(got), format(want))
}

func describe(l memlimit.Limit) string {
	if l.Soft != 0 {
		return fmt.Sprintf("%s with %s promised", format(l.Hard), format(l.Soft))
	}
	return format(l.Hard)
}

// format is a limit for people. Bytes are told where they are no whole MiB.
func format(limit uint64) string {
	switch {
	case limit == memlimit.NoLimit:
		return "unlimited"
	case limit%mib != 0:
		return fmt.Sprintf("%d bytes", limit)
	default:
		return fmt.Sprintf("%d MiB", limit/mib)
	}
}
