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
