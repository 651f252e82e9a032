// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// Namespace is what the names of the driver's metrics begin with.
const Namespace = "gpushare"

// Durations returns buckets, in seconds, of what takes a millisecond where nothing is waited for,
// and up to the 45 s of the kubelet where something is.
func Durations() []float64 {
	return []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 45}
}

// Lags returns buckets, in seconds, of what should take less than some seconds.
func Lags() []float64 { return []float64{.05, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60, 120, 300} }

// Desc describes a metric by its name without Namespace.
func Desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(Namespace, "", name), help, labels, nil)
}

// Bool is the value of a metric that is true or not.
func Bool(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// ResultOf is the value of the label result.
func ResultOf(failed bool) string {
	if failed {
		return "error"
	}
	return "success"
}
