// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// GPUs that are cut otherwise are read within a second or two, once for all that an administrator does at a time.
func TestCutGPUsAreReadSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withTwoGPUs()
		stop := c.keep(t)
		c.change(func() {
			g := c.machine.GPUs[1]
			c.machine = gpu.Machine{GPUs: c.machine.GPUs[:1], Partitioned: []gpu.Partitioned{{GPU: g,
				Instances: []gpu.Instance{{UUID: "MIG-a"}}}}}
		})
		for range 5 {
			c.keeper.Cut()
			time.Sleep(cutSettles / 10)
		}
		passes(cutSettles)
		stop()
		if c.reads != 2 || len(c.set.Machine.GPUs) != 1 || len(c.set.Machine.Partitioned) != 1 {
			t.Errorf("read %d times, last %+v; want twice, one of two GPUs in MIG mode", c.reads, c.set.Machine)
		}
	})
}

// What a node pays while nothing happens: who adds to this adds to it on each node.
func TestAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withTwoGPUs()
		stop := c.keep(t)
		c.change(func() { c.reads, c.checks, c.lookedAt, c.moments = 0, 0, 0, map[time.Time]bool{} })
		passes(time.Minute)
		stop()
		if c.reads > 1 || c.checks > 61 || c.lookedAt > 30 || len(c.moments) > 60 {
			t.Errorf("in a minute the GPUs were read %d times, asked %d times and the driver's files looked at %d times, at %d "+
				"moments; want 1, 61, 30 and 60 at most", c.reads, c.checks, c.lookedAt, len(c.moments))
		}
	})
}

func (c *gpusNow) noteMoment() {
	if c.moments != nil {
		c.moments[time.Now()] = true
	}
}

// Whoever wants to know sooner of a GPU that broke says so.
func TestReadInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &gpusNow{machine: twoGPUs(), base: base{"GPU-a GPU-b"}, interval: 3 * time.Second}
		stop := c.keep(t)
		passes(6 * time.Second)
		c.change(func() { c.fails = errors.New("no driver") })
		passes(6 * time.Second)
		stop()
		expect.Equal(t, 5, c.reads, "times read in 12 s")
	})
}

// Whoever takes long with what was found keeps nobody from seeing that a GPU is ill.
func TestGPUsAreLookedAtWhileNobodyTakesWhatWasFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &gpusNow{machine: twoGPUs(), base: base{"GPU-a GPU-b"}, busy: true}
		stop := c.keep(t)
		c.change(func() {
			c.machine.LeaveOut(gpu.Fault{Index: 1, UUID: "GPU-b", Reason: gpu.FaultLost, Message: "lost"})
		})
		passes(DefaultReadInterval + checkInterval)
		stop()
		if len(c.observed) != 2 || c.observed[1].Failure != gpu.FailureLost || c.reads != 2 {
			t.Errorf("observed were %+v after %d readings", c.observed, c.reads)
		}
		if newest := <-c.keeper.Found; len(newest.Machine.GPUs) != 1 {
			t.Errorf("found is %+v, not what was read last", newest.Machine)
		}
	})
}

// Whoever waits for the GPUs is told that they cannot be read.
func TestGPUsThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &gpusNow{fails: errors.New("no driver")}
		stop := c.keep(t)
		c.change(func() {
			if c.found != 1 || c.set != nil {
				t.Errorf("found %d times, last %+v", c.found, c.set)
			}
			c.machine, c.base, c.fails = twoGPUs(), base{"GPU-a GPU-b"}, nil
		})
		passes(retryReadInterval)
		stop()
		expect.Equal(t, 2, c.found, "times found")
		expect.Equal(t, 2, len(c.set.Machine.GPUs), "GPUs are known")
	})
}
