// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/client-go/util/workqueue"
)

// Buckets as the components of Kubernetes have them for the same metrics.
var (
	requestBuckets = []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	queueBuckets   = prometheus.ExponentialBuckets(1e-6, 10, 8)
)

// ClientGo has the requests to the API server and the election of the leader counted,
// under the names that Kubernetes' components use. client-go takes one such
// for a process, the first, and only clients and queues that are made later are counted:
// so a program calls this once, before it makes any.
//
// It is not k8s.io/component-base/metrics, which does the same and keeps a global registry,
// with some hundred series of the Go runtime on each node.
func ClientGo(r prometheus.Registerer) {
	requests, retries, latency, limiter := clientVectors()
	leader := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "leader_election_master_status",
		Help: "1 while this replica holds the Lease of this name, else 0."}, []string{"name"})
	r.MustRegister(requests, retries, latency, limiter, leader)
	clientmetrics.Register(clientmetrics.RegisterOpts{
		RequestLatency: observed{latency}, RateLimiterLatency: observed{limiter},
		RequestResult: counted{requests}, RequestRetry: retried{retries},
	})
	leaderelection.SetProvider(leaders{leader})
}

// WorkQueues has the work queues counted, in the same way. Each queue wakes the process twice a second
// then, whether it has anything or not.
func WorkQueues(r prometheus.Registerer) {
	queues := newQueues()
	queues.register(r)
	workqueue.SetProvider(queues)
}

func clientVectors() (requests, retries *prometheus.CounterVec, latency, limiter *prometheus.HistogramVec) {
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rest_client_requests_total",
		Help: "Requests to the API server, by status code, HTTP method and host."}, []string{"code", "method", "host"})
	retries = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rest_client_request_retries_total",
		Help: "Requests that the API client sent again, by status code, verb and host."},
		[]string{"code", "verb", "host"})
	latency = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "rest_client_request_duration_seconds",
		Help: "How long requests to the API server took.", Buckets: requestBuckets}, []string{"verb", "host"})
	limiter = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "rest_client_rate_limiter_duration_seconds",
		Help: "How long requests waited for the API client's own limit of their rate.", Buckets: requestBuckets},
		[]string{"verb", "host"})
	return requests, retries, latency, limiter
}

type observed struct{ *prometheus.HistogramVec }

// Observe implements metrics.LatencyMetric of client-go.
func (o observed) Observe(_ context.Context, verb string, u url.URL, took time.Duration) {
	o.WithLabelValues(verb, u.Host).Observe(took.Seconds())
}

type counted struct{ *prometheus.CounterVec }

// Increment implements metrics.ResultMetric of client-go.
func (c counted) Increment(_ context.Context, code, method, host string) {
	c.WithLabelValues(code, method, host).Inc()
}

type retried struct{ *prometheus.CounterVec }

// IncrementRetry implements metrics.RetryMetric of client-go.
func (c retried) IncrementRetry(_ context.Context, code, verb, host string) {
	c.WithLabelValues(code, verb, host).Inc()
}

type leaders struct{ *prometheus.GaugeVec }

// NewLeaderMetric implements leaderelection.MetricsProvider.
func (l leaders) NewLeaderMetric() leaderelection.LeaderMetric { return l }

// On implements leaderelection.LeaderMetric.
func (l leaders) On(name string) { l.WithLabelValues(name).Set(1) }

// Off implements leaderelection.LeaderMetric.
func (l leaders) Off(name string) { l.WithLabelValues(name).Set(0) }

// SlowpathExercised implements leaderelection.LeaderMetric.
func (leaders) SlowpathExercised(string) {}

// queues is a workqueue.MetricsProvider.
type queues struct {
	depth, unfinished, longest *prometheus.GaugeVec
	adds, retries              *prometheus.CounterVec
	latency, work              *prometheus.HistogramVec
}

func newQueues() queues {
	labels := []string{"name"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "workqueue", Name: name, Help: help}, labels)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "workqueue", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: "workqueue", Name: name, Help: help,
			Buckets: queueBuckets}, labels)
	}
	return queues{
		depth:      gauge("depth", "Keys that wait in the queue."),
		unfinished: gauge("unfinished_work_seconds", "For how long all keys together have been worked on by now."),
		longest:    gauge("longest_running_processor_seconds", "For how long the oldest of them has been worked on."),
		adds:       counter("adds_total", "Keys that were added to the queue."),
		retries:    counter("retries_total", "Keys that were added again, after an error or a while."),
		latency:    histogram("queue_duration_seconds", "How long keys waited in the queue."),
		work:       histogram("work_duration_seconds", "How long keys were worked on."),
	}
}

func (q queues) register(r prometheus.Registerer) {
	r.MustRegister(q.depth, q.unfinished, q.longest, q.adds, q.retries, q.latency, q.work)
}

// NewDepthMetric implements workqueue.MetricsProvider.
func (q queues) NewDepthMetric(name string) workqueue.GaugeMetric {
	return q.depth.WithLabelValues(name)
}

// NewAddsMetric implements workqueue.MetricsProvider.
func (q queues) NewAddsMetric(name string) workqueue.CounterMetric {
	return q.adds.WithLabelValues(name)
}

// NewLatencyMetric implements workqueue.MetricsProvider.
func (q queues) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return q.latency.WithLabelValues(name)
}

// NewWorkDurationMetric implements workqueue.MetricsProvider.
func (q queues) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return q.work.WithLabelValues(name)
}

// NewUnfinishedWorkSecondsMetric implements workqueue.MetricsProvider.
func (q queues) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.unfinished.WithLabelValues(name)
}

// NewLongestRunningProcessorSecondsMetric implements workqueue.MetricsProvider.
func (q queues) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.longest.WithLabelValues(name)
}

// NewRetriesMetric implements workqueue.MetricsProvider.
func (q queues) NewRetriesMetric(name string) workqueue.CounterMetric {
	return q.retries.WithLabelValues(name)
}
