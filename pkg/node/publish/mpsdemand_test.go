// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// fullDisk is a directory in which nothing can be written while it is full.
type fullDisk struct {
	mps.Dir
	full atomic.Bool
}

func (d *fullDisk) SetUse(uuid string, u mps.Use) error {
	if d.full.Load() {
		return errors.New("no space left on device")
	}
	return d.Dir.SetUse(uuid, u)
}

// What is published does not wait for gpu-mps-supervisor to be told, but is said to be behind.
func TestSupervisorThatCannotBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.supervised(t)()
		disk := &fullDisk{Dir: b.Publisher.MPS.(mps.Dir)}
		disk.full.Store(true)
		b.Clock = clock.RealClock{}
		b.demand.MPS, b.demand.Clock = disk, b.Clock
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { b.Run(ctx, b.publish) })
		defer running.Wait()
		defer stop()
		b.mode("mps")
		time.Sleep(retryInterval)
		synctest.Wait()
		expect.Equal(t, byMPS, b.devices(t), "published")
		expect.Error(t, b.Status().Err, "no space left")
		disk.full.Store(false)
		time.Sleep(retryInterval)
		synctest.Wait()
		expect.Error(t, b.Status().Err)
		b.uses(t, mps.Use{Reserved: true}, mps.Use{Reserved: true})
	})
}
