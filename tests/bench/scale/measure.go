// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/nodes"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/report"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	// rounds is how many bursts there are of each kind, in turn.
	rounds = 3
	// burstLength is how long a burst should take: long enough to tell, and short
	// enough for many modes.
	burstLength       = 3 * time.Second
	fewPods, manyPods = 20, 400
	podsOneAfterOther = 20
)

// measure fills the table.
func (b *bench) measure(ctx context.Context) error {
	plain := &series{}
	for _, m := range b.modes {
		start := time.Now()
		if err := b.measureMode(ctx, m, plain); err != nil {
			return fmt.Errorf("measure mode %s: %w", m, err)
		}
		fmt.Fprintf(os.Stderr, "scale: measured: %s, in %.0f s\n", m, time.Since(start).Seconds())
	}
	plain.write(&b.table, columnNoClaim)
	return nil
}

func (b *bench) measureMode(ctx context.Context, m mode.Mode, plain *series) error {
	published := make([][]*resourceapi.ResourceSlice, len(b.Nodes))
	for i, node := range b.Nodes {
		var err error
		if published[i], err = nodes.Slices(node, b.machines[i], m); err != nil {
			return err
		}
	}
	took, err := b.Publish(ctx, published)
	if err != nil {
		return err
	}
	b.table.Set("all nodes publish, s", string(m), fmt.Sprintf("%.1f", took.Seconds()))
	own := &series{template: string(m)}
	if err := b.measurePods(ctx, own, plain); err != nil {
		return err
	}
	own.write(&b.table, string(m))
	if b.controller == "" {
		return nil
	}
	stop, err := b.StartController(ctx, b.controller, "--best-node")
	if err != nil {
		return err
	}
	defer stop()
	for _, column := range []string{bestNode, bestNodeGate} {
		nominated := &series{template: string(m), gated: column == bestNodeGate}
		if err := b.measurePods(ctx, nominated, plain); err != nil {
			return err
		}
		nominated.write(&b.table, string(m)+column)
	}
	return nil
}

// series has the results of all pods of one kind: with a claim of the template, or without one if that is empty, and at
// the gate of the option best-node-gate.
type series struct {
	template   string
	gated      bool
	perSecond  []float64
	burst, one report.Sample
	// scheduler and controller are the processor times of these programs per pod.
	scheduler, controller report.Sample
}

func (s *series) write(t *report.Table, column string) {
	perSecond := slices.Sorted(slices.Values(s.perSecond))
	t.Set("burst, pods bound per second, median", column, fmt.Sprintf("%.0f", perSecond[(len(perSecond)-1)/2]))
	t.Set("burst, create → bound, p50 / p90", column, s.burst.Summary(0.5, 0.9))
	t.Set("burst, processor time of the scheduler per pod", column, s.scheduler.Summary(0.5))
	t.Set("burst, processor time of the controller per pod", column, s.controller.Summary(0.5))
	t.Set("one pod after the other, create → bound, p50 / p90", column, s.one.Summary(0.5, 0.9))
}

// measurePods makes bursts of pods of several kinds, in turn, and then pods of each kind one after the other.
func (b *bench) measurePods(ctx context.Context, own, plain *series) error {
	kinds := []*series{plain, own}
	counts := make([]int, len(kinds))
	// The first bursts warm all up, and the last of them shows how many pods make one of the right length.
	for i, kind := range kinds {
		perSecond, err := warmUp(b.SchedulerMemory, func() (float64, error) {
			perSecond, _, err := b.burst(ctx, fewPods, kind)
			return perSecond, err
		})
		if err != nil {
			return err
		}
		counts[i] = min(max(int(perSecond*burstLength.Seconds()), fewPods), manyPods)
	}
	if err := b.Pods.Clear(ctx); err != nil {
		return err
	}
	for range rounds {
		for i, kind := range kinds {
			if err := b.measureBurst(ctx, counts[i], kind); err != nil {
				return err
			}
			if err := b.Pods.Clear(ctx); err != nil {
				return err
			}
		}
	}
	for _, kind := range kinds {
		for range podsOneAfterOther {
			_, took, err := b.burst(ctx, 1, kind)
			if err != nil {
				return err
			}
			kind.one = append(kind.one, took...)
		}
	}
	if err := b.Pods.Clear(ctx); err != nil {
		return err
	}
	return b.AllUp(ctx)
}

// warmUp repeats a burst until the scheduler's memory has stopped growing, and returns what the last one returned. Go
// uses memory that the process never touched for as long as there is no garbage to collect: each pod costs page faults
// until then, which is a fifth of the time in mode dynamic.
func warmUp(memory func() (float64, error), burst func() (float64, error)) (perSecond float64, err error) {
	const steady = 1.02
	before, err := memory()
	if err != nil {
		return 0, err
	}
	for {
		if perSecond, err = burst(); err != nil {
			return 0, err
		}
		after, err := memory()
		if err != nil || after < steady*before {
			return perSecond, err
		}
		before = after
	}
}

// measureBurst adds one burst to a series.
func (b *bench) measureBurst(ctx context.Context, count int, to *series) error {
	before, err := b.CPU()
	if err != nil {
		return err
	}
	perSecond, took, err := b.burst(ctx, count, to)
	if err != nil {
		return err
	}
	after, err := b.CPU()
	if err != nil {
		return err
	}
	for i, into := range []*report.Sample{&to.scheduler, &to.controller}[:len(after)] {
		*into = append(*into, (after[i]-before[i])/time.Duration(count))
	}
	to.perSecond, to.burst = append(to.perSecond, perSecond), append(to.burst, took...)
	return nil
}

// burst makes that many pods as fast as the API server takes them, and returns how many were bound a second, and how
// long each waited.
func (b *bench) burst(ctx context.Context, count int, of *series) (perSecond float64, took report.Sample, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, pods.Settled, errors.New("it takes too long: see the scheduler's log"))
	defer cancel()
	took, ends := make(report.Sample, count), make([]time.Time, count)
	start := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for i := range count {
		b.made++
		object := pods.Anywhere(fmt.Sprintf("pod-%d", b.made))
		if of.template != "" {
			harness.FromTemplate(of.template)(object)
		}
		if of.gated {
			object.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.GateBestNode}}
		}
		group.Go(func() error {
			pod, err := b.Pods.Create(ctx, object)
			if err != nil {
				return err
			}
			took[i], err = pod.Took(ctx, pods.Scheduled)
			ends[i] = pod.Created.Add(took[i])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, nil, err
	}
	last := slices.MaxFunc(ends, time.Time.Compare)
	return float64(count) / last.Sub(start).Seconds(), took, nil
}
