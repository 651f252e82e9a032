// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const (
	// rounds is how many bursts there are of each kind, in turn.
	rounds = 3
	// burstLength is how long a burst should take: long enough to tell, and short
	// enough for many modes.
	burstLength         = 3 * time.Second
	fewPods, manyPods   = 20, 400
	podsOneAfterOther   = 20
	rateLimiterMetric   = "rest_client_rate_limiter_duration_seconds"
	lineSlices          = "ResourceSlices, devices per node"
	lineBytes           = "bytes per node, JSON / protobuf"
	linePublish         = "all nodes publish, s"
	lineBurst           = "burst, pods bound per second, median"
	lineBurstLatency    = "burst, create → bound, p50 / p90"
	lineSingleLatency   = "one pod after the other, create → bound, p50 / p90"
	lineSchedulerBurst  = "burst, processor time of the scheduler per pod"
	lineControllerBurst = "burst, processor time of the controller per pod"
)

// onCluster fills the lines that need a cluster, and returns what the reader has
// to know about it.
func (b *bench) onCluster(ctx context.Context, kubeconfig, scheduler, controllers string) ([]string, error) {
	c, err := nodes.Connect(kubeconfig, scheduler, controllers)
	if err != nil {
		return nil, err
	}
	if err := install(ctx, c.Client, b.classes, b.contestants); err != nil {
		return nil, err
	}
	if err := step("nodes", func() error { return c.Register(ctx, b.fleet.nodes) }); err != nil {
		return nil, err
	}
	// The UIDs of the nodes are known now.
	b.fleet.nodes = c.Nodes
	ctx, stop := context.WithCancel(ctx)
	var up sync.WaitGroup
	up.Go(func() { c.KeepUp(ctx) })
	defer up.Wait()
	defer stop()
	pods, err := newBinder(ctx, c.Client)
	if err != nil {
		return nil, err
	}
	before, err := limited(ctx, c)
	if err != nil {
		return nil, err
	}
	var plain series
	for _, k := range b.contestants {
		if err := step(string(k.mode), func() error { return b.contestantOn(ctx, c, pods, k, &plain) }); err != nil {
			return nil, err
		}
	}
	plain.write(&b.table, noClaim)
	after, err := limited(ctx, c)
	if err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("in all of the run the scheduler waited %.1f s for its own client's rate limit, the controller "+
			"manager %.1f s", after[0]-before[0], after[1]-before[1]),
	}, nil
}

// limited is how long the scheduler and the controller manager have waited for
// their own clients' rate limits, in seconds.
func limited(ctx context.Context, c *nodes.Cluster) (seconds [2]float64, err error) {
	for i, component := range []*nodes.Component{c.Scheduler, c.ControllerManager} {
		m, err := component.Metrics(ctx)
		if err != nil {
			return seconds, err
		}
		if m[rateLimiterMetric] == nil {
			return seconds, fmt.Errorf("the metrics of %s lack %s", component.URL, rateLimiterMetric)
		}
		seconds[i] = m.Sum(rateLimiterMetric, "", "")
	}
	return seconds, nil
}

// contestantOn measures one mode.
func (b *bench) contestantOn(ctx context.Context, c *nodes.Cluster, pods *binder, k contestant, plain *series) error {
	published, err := b.fleet.published(ctx, k)
	if err != nil {
		return err
	}
	if !k.scheduled {
		published = published[:1]
	}
	took, err := c.Publish(ctx, published)
	if err != nil {
		return err
	}
	if err := b.objects(ctx, c, k, published); err != nil || !k.scheduled {
		return err
	}
	b.table.set(linePublish, string(k.mode), fmt.Sprintf("%.1f", took.Seconds()))
	own := &series{}
	if err := b.bursts(ctx, c, pods, k, nil, own, plain); err != nil {
		return err
	}
	own.write(&b.table, string(k.mode))
	if b.controller == "" {
		return nil
	}
	controller, err := c.StartController(ctx, b.controller, b.kubeconfig, b.controller+".log", "--best-node")
	if err != nil {
		return err
	}
	defer controller.Stop()
	nominated := &series{}
	if err := b.bursts(ctx, c, pods, k, controller, nominated, plain); err != nil {
		return err
	}
	nominated.write(&b.table, k.withBestNode())
	return nil
}

func (b *bench) objects(ctx context.Context, c *nodes.Cluster, k contestant,
	published [][]*resourceapi.ResourceSlice) error {
	s, err := sizesOf(ctx, c.Client, *published[0][0].Spec.NodeName)
	if err != nil {
		return err
	}
	b.table.set(lineSlices, string(k.mode), fmt.Sprintf("%d, %d", s.slices, s.devices))
	b.table.set(lineBytes, string(k.mode), fmt.Sprintf("%d / %d", s.json, s.protobuf))
	return nil
}

// series is what came of all pods of one kind.
type series struct {
	perSecond       []float64
	burst, one      stats.Sample
	schedulerPerPod stats.Sample
	// controllerPerPod is empty without the controller.
	controllerPerPod stats.Sample
}

func (s *series) write(t *table, column string) {
	if len(s.perSecond) == 0 {
		return
	}
	perSecond := slices.Sorted(slices.Values(s.perSecond))
	t.set(lineBurst, column, fmt.Sprintf("%.0f", perSecond[(len(perSecond)-1)/2]))
	t.set(lineBurstLatency, column, s.burst.Summary(0.5, 0.9))
	t.set(lineSchedulerBurst, column, s.schedulerPerPod.Summary(0.5))
	if len(s.controllerPerPod) > 0 {
		t.set(lineControllerBurst, column, s.controllerPerPod.Summary(0.5))
	}
	t.set(lineSingleLatency, column, s.one.Summary(0.5, 0.9))
}

// bursts has bursts of pods with the contestant's claim and of pods without one,
// in turn, and then pods of both kinds one after the other. controller is the one that is there, nil for none.
func (b *bench) bursts(ctx context.Context, c *nodes.Cluster, pods *binder, k contestant, controller *nodes.Controller,
	own, plain *series) error {
	kinds := []struct {
		kind
		to    *series
		count int
	}{{kind{}, plain, 0}, {kind{template: k.template()}, own, 0}}
	// The first bursts warm all up and say how many pods make one of the right
	// length.
	for i, kind := range kinds {
		first, err := pods.burst(ctx, fewPods, kind.kind)
		if err != nil {
			return err
		}
		kinds[i].count = min(max(int(first.perSecond*burstLength.Seconds()), fewPods), manyPods)
	}
	if err := pods.clear(ctx); err != nil {
		return err
	}
	for round := range rounds {
		for _, kind := range kinds {
			stop := func() error { return nil }
			if b.profiles != "" && round == 0 && kind.template != "" {
				stop = c.Scheduler.StartProfile(ctx, filepath.Join(b.profiles, "scheduler-"+string(k.mode)+".pprof"), burstLength)
			}
			if err := measured(ctx, c, controller, pods, kind.count, kind.to, kind.kind); err != nil {
				return err
			}
			if err := stop(); err != nil {
				return err
			}
			if err := pods.clear(ctx); err != nil {
				return err
			}
		}
	}
	for _, kind := range kinds {
		one, err := pods.oneByOne(ctx, podsOneAfterOther, kind.kind)
		if err != nil {
			return err
		}
		kind.to.one = append(kind.to.one, one...)
	}
	return pods.clear(ctx)
}

// measured adds one burst to a series.
func measured(ctx context.Context, c *nodes.Cluster, controller *nodes.Controller, pods *binder, count int, to *series,
	kinds ...kind) error {
	components, perPod := []*nodes.Component{c.Scheduler}, []*stats.Sample{&to.schedulerPerPod}
	if controller != nil {
		components, perPod = append(components, controller.Component), append(perPod, &to.controllerPerPod)
	}
	before := make([]time.Duration, len(components))
	for i := range components {
		var err error
		if before[i], err = components[i].CPU(ctx); err != nil {
			return err
		}
	}
	result, err := pods.burst(ctx, count, kinds...)
	if err != nil {
		return err
	}
	for i := range components {
		after, err := components[i].CPU(ctx)
		if err != nil {
			return err
		}
		*perPod[i] = append(*perPod[i], (after-before[i])/time.Duration(count))
	}
	to.perSecond = append(to.perSecond, result.perSecond)
	to.burst = append(to.burst, result.latency...)
	return nil
}
