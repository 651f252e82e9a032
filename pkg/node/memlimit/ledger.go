// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/internal/statefile"
)

// The ledger has a file for each GPU, and a lock beside it.
const (
	fileSuffix = ".json"
	lockSuffix = ".lock"
)

// locked calls do with the entries of a GPU whose pods are still there, and with what writes down others
// instead. One process at a time does, whether it is a hook or the plugin. What cannot be
// understood is written again: it would keep everybody from starting.
func (h Host) locked(c Target, do func(entries []Entry, keep func([]Entry) error) error) (err error) {
	uuid := c.UUID
	if uuid == "" || uuid != filepath.Base(uuid) {
		return fmt.Errorf("%q is no UUID of a GPU", uuid)
	}
	path := filepath.Join(h.Ledger, uuid+fileSuffix)
	if err := os.MkdirAll(h.Ledger, 0o750); err != nil {
		return fmt.Errorf("make the directory of memory limits: %w", err)
	}
	lock, err := os.OpenFile(path+lockSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock of a GPU's memory limits: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock a GPU's memory limits: %w", err)
	}
	file := statefile.File[[]Entry]{Path: path}
	written, damaged, err := file.Load()
	if err != nil && !damaged {
		return fmt.Errorf("read a GPU's memory limits: %w", err)
	}
	written = slices.DeleteFunc(written, namesNoGroup)
	entries := h.current(written)
	for i := range entries {
		// Another kind counts where the driver was reloaded.
		entries[i].WholePod = entries[i].WholePod && c.Kind == Misc
	}
	return do(entries, func(entries []Entry) error {
		if slices.Equal(entries, written) {
			return nil
		}
		if err := keep(file, entries); err != nil {
			return fmt.Errorf("write a GPU's memory limits: %w", err)
		}
		written = entries
		return nil
	})
}

// namesNoGroup reports whether an entry names no control group: it would be the root's.
func namesNoGroup(e Entry) bool { return !below(e.PodDir) || !below(e.Dir) }

func below(group string) bool {
	return strings.HasPrefix(group, "/") && filepath.Clean(group) == group && group != "/"
}

// keep is not synced: control groups do not survive a reboot.
func keep(file statefile.File[[]Entry], entries []Entry) error {
	if len(entries) == 0 {
		return file.Remove()
	}
	return file.Store(entries)
}

// current are the entries of pods that are there. A share counts for its pod until the pod
// ends, also while no container of it runs; containers that have ended are told apart no
// more than that takes.
func (h Host) current(entries []Entry) []Entry {
	// Those that run come first, so that one that has ended stays only where none runs.
	var running, ended []Entry
	for _, e := range entries {
		switch {
		case !h.exists(e.PodDir):
		case h.exists(e.Dir):
			running = append(running, e)
		default:
			ended = append(ended, e)
		}
	}
	out := running
	for _, e := range ended {
		if !slices.ContainsFunc(out, func(o Entry) bool { return o.PodDir == e.PodDir && o.Share == e.Share }) {
			out = append(out, e)
		}
	}
	return out
}

func (h Host) exists(group string) bool {
	info, err := os.Stat(h.dir(group))
	return err == nil && info.IsDir()
}

// GPUs are the UUIDs of the GPUs of which there are entries.
func (h Host) GPUs() ([]string, error) {
	found, err := os.ReadDir(h.Ledger)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the GPUs that have memory limits: %w", err)
	}
	var uuids []string
	for _, f := range found {
		if uuid, is := strings.CutSuffix(f.Name(), fileSuffix); is {
			uuids = append(uuids, uuid)
		}
	}
	return uuids, nil
}
