// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
)

// ofSupervisor reports whether the process is in the pod of gpu-mps-supervisor. That is a known one only where the
// node's pods are watched. A pod that was once found is not looked for again: no other has its UID.
func (w *Watch) ofSupervisor(ctx context.Context, o audit.Owner) bool {
	if len(o.Places) == 0 {
		return false
	}
	// All of them: a process may make control groups of any name below its own.
	var pods []types.UID
	for _, place := range o.Places {
		pods = append(pods, place.Pod)
	}
	if slices.Equal(pods, w.supervisor) {
		return true
	}
	pid, err := w.Supervisor()
	if err != nil {
		klog.FromContext(ctx).V(2).Info("It is not known which pod is gpu-mps-supervisor's", "err", err)
	}
	if pid == 0 {
		return false
	}
	places, err := w.Processes.Places(pid)
	if err != nil {
		return false // it has ended
	}
	w.supervisor = nil
	for _, place := range places {
		w.supervisor = append(w.supervisor, place.Pod)
	}
	return slices.Equal(pods, w.supervisor)
}

// LockHolder is the process that has locked the file for itself by flock(2), by its number in the procfs; 0 if none
// has.
func LockHolder(procfs, file string) (pid int, err error) {
	const what = "look who has locked a file: %w"
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return 0, nil
		}
		return 0, fmt.Errorf(what, &fs.PathError{Op: "stat", Path: file, Err: err})
	}
	is := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
	locks, err := os.Open(filepath.Join(procfs, "locks"))
	if err != nil {
		return 0, fmt.Errorf(what, err)
	}
	defer locks.Close()
	for lines := bufio.NewScanner(locks); ; {
		if !lines.Scan() {
			if err := lines.Err(); err != nil {
				return 0, fmt.Errorf(what, err)
			}
			return 0, nil
		}
		// "1: FLOCK  ADVISORY  WRITE 5107 fe:00:5318631 0 EOF"; of who waits for it, "1: -> FLOCK …".
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[1] != "FLOCK" || f[3] != "WRITE" || f[5] != is {
			continue
		}
		if pid, err = strconv.Atoi(f[4]); err != nil {
			return 0, fmt.Errorf(what, err)
		}
		return pid, nil
	}
}
