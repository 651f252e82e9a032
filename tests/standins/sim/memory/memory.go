// SPDX-License-Identifier: Apache-2.0

// Package memory stands in for what NVIDIA's kernel driver does when CUDA programs allocate memory of a GPU of
// a simulated node (tests/standins/sim): what it counts for their control groups, and what it refuses. The limits
// are those that the node's NVML library was told (tests/standins/nvmllib/src/memory.c), in the same file.
//
// What programs hold is on record until they are closed, also where the process that stands in for them ends.
package memory

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// ErrOutOfMemory is what a program is told whose allocation is refused.
var ErrOutOfMemory = errors.New("CUDA_ERROR_OUT_OF_MEMORY")

// ContextMiB is what a program's context takes of the GPU, which is counted as what it allocates: about as much as
// on an H200.
const ContextMiB = 514

const (
	mib     = 1 << 20
	noLimit = 1<<64 - 1
)

// Client is a program with a context on a GPU.
type Client struct {
	root, uuid, name string
	group            Cgroup
}

var clients atomic.Int64

// Open makes a context on a GPU of the driver root for a program of that control group, or is ErrOutOfMemory.
func Open(root, uuid string, group Cgroup) (*Client, error) {
	c := &Client{root: root, uuid: uuid, name: fmt.Sprintf("%d-%d", os.Getpid(), clients.Add(1)), group: group}
	if err := c.Allocate(ContextMiB); err != nil {
		return nil, err
	}
	return c, nil
}

// Allocate takes so much memory of the GPU, as cudaMalloc does.
func (c *Client) Allocate(memoryMiB int64) error {
	return c.change(func(t *table, m sim.Memory) error {
		charged := t.charged(c.group, m.Limits)
		bytes := uint64(memoryMiB) * mib
		for _, number := range charged {
			if l, limited := t.limit(number); limited && t.used(number)+bytes > l.hard {
				return fmt.Errorf("%w: %d MiB of %d MiB that its control group may have are in use", ErrOutOfMemory,
					t.used(number)/mib, l.hard/mib)
			}
		}
		if t.all()+bytes > uint64(m.MiB-m.ReservedMiB)*mib {
			return fmt.Errorf("%w: the GPU is full", ErrOutOfMemory)
		}
		t.uses = append(t.uses, use{c.name, bytes, charged})
		return nil
	})
}

// Info is what cuMemGetInfo tells: within a limit of its own control group, that is all that there is.
func (c *Client) Info() (freeMiB, totalMiB int64, err error) {
	err = c.change(func(t *table, m sim.Memory) error {
		total, used := uint64(m.MiB-m.ReservedMiB)*mib, t.all()
		charged := t.charged(c.group, m.Limits)
		if len(charged) > 0 {
			if l, limited := t.limit(charged[0]); limited && l.hard < total {
				total, used = l.hard, t.used(charged[0])
			}
		}
		freeMiB, totalMiB = int64((total-min(total, used))/mib), int64(total/mib)
		return nil
	})
	return freeMiB, totalMiB, err
}

// Close ends the program: the driver frees what it had.
func (c *Client) Close() error {
	return c.change(func(t *table, _ sim.Memory) error {
		t.uses = slices.DeleteFunc(t.uses, func(u use) bool { return u.holder == c.name })
		return nil
	})
}

func (c *Client) change(f func(*table, sim.Memory) error) error { return change(c.root, c.uuid, f) }

// Limit is what a control group may have of a GPU, and has, in MiB.
type Limit struct{ HardMiB, UsedMiB int64 }

// LimitOf is the limit of a control group itself, if it has one.
func LimitOf(root, uuid string, group Cgroup) (limit Limit, limited bool, err error) {
	err = change(root, uuid, func(t *table, _ sim.Memory) error {
		var l entry
		if l, limited = t.limit(group.chain[0]); limited && l.hard == noLimit {
			limited = false
		}
		if limited {
			limit = Limit{int64(l.hard / mib), int64(t.used(group.chain[0]) / mib)}
		}
		return nil
	})
	return limit, limited, err
}

// Lift takes the limits of a control group, and of those that it lies in, away, as any program can that has
// CAP_SYS_ADMIN and a GPU.
func Lift(root, uuid string, group Cgroup) error {
	return change(root, uuid, func(t *table, _ sim.Memory) error {
		t.limits = slices.DeleteFunc(t.limits, func(l entry) bool { return slices.Contains(group.chain, l.number) })
		return nil
	})
}

// change reads the table of a GPU, and writes it where the change succeeds, while nobody else does.
func change(root, uuid string, f func(*table, sim.Memory) error) error {
	spec, err := sim.Load(filepath.Join(root, sim.MachineFile))
	if err != nil {
		return err
	}
	m, err := spec.Memory(uuid)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(root, sim.StateDir, uuid+".memory"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("read what the driver counts: %w", err)
	}
	defer file.Close() // It unlocks the file.
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock what the driver counts: %w", err)
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return fmt.Errorf("read what the driver counts: %w", err)
	}
	t, err := parse(string(content))
	if err != nil {
		return err
	}
	if err := f(t, m); err != nil {
		return err
	}
	if err := file.Truncate(0); err != nil {
		return fmt.Errorf("write what the driver counts: %w", err)
	}
	if _, err := file.WriteAt([]byte(t.String()), 0); err != nil {
		return fmt.Errorf("write what the driver counts: %w", err)
	}
	return nil
}
