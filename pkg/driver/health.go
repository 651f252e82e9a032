// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/publish"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

const (
	// healthLook is how often it is looked whether the devices' health is other than last
	// reported, healthResend how often it is reported anyway: the kubelet forgets it
	// after 30 s.
	healthLook   = time.Second
	healthResend = 10 * time.Second
	// eventsAgain is when the driver is asked for events again after it failed to.
	eventsAgain = 30 * time.Second
)

// makeMonitor makes what keeps track of the GPUs' health.
func (a *agent) makeMonitor(ctx context.Context, bootID string) *health.Monitor {
	monitor, err := health.NewMonitor(ctx, health.Options{
		Ignored: a.IgnoredXIDs, File: filepath.Join(a.PluginDir, "health.json"), BootID: bootID, Events: a.events,
		Clock: clock.RealClock{}, Changed: a.publisher.SetHealth,
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "A state file was damaged")
		a.events.Warn(v1alpha1.ReasonStateDamaged, err.Error())
	}
	return monitor
}

// watchEvents passes on what the driver tells of the node's GPUs.
func (a *agent) watchEvents(ctx context.Context, watch func(context.Context, func(gpu.Event)) error,
	monitor *health.Monitor) {
	logger, said := klog.FromContext(ctx), ""
	for ctx.Err() == nil {
		err := watch(ctx, func(e gpu.Event) { monitor.Event(ctx, e) })
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
		case <-time.After(eventsAgain):
		}
	}
}

func (a *agent) healthReports() *healthReports {
	return &healthReports{pool: v1alpha1.PoolName(a.NodeName), clock: clock.RealClock{},
		devices: func(ctx context.Context) ([]publish.DeviceHealth, error) {
			prepared, err := a.preparer.Prepared(ctx)
			return a.publisher.Health(prepared), err
		}}
}

// healthReports tells the kubelet, which shows it in the status of the pods, how the
// devices are.
type healthReports struct {
	pool    string
	devices func(ctx context.Context) ([]publish.DeviceHealth, error)
	clock   clock.Clock

	mu sync.Mutex
	// since is when a device was first seen as it is.
	since map[publish.DeviceHealth]time.Time
}

// watch implements WatchHealthStatus of [kubeletplugin.DRAPlugin].
func (h *healthReports) watch(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	var last []publish.DeviceHealth
	var sent time.Time
	said := ""
	for {
		now, err := h.devices(ctx)
		switch {
		case err != nil:
			if err.Error() != said {
				said = err.Error()
				klog.FromContext(ctx).Error(err, "The devices' health cannot be told to the kubelet")
			}
		case !slices.Equal(now, last) || h.clock.Since(sent) >= healthResend:
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
		case <-h.clock.After(healthLook):
		}
	}
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
