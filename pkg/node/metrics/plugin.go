// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpushare/dra-driver-gpushare/pkg/metrics"
)

// Plugin counts what gpu-kubelet-plugin does. What a node has is a NodeCollector's.
type Plugin struct {
	prepare, unprepare, calls *prometheus.HistogramVec
	publishLag                prometheus.Histogram
	publishErrors             prometheus.Counter
	statusWrites              *prometheus.CounterVec
	limitMissing              prometheus.Gauge
	limitsRestored            prometheus.Counter
}

// NewPlugin registers what the plugin counts.
func NewPlugin(r prometheus.Registerer) *Plugin {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: metrics.Namespace, Name: name, Help: help,
			Buckets: metrics.Durations()}, labels)
	}
	p := &Plugin{
		prepare: histogram("claim_prepare_duration_seconds",
			"How long the driver took to prepare a claim: success or error.", "result", "reason"),
		unprepare: histogram("claim_unprepare_duration_seconds",
			"How long the driver took to unprepare a claim.", "result",
			"reason"),
		calls: histogram("dra_call_duration_seconds",
			"How long a call of the kubelet took.", "method", "result"),
		publishLag: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: metrics.Namespace,
			Name:    "publish_lag_seconds",
			Help:    "From a change on the node until its ResourceSlices were given to the API client.",
			Buckets: metrics.Lags()}),
		publishErrors: prometheus.NewCounter(prometheus.CounterOpts{Namespace: metrics.Namespace,
			Name: "publish_errors_total",
			Help: "ResourceSlices that could not be made or written."}),
		statusWrites: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: metrics.Namespace,
			Name: "claim_status_writes_total",
			Help: "Writes of the status of claims (docs/metrics.md#the-status-of-claims)."},
			[]string{"result"}),
		limitMissing: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: metrics.Namespace,
			Name: "memory_limit_missing",
			Help: "Containers whose limit of GPU memory cannot be set again (docs/kernel-limits.md#lost-limits)."}),
		limitsRestored: prometheus.NewCounter(prometheus.CounterOpts{Namespace: metrics.Namespace,
			Name: "memory_limits_restored_total",
			Help: "How often a container's limit of GPU memory was set again."}),
	}
	r.MustRegister(p.prepare, p.unprepare, p.calls, p.publishLag, p.publishErrors, p.statusWrites,
		p.limitMissing, p.limitsRestored)
	return p
}

// Prepared counts a claim that was prepared, or, with a reason, was not.
func (p *Plugin) Prepared(took time.Duration, reason string) { observe(p.prepare, took, reason) }

// Unprepared counts a claim that was unprepared, or, with a reason, was not.
func (p *Plugin) Unprepared(took time.Duration, reason string) { observe(p.unprepare, took, reason) }

func observe(h *prometheus.HistogramVec, took time.Duration, reason string) {
	h.WithLabelValues(metrics.ResultOf(reason != ""), reason).Observe(took.Seconds())
}

// Called counts a call of the kubelet.
func (p *Plugin) Called(method string, took time.Duration, err error) {
	p.calls.WithLabelValues(method, metrics.ResultOf(err != nil)).Observe(took.Seconds())
}

// Published counts a reconciliation that the oldest change waited for so long.
func (p *Plugin) Published(lag time.Duration) { p.publishLag.Observe(lag.Seconds()) }

// PublishFailed counts one that failed.
func (p *Plugin) PublishFailed() { p.publishErrors.Inc() }

// StatusWritten counts a write of a claim's status.
func (p *Plugin) StatusWritten(err error) {
	p.statusWrites.WithLabelValues(metrics.ResultOf(err != nil)).Inc()
}

// LimitsMissing says how many containers lack their limits of GPU memory, and of how many
// others they were set again.
func (p *Plugin) LimitsMissing(missing, restored int) {
	p.limitMissing.Set(float64(missing))
	p.limitsRestored.Add(float64(restored))
}
