// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Controller counts what gpu-compat-controller does.
type Controller struct {
	templateLag, annotationLag prometheus.Histogram
	reconciles                 *prometheus.HistogramVec
	nominations, moves         *prometheus.CounterVec
	surplus                    byNode[int64]
	stranded                   byNode[float64]
}

// NewController registers what the controller counts. each goes through its loops, with what
// keeps one from its work.
func NewController(r prometheus.Registerer, each func(see func(loop string, err error))) *Controller {
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: Namespace, Name: name, Help: help,
			Buckets: Lags()})
	}
	c := &Controller{
		templateLag: histogram("template_lag_seconds", "From the creation of a legacy pod until its claim template was made "+
			"(docs/legacy.md)."),
		annotationLag: histogram("annotation_lag_seconds",
			"From the allocation of a legacy pod's claim until its annotations were written "+
				"(docs/migrate.md#tools-made-for-ack)."),
		reconciles: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: Namespace,
			Name: "controller_reconcile_duration_seconds", Help: "How long a part of the controller worked on one object.",
			Buckets: Durations()}, []string{"loop", "result"}),
		nominations: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: Namespace, Name: "nominations_total",
			Help: "Pods with GPUs that got a node: right, the nominated one; wrong, another; late, before one was nominated " +
				"(docs/packing.md)."}, []string{"outcome"}),
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: Namespace, Name: "moves_total",
			Help: "Pods that should be on other nodes: planned, told so; evicted (docs/packing.md#defragmentation)."},
			[]string{"outcome"}),
	}
	c.surplus.desc = Desc("pool_surplus_slices", "ResourceSlices beyond what the node's pool says, below 0 if some are "+
		"missing; absent if 0.", "node")
	c.stranded.desc = Desc("stranded_gpus",
		"Free GPUs that lack CPU or memory (docs/packing.md#results); absent if 0.", "node")
	r.MustRegister(c.templateLag, c.annotationLag, c.reconciles, c.nominations, c.moves, loops{each}, &c.surplus,
		&c.stranded)
	return c
}

// SetSurplus says how many slices there are, by node, beyond what pools say: it is asked at each scrape.
func (c *Controller) SetSurplus(surplus func() map[string]int64) { c.surplus.of.Store(&surplus) }

// SetStranded says how many GPUs are stranded, by node: it is asked at each scrape.
func (c *Controller) SetStranded(stranded func() map[string]float64) { c.stranded.of.Store(&stranded) }

// TemplateLag counts a template that a pod has waited for.
func (c *Controller) TemplateLag(lag time.Duration) {
	c.templateLag.Observe(lag.Seconds())
}

// AnnotationLag counts a pod that was annotated so long after its claim was allocated.
func (c *Controller) AnnotationLag(lag time.Duration) {
	c.annotationLag.Observe(lag.Seconds())
}

// Reconciled counts what a loop did.
func (c *Controller) Reconciled(loop string, took time.Duration, err error) {
	c.reconciles.WithLabelValues(loop, ResultOf(err != nil)).Observe(took.Seconds())
}

// Nominated counts a pod that got a node, by what came of its nomination.
func (c *Controller) Nominated(outcome string) {
	c.nominations.WithLabelValues(outcome).Inc()
}

// Moved counts a pod that should be on another node, by what became of that.
func (c *Controller) Moved(outcome string) {
	c.moves.WithLabelValues(outcome).Inc()
}

// loops shows which loops of the leader work.
type loops struct {
	each func(see func(loop string, err error))
}

var loopReady = Desc("controller_loop_ready",
	"1 if the part of the controller works, else 0: /readyz says why. Only the leader has it.", "loop")

// Describe implements prometheus.Collector.
func (loops) Describe(out chan<- *prometheus.Desc) { out <- loopReady }

// Collect implements prometheus.Collector.
func (l loops) Collect(out chan<- prometheus.Metric) {
	l.each(func(loop string, err error) {
		out <- prometheus.MustNewConstMetric(loopReady, prometheus.GaugeValue, Bool(err == nil), loop)
	})
}

// byNode shows a number of some nodes.
type byNode[N int64 | float64] struct {
	desc *prometheus.Desc
	of   atomic.Pointer[func() map[string]N]
}

// Describe implements prometheus.Collector.
func (b *byNode[N]) Describe(out chan<- *prometheus.Desc) { out <- b.desc }

// Collect implements prometheus.Collector.
func (b *byNode[N]) Collect(out chan<- prometheus.Metric) {
	of := b.of.Load()
	if of == nil {
		return
	}
	for node, n := range (*of)() {
		out <- prometheus.MustNewConstMetric(b.desc, prometheus.GaugeValue, float64(n), node)
	}
}
