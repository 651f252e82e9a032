// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// gauge counts how often it is set.
type gauge struct{ set int }

func (g *gauge) Set(float64) { g.set++ }

type nothing struct{}

func (nothing) Inc()            {}
func (nothing) Dec()            {}
func (nothing) Observe(float64) {}

// provider keeps how often a queue writes for how long keys have been worked on.
type provider struct{ unfinished gauge }

func (*provider) NewDepthMetric(string) workqueue.GaugeMetric            { return nothing{} }
func (*provider) NewAddsMetric(string) workqueue.CounterMetric           { return nothing{} }
func (*provider) NewLatencyMetric(string) workqueue.HistogramMetric      { return nothing{} }
func (*provider) NewWorkDurationMetric(string) workqueue.HistogramMetric { return nothing{} }
func (*provider) NewRetriesMetric(string) workqueue.CounterMetric        { return nothing{} }
func (p *provider) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return &p.unfinished
}

func (*provider) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return &gauge{}
}

// A queue at rest wakes the process for its metrics no more often than they are asked for.
func TestQueueAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p provider
		q := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: "q", MetricsProvider: &p, Clock: seldom{}})
		time.Sleep(time.Minute)
		synctest.Wait()
		q.ShutDown()
		synctest.Wait()
		if most := int(time.Minute / metricsInterval); p.unfinished.set > most || p.unfinished.set == 0 {
			t.Errorf("it wrote %d times in a minute, want 1 to %d", p.unfinished.set, most)
		}
		time.Sleep(metricsInterval) // its goroutine ends with the next tick
	})
}
