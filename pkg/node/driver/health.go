// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/news"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

const (
	// healthCollect is how long there is between two looks at the devices' health at least:
	// what a burst of claims changes costs one. healthResend is how often it is reported
	// where nothing changes: the kubelet forgets it after 30 s.
	healthCollect = time.Second
	healthResend  = 10 * time.Second
	// eventsAgain is when the driver is asked for events again after it failed to, at the latest.
	eventsAgain = 30 * time.Second
)

// makeMonitor makes what keeps track of the GPUs' health.
func (a *agent) makeMonitor(ctx context.Context, bootID string) *health.Monitor {
	monitor, err := health.NewMonitor(ctx, health.Options{
		Ignored: a.IgnoredXIDs, File: filepath.Join(a.PluginDir, "health.json"), BootID: bootID, Events: a.events,
		Clock: clock.RealClock{}, Changed: a.publisher.SetHealth,
	})
	if err != nil {
		a.tellDamaged(ctx, err)
	}
	return monitor
}

// watchEvents passes on what the driver tells of the node's GPUs; cut is told when one is cut otherwise. After a
// failure the driver is asked again when other GPUs were read than before: nobody keeps the events until then.
func watchEvents(ctx context.Context, watch func(context.Context, func(gpu.Event)) error, monitor *health.Monitor,
	cut func(), inventories *signal.Broadcast) {
	logger, said := klog.FromContext(ctx), ""
	for ctx.Err() == nil {
		found := inventories.Next() // also while the driver is asked
		err := watch(ctx, func(e gpu.Event) {
			monitor.Event(ctx, e)
			if e.Kind == gpu.EventMIGChanged {
				cut()
			}
		})
		if err != nil && err.Error() != said {
			said = err.Error()
			if errors.Is(err, nvml.ErrNoEvents) {
				logger.Info("The GPUs' health is known from what they answer alone", "reason", err)
			} else {
				logger.Error(err, "The driver's events of GPUs cannot be watched, will try again", "after", eventsAgain)
			}
		}
		select {
		case <-ctx.Done():
		case <-found:
		case <-time.After(eventsAgain):
		}
	}
}

func (a *agent) healthReports() *healthReports {
	return &healthReports{pool: v1alpha1.PoolName(a.NodeName), clock: clock.RealClock{}, changed: &a.healthChanged,
		granted: &a.changed, prepared: a.preparer.Prepared, devices: a.publisher.Health}
}

// healthReports tells the kubelet, which shows it in the status of the pods, how the
// devices are.
type healthReports struct {
	pool string
	// prepared are the records of the claims whose devices are told beside those that are
	// published, devices how all of these are.
	prepared func(ctx context.Context) ([]state.Record, error)
	devices  func(prepared []state.Record) []publish.DeviceHealth
	// granted is sent when the former may have changed, changed when the latter may.
	granted, changed *signal.Broadcast
	clock            clock.Clock

	mu sync.Mutex
	// since is when a device was first seen as it is.
	since map[publish.DeviceHealth]time.Time
	news  news.Teller
}

// watch implements WatchHealthStatus of [kubeletplugin.DRAPlugin].
func (h *healthReports) watch(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	var last []publish.DeviceHealth
	var sent time.Time
	for {
		// What changes from here on is looked at again.
		granted, changed := h.granted.Next(), h.changed.Next()
		if now := h.look(ctx); !slices.Equal(now, last) || h.clock.Since(sent) >= healthResend {
			select {
			case reports <- h.report(now):
				last, sent = now, h.clock.Now()
			case <-ctx.Done():
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-h.clock.After(healthCollect):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-granted:
		case <-changed:
		case <-h.clock.After(healthResend - h.clock.Since(sent)):
		}
	}
}

// look is how the devices are. Without the records those are missing that are prepared
// and not published any more; the kubelet shows them as unknown after a while. Where there
// is no directory of records, none is prepared: that it was lost, others say and repair.
func (h *healthReports) look(ctx context.Context) []publish.DeviceHealth {
	prepared, err := h.prepared(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if h.news.IsError(err) {
		klog.FromContext(ctx).Error(err, "The health of devices that are prepared and not published any more cannot be "+
			"told to the kubelet")
	}
	return h.devices(prepared)
}

func (h *healthReports) report(devices []publish.DeviceHealth) kubeletplugin.DeviceHealthReport {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.since
	h.since = map[publish.DeviceHealth]time.Time{}
	var report kubeletplugin.DeviceHealthReport
	for _, d := range devices {
		since, known := before[d]
		if !known {
			since = h.clock.Now()
		}
		h.since[d] = since
		status := kubeletplugin.HealthStatusHealthy
		if d.Message != "" {
			status = kubeletplugin.HealthStatusUnhealthy
		}
		report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{
			PoolName: h.pool, DeviceName: d.Device, Health: status, LastUpdated: since, Message: bounded(d.Message),
		})
	}
	return report
}

// mostHealthMessage is how long the kubelet lets a message be, in bytes.
const mostHealthMessage = 1024

func bounded(message string) string { return text.Bound(message, mostHealthMessage) }
