// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

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
