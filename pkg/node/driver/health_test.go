// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// kubeletSees is a stream of health, and what it is made of.
type kubeletSees struct {
	reports chan kubeletplugin.DeviceHealthReport
	changed signal.Broadcast

	mu      sync.Mutex
	devices []publish.DeviceHealth
	fails   error
	looks   int
}

func (k *kubeletSees) watch(t *testing.T) (stop func() string) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	k.reports = make(chan kubeletplugin.DeviceHealthReport, 100)
	h := &healthReports{pool: "n1/gpu", clock: clock.RealClock{}, changed: &k.changed,
		prepared: func(context.Context) ([]state.Record, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.looks++
			return nil, k.fails
		},
		devices: func([]state.Record) []publish.DeviceHealth {
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.devices
		}}
	done := make(chan error, 1)
	go func() { done <- h.watch(ctx, k.reports) }()
	return func() string {
		cancel()
		expect.Error(t, <-done)
		return logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	}
}

func (k *kubeletSees) change(do func()) {
	k.mu.Lock()
	do()
	k.mu.Unlock()
	k.changed.Send()
}

// drain returns what was reported until now.
func (k *kubeletSees) drain() (reports []kubeletplugin.DeviceHealthReport) {
	synctest.Wait()
	for range len(k.reports) {
		reports = append(reports, <-k.reports)
	}
	return reports
}

// The kubelet forgets what it is not told again within 30 s, and shows a change at once.
func TestHealthIsReportedWhenItChangesAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kubeletSees{devices: []publish.DeviceHealth{{Device: "gpu-0"}, {Device: "gpu-1"}}}
		stop := k.watch(t)
		begin := time.Now()
		time.Sleep(25 * time.Second)
		expect.Equal(t, 3, len(k.drain()), "reports in 25 s without a change")
		expect.Equal(t, 3, k.looks, "times the records were listed in 25 s without a change")
		k.change(func() {
			k.devices = []publish.DeviceHealth{{Device: "gpu-0"}, {Device: "gpu-1", Message: strings.Repeat("m", 2000)}}
		})
		want := kubeletplugin.DeviceHealthReport{Devices: []kubeletplugin.DeviceHealth{
			{PoolName: "n1/gpu", DeviceName: "gpu-0", Health: kubeletplugin.HealthStatusHealthy, LastUpdated: begin},
			{PoolName: "n1/gpu", DeviceName: "gpu-1", Health: kubeletplugin.HealthStatusUnhealthy,
				LastUpdated: begin.Add(25 * time.Second)},
		}}
		reports := k.drain()
		if len(reports) != 1 {
			t.Fatalf("%d reports at the moment of the change, want 1", len(reports))
		}
		got := reports[0]
		if n := len(got.Devices[1].Message); n == 0 || n > mostHealthMessage {
			t.Errorf("the message has %d bytes", n)
		}
		got.Devices[1].Message = ""
		expect.Equal(t, want, got, "report")
		stop()
	})
}

// A burst of claims does not list the records for each of them.
func TestManyChangesAreOneLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kubeletSees{devices: []publish.DeviceHealth{{Device: "gpu-0"}}}
		stop := k.watch(t)
		for range 500 {
			time.Sleep(10 * time.Millisecond)
			k.change(func() {})
			synctest.Wait()
		}
		if k.looks > 6 {
			t.Errorf("the records were listed %d times in 5 s, want one a second", k.looks)
		}
		stop()
	})
}

// What is published is told whatever becomes of the records; that they cannot be read is
// said once. Where they were never written, or their directory was lost, nothing is wrong
// with the health.
func TestHealthWithoutRecords(t *testing.T) {
	const says = "cannot be told to the kubelet"
	for name, test := range map[string]struct {
		fails error
		want  int
	}{
		"no directory":       {fmt.Errorf("list the state directory: %w", fs.ErrNotExist), 0},
		"an unreadable disk": {fmt.Errorf("list the state directory: %w", syscall.EIO), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &kubeletSees{devices: []publish.DeviceHealth{{Device: "gpu-0"}}, fails: test.fails}
				stop := k.watch(t)
				time.Sleep(5 * time.Minute)
				for i, report := range k.drain() {
					expect.Equal(t, 1, len(report.Devices), "devices of report %d: %v", i, report)
				}
				if log := stop(); strings.Count(log, says) != test.want {
					t.Errorf("the log says it %d times, want %d:\n%s", strings.Count(log, says), test.want, log)
				}
			})
		})
	}
}

// A plugin that waited for its driver is told the faults of GPUs from when it offers them.
func TestEventsAreWatchedWhenTheGPUsAreThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		var inventories signal.Broadcast
		var asked []time.Duration
		began, there := time.Now(), false
		watch := func(ctx context.Context, _ func(gpu.Event)) error {
			asked = append(asked, time.Since(began))
			if !there {
				return errors.New("the driver is not there")
			}
			<-ctx.Done()
			return nil
		}
		var running sync.WaitGroup
		running.Go(func() { watchEvents(ctx, watch, nil, nil, &inventories) })
		time.Sleep(eventsAgain + 7*time.Second)
		synctest.Wait()
		there = true
		inventories.Send()
		synctest.Wait()
		want := []time.Duration{0, eventsAgain, eventsAgain + 7*time.Second}
		expect.Equal(t, want, asked, "asked for events after")
		cancel()
		running.Wait()
	})
}
