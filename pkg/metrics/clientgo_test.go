// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// What client-go counts keeps to the conventions for names, as "promtool check metrics" has them.
func TestConventionsOfClientGo(t *testing.T) {
	r := prometheus.NewRegistry()
	requests, retries, latency, limiter := clientVectors()
	q := newQueues()
	q.register(r)
	r.MustRegister(requests, retries, latency, limiter)
	requests.WithLabelValues("200", "GET", "api").Inc()
	retries.WithLabelValues("429", "GET", "api").Inc()
	latency.WithLabelValues("GET", "api").Observe(1)
	limiter.WithLabelValues("GET", "api").Observe(1)
	q.NewAddsMetric("pending").Inc()
	q.NewDepthMetric("pending").Inc()
	q.NewLatencyMetric("pending").Observe(1)
	q.NewLongestRunningProcessorSecondsMetric("pending").Set(1)
	q.NewRetriesMetric("pending").Inc()
	q.NewUnfinishedWorkSecondsMetric("pending").Set(1)
	q.NewWorkDurationMetric("pending").Observe(1)
	problems, err := testutil.GatherAndLint(r)
	expect.NoError(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
