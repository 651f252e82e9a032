// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// GPUs that are cut otherwise are read within a second or two, once for all that an administrator does at a time.
func TestCutGPUsAreReadSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &gpusNow{machine: twoGPUs(), base: base{"GPU-a GPU-b"}}
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
		time.Sleep(cutSettles)
		synctest.Wait()
		stop()
		if c.reads != 2 || len(c.set.Machine.GPUs) != 1 || len(c.set.Machine.Partitioned) != 1 {
			t.Errorf("read %d times, last %+v; want twice, one of two GPUs in MIG mode", c.reads, c.set.Machine)
		}
	})
}
