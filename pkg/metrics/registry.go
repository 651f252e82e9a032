// SPDX-License-Identifier: Apache-2.0

// Package metrics is what the driver's programs show to Prometheus: names, labels and help
// texts, and how they follow from what a node has. docs/metrics.md lists them: `make docs` writes its
// tables, and a test compares. There is no global registry: each program makes its own and hands it on.
//
// Labels are bounded: by the GPUs of a node, the claims that are prepared there, and lists
// of reasons in the code. Nothing is labelled by an error's text.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpushare/dra-driver-gpushare/internal/version"
)

// New returns a registry with what each program shows: of the Go runtime, of the process,
// and which version it is.
func New(program string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		BuildInfo(program))
	return r
}

// BuildInfo is the metric that says which version of a program runs.
func BuildInfo(program string) prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: Namespace, Name: "build_info",
		Help:        "1, with the program and its version as labels.",
		ConstLabels: prometheus.Labels{"program": program, "version": version.String()},
	})
	info.Set(1)
	return info
}

// Handler answers scrapes with what is gathered. What cannot be gathered is left out.
func Handler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}
