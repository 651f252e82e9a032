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

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const (
	// rounds is how many bursts there are of each kind, in turn.
	rounds = 3
	// burstLength is how long a burst should take: long enough to tell, and short
	// enough for many modes.
	burstLength          = 3 * time.Second
	fewPods, manyPods    = 20, 400
	podsOneAfterOther    = 20
	modelLabel           = "aliyun.accelerator/nvidia_name"
	rateLimiterMetric    = "rest_client_rate_limiter_duration_seconds"
	lineSlices           = "ResourceSlices, devices per node"
	lineBytes            = "bytes per node, JSON / protobuf"
	linePublish          = "all nodes publish, s"
	lineRepublish        = "one node publishes in another order: requests, bytes of them"
	lineRequeuedLabelled = "– the same, pods with a nodeSelector for the GPU model"
	lineBurst            = "burst, pods bound per second, median"
	lineBurstLatency     = "burst, create → bound, p50 / p90"
	lineSingleLatency    = "one pod after the other, create → bound, p50 / p90"
	lineSchedulerBurst   = "burst, processor time of the scheduler per pod"
)

// onCluster fills the lines that need a cluster, and returns what the reader has
// to know about it.
func (b *bench) onCluster(ctx context.Context, kubeconfig, scheduler, controllers string) ([]string, error) {
	c, err := connect(kubeconfig, scheduler, controllers)
	if err != nil {
		return nil, err
	}
	if err := c.make(ctx, b.classes, b.contestants); err != nil {
		return nil, err
	}
	if err := step("nodes", func() error { return c.register(ctx, b.fleet.nodes) }); err != nil {
		return nil, err
	}
	// The UIDs of the nodes are known now.
	b.fleet.nodes = c.nodes
	ctx, stop := context.WithCancel(ctx)
	var up sync.WaitGroup
	up.Go(func() { c.keepUp(ctx) })
	defer up.Wait()
	defer stop()
	pods, err := newBinder(ctx, c.client)
	if err != nil {
		return nil, err
	}
	before, err := c.limited(ctx)
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
	after, err := c.limited(ctx)
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
func (c *cluster) limited(ctx context.Context) (seconds [2]float64, err error) {
	for i, component := range []*component{c.scheduler, c.controllers} {
		m, err := component.metrics(ctx)
		if err != nil {
			return seconds, err
		}
		if m[rateLimiterMetric] == nil {
			return seconds, fmt.Errorf("the metrics of %s lack %s", component.url, rateLimiterMetric)
		}
		seconds[i] = m.sum(rateLimiterMetric, "", "")
	}
	return seconds, nil
}

// contestantOn measures one mode.
func (b *bench) contestantOn(ctx context.Context, c *cluster, pods *binder, k contestant, plain *series) error {
	published, err := b.fleet.published(ctx, k)
	if err != nil {
		return err
	}
	if !k.scheduled {
		published = published[:1]
	}
	took, err := c.publish(ctx, published)
	if err != nil {
		return err
	}
	if err := b.objects(ctx, c, k, published); err != nil || !k.scheduled {
		return err
	}
	b.table.set(linePublish, string(k.mode), fmt.Sprintf("%.1f", took.Seconds()))
	if err := b.republications(ctx, c, pods, k); err != nil {
		return err
	}
	own := &series{}
	if err := b.bursts(ctx, c, pods, k, own, plain); err != nil {
		return err
	}
	own.write(&b.table, string(k.mode))
	return nil
}

// republications fills the lines about a node that publishes its GPUs anew.
func (b *bench) republications(ctx context.Context, c *cluster, pods *binder, k contestant) error {
	if k.mode == mode.Topology {
		return nil // The order of its devices is that of the links.
	}
	machines, err := b.fleet.machines(ctx, k.machine)
	if err != nil {
		return err
	}
	var reversed []int
	for _, g := range slices.Backward(machines[0].GPUs) {
		reversed = append(reversed, g.Index)
	}
	again, err := b.republish(ctx, c, pods, k, reversed, nil)
	if err != nil {
		return err
	}
	labelled, err := b.republish(ctx, c, pods, k, nil, map[string]string{modelLabel: "none"})
	if err != nil {
		return err
	}
	cell := func(r republication) string { return fmt.Sprintf("%d; %.1f s", r.requeued, r.busy.Seconds()) }
	b.table.set(lineRepublish, string(k.mode), fmt.Sprintf("%d, %d", again.requests, again.bytes))
	b.table.set(fmt.Sprintf("– pods looked at again, of %d that wait for a model that no node has; processor time of "+
		"the scheduler", waiting), string(k.mode), cell(again))
	b.table.set(lineRequeuedLabelled, string(k.mode), cell(labelled))
	return nil
}

func (b *bench) objects(ctx context.Context, c *cluster, k contestant, published [][]*resourceapi.ResourceSlice) error {
	s, err := c.sizes(ctx, *published[0][0].Spec.NodeName)
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
}

func (s *series) write(t *table, column string) {
	if len(s.perSecond) == 0 {
		return
	}
	perSecond := slices.Sorted(slices.Values(s.perSecond))
	t.set(lineBurst, column, fmt.Sprintf("%.0f", perSecond[(len(perSecond)-1)/2]))
	t.set(lineBurstLatency, column, s.burst.Summary(0.5, 0.9))
	t.set(lineSchedulerBurst, column, s.schedulerPerPod.Summary(0.5))
	t.set(lineSingleLatency, column, s.one.Summary(0.5, 0.9))
}

// bursts has bursts of pods with the contestant's claim and of pods without one,
// in turn, and then pods of both kinds one after the other.
func (b *bench) bursts(ctx context.Context, c *cluster, pods *binder, k contestant, own, plain *series) error {
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
				stop = c.scheduler.startProfile(ctx, filepath.Join(b.profiles, "scheduler-"+string(k.mode)+".pprof"), burstLength)
			}
			if err := c.measured(ctx, pods, kind.count, kind.to, kind.kind); err != nil {
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
func (c *cluster) measured(ctx context.Context, pods *binder, count int, to *series, kinds ...kind) error {
	before, err := c.scheduler.cpu(ctx)
	if err != nil {
		return err
	}
	result, err := pods.burst(ctx, count, kinds...)
	if err != nil {
		return err
	}
	after, err := c.scheduler.cpu(ctx)
	if err != nil {
		return err
	}
	to.perSecond = append(to.perSecond, result.perSecond)
	to.burst = append(to.burst, result.latency...)
	to.schedulerPerPod = append(to.schedulerPerPod, (after-before)/time.Duration(count))
	return nil
}
