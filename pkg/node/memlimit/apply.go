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
	return h.locked(c.UUID, func(entries []Entry, keep func([]Entry) error) error {
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
		if err := h.setPod(g, e, limits); err != nil {
			if _, ofPod := limits[e.PodDir]; ofPod {
				before, had := wanted(entries, c)[e.PodDir]
				if !had {
					before = memlimit.NoLimit
				}
				_ = g.Set(h.dir(e.PodDir), before) // Where that fails, Check sets it again.
			}
			return errors.Join(err, keep(entries))
		}
		return nil
	})
}

// apply sets the limits of an entry's control groups.
func (h Host) apply(g GPU, e Entry, limits map[string]uint64) error {
	if err := h.setOwn(g, e, limits); err != nil {
		return err
	}
	return h.setPod(g, e, limits)
}

// setOwn sets the limit of the container's control group, if it has one of its own.
func (h Host) setOwn(g GPU, e Entry, limits map[string]uint64) error {
	if e.WholePod {
		return nil
	}
	return h.set(g, e.Dir, limits[e.Dir])
}

// setPod sets the limit of the pod's control group, if it has one, and has that hold a container that has none of
// its own.
func (h Host) setPod(g GPU, e Entry, limits map[string]uint64) error {
	if pod, ofPod := limits[e.PodDir]; ofPod {
		if err := h.set(g, e.PodDir, pod); err != nil {
			return err
		}
	}
	if !e.WholePod {
		return nil
	}
	// The driver's table may still have an earlier container's limit on the group (§2), which would
	// hide the pod's, also where it reads the same. Clearing may fail where there is none, so its
	// error counts only if there is.
	cleared := g.Set(h.dir(e.Dir), memlimit.NoLimit)
	if err := h.verify(g, e, limits); err != nil {
		return errors.Join(err, cleared)
	}
	return nil
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

// wholePod says whether the share is to be its pod's limit: see wanted.
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
