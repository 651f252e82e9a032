// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
)

// DefaultRoot is where the driver wants the control groups of version 2 (§1).
const DefaultRoot = "/sys/fs/cgroup"

// CheckRoot reports that these are no control groups of version 2.
func CheckRoot(root string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(root, &stat); err != nil {
		return fmt.Errorf("look at the node's control groups: %s: %w", root, err)
	}
	if stat.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("the node has no control groups of version 2 at %s, which the NVIDIA driver needs: start it with "+
			"systemd.unified_cgroup_hierarchy=1", root)
	}
	return nil
}

// KindOf says who counts a GPU's memory.
func (h Host) KindOf(g GPU) (Kind, error) {
	capacity, err := os.ReadFile(filepath.Join(h.Root, "dmem.capacity"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look whether the kernel counts GPU memory: %w", err)
	}
	address, err := g.PCIAddress()
	if err != nil {
		return "", err
	}
	if memlimit.CountedByDMem(capacity, address) {
		return DMem, nil
	}
	return Misc, nil
}

// scratchPrefix begins the names of control groups that a limit is tried on. The process that
// tries it and the GPU follow: several are tried side by side.
const scratchPrefix = "gpushare-probe-"

// scratchChild is a control group in one of those.
const scratchChild = "below"

// removeScratch removes what was left by processes that were killed while they tried.
func (h Host) removeScratch(kubelet string) {
	left, err := filepath.Glob(h.dir(filepath.Join(kubelet, scratchPrefix+"*")))
	if err != nil {
		return // the pattern is bad, which it is not
	}
	for _, dir := range left {
		process, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), scratchPrefix), "-")
		pid, err := strconv.Atoi(process)
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			// One that cannot be removed harms nobody: it has no processes.
			_ = os.Remove(filepath.Join(dir, scratchChild))
			_ = os.Remove(dir)
		}
	}
}

// trialLimit is the limit that Detect sets.
const trialLimit = 1 << 10 * mib

// Detect says who counts the GPU's memory, or why no limits can be had there. It tries: on a
// control group of its own below kubelet, the one of all pods, which has no processes (§10a,
// step 1). That Get alone says "not supported" tells nothing (§2).
func (h Host) Detect(g GPU, kubelet string) (kind Kind, err error) {
	if kind, err = h.KindOf(g); err != nil {
		return "", err
	}
	address, err := g.PCIAddress()
	if err != nil {
		return "", err
	}
	h.removeScratch(kubelet)
	scratch := filepath.Join(kubelet, fmt.Sprintf("%s%d-%s", scratchPrefix, os.Getpid(), address))
	if err := os.Mkdir(h.dir(scratch), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make a control group to try a limit on: %w", err)
	}
	defer func() {
		if removed := os.Remove(h.dir(scratch)); removed != nil {
			err = errors.Join(err, fmt.Errorf("remove the control group that a limit was tried on: %w", removed))
		}
	}()
	if err := h.set(g, scratch, trialLimit); err != nil {
		return "", fmt.Errorf("a limit was tried: %w", err)
	}
	var below error
	if kind == Misc {
		below = h.tryBelow(g, scratch)
	}
	if err := g.Set(h.dir(scratch), memlimit.NoLimit); err != nil {
		return "", fmt.Errorf("a limit was tried, and could not be cleared: %w", err)
	}
	got, err := g.Get(h.dir(scratch))
	if err != nil && !errors.Is(err, memlimit.ErrUnset) || err == nil && got.Hard == trialLimit {
		return "", fmt.Errorf("a limit was tried, and is still there after it was cleared: %w",
			mismatch(scratch, got, memlimit.NoLimit, err))
	}
	if below != nil {
		return "", below
	}
	return kind, nil
}

// tryBelow reports that the limit of a control group does not hold one below it, as a pod's has to hold containers. One
// that reads otherwise has a limit that the driver's table kept of a group that has gone (§2), as many have on a node
// that has long run. That tells nothing, and such containers get limits of their own.
func (h Host) tryBelow(g GPU, scratch string) (err error) {
	below := filepath.Join(scratch, scratchChild)
	if err := os.Mkdir(h.dir(below), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make a control group below the one that a limit is tried on: %w", err)
	}
	defer func() {
		if removed := os.Remove(h.dir(below)); removed != nil {
			err = errors.Join(err, fmt.Errorf("remove the control group below the one that a limit was tried on: %w", removed))
		}
	}()
	if _, err := g.Get(h.dir(below)); err != nil {
		return fmt.Errorf("a limit was tried, and does not hold the control group below: %w", err)
	}
	return nil
}
