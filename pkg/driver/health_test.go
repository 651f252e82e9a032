// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/publish"
)

// The kubelet forgets what it is not told again within 30 s, and shows a change at once.
func TestHealthIsReportedWhenItChangesAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		now := []publish.DeviceHealth{{Device: "gpu-0"}, {Device: "gpu-1"}}
		var fails error
		h := &healthReports{pool: "n1/gpu", clock: clock.RealClock{},
			devices: func(context.Context) ([]publish.DeviceHealth, error) {
				mu.Lock()
				defer mu.Unlock()
				return now, fails
			}}
		reports, done := make(chan kubeletplugin.DeviceHealthReport, 100), make(chan error, 1)
		go func() { done <- h.watch(ctx, reports) }()
		begin := time.Now()
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if got := len(reports); got != 3 {
			t.Errorf("%d reports in 25 s without a change, want 3", got)
		}
		for range len(reports) {
			<-reports
		}
		mu.Lock()
		now = []publish.DeviceHealth{{Device: "gpu-0"}, {Device: "gpu-1", Message: strings.Repeat("m", 2000)}}
		mu.Unlock()
		time.Sleep(healthLook)
		synctest.Wait()
		want := kubeletplugin.DeviceHealthReport{Devices: []kubeletplugin.DeviceHealth{
			{PoolName: "n1/gpu", DeviceName: "gpu-0", Health: kubeletplugin.HealthStatusHealthy, LastUpdated: begin},
			{PoolName: "n1/gpu", DeviceName: "gpu-1", Health: kubeletplugin.HealthStatusUnhealthy,
				LastUpdated: begin.Add(26 * time.Second)},
		}}
		got := <-reports
		if n := len(got.Devices[1].Message); n == 0 || n > mostHealthMessage {
			t.Errorf("the message has %d bytes", n)
		}
		got.Devices[1].Message = ""
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("report (-want +got):\n%s", diff)
		}
		// What is not known is not told: the kubelet shows Unknown after a while.
		mu.Lock()
		fails = errors.New("no records")
		mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := len(reports); got != 0 {
			t.Errorf("%d reports while the health is not known", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
