// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// rememberedFor is for how long what was read of a process counts while it runs. Processes do not change
// their pod, but for those that are privileged, and their program before they use a GPU.
const rememberedFor = 10 * time.Second

// Remembered looks up processes that are asked about again and again. It is used by one goroutine at a time.
type Remembered struct {
	processes Processes
	clock     clock.PassiveClock
	known     map[int]*remembered
}

// remembered is what is known of a process.
type remembered struct {
	is    identity
	until time.Time
	// places and program are nil until they were asked for.
	places  *[]Place
	program *string
}

// identity tells a process from one that has its number later: to each the kernel gives a directory of its own,
// whose inode number and time of making it keeps for as long as the process runs. It may give it others.
type identity struct {
	inode uint64
	made  unix.Timespec
}

// Remember returns Processes that remember what they have read.
func Remember(p Processes, c clock.PassiveClock) *Remembered {
	return &Remembered{processes: p, clock: c, known: map[int]*remembered{}}
}

// Places is Processes.Places.
func (r *Remembered) Places(pid int) ([]Place, error) {
	known, err := r.of(pid)
	if err != nil {
		return nil, err
	}
	if known.places == nil {
		places, err := r.processes.Places(pid)
		if err != nil {
			return nil, err
		}
		known.places = &places
	}
	return *known.places, nil
}

// Program is Processes.Program.
func (r *Remembered) Program(pid int) (string, error) {
	known, err := r.of(pid)
	if err != nil {
		return "", err
	}
	if known.program == nil {
		program, err := r.processes.Program(pid)
		if err != nil {
			return "", err
		}
		known.program = &program
	}
	return *known.program, nil
}

// of is what is known of a process that runs. Its number may be another process' from now on, of which what is
// read then is told: it is forgotten by the next look.
func (r *Remembered) of(pid int) (*remembered, error) {
	var dir unix.Stat_t
	if err := unix.Stat(filepath.Join(string(r.processes), strconv.Itoa(pid)), &dir); err != nil {
		return nil, r.processes.explain(pid, fmt.Errorf("look at the process: %w", err))
	}
	is, now := identity{dir.Ino, dir.Ctim}, r.clock.Now()
	if known := r.known[pid]; known != nil && known.is == is && now.Before(known.until) {
		return known, nil
	}
	maps.DeleteFunc(r.known, func(_ int, k *remembered) bool { return !now.Before(k.until) })
	r.known[pid] = &remembered{is: is, until: now.Add(rememberedFor)}
	return r.known[pid], nil
}
