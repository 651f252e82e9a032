// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/report"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	podRounds  = 30
	podTimeout = 2 * time.Minute
)

// podTimes are how long pods took from their creation to each of some moments.
type podTimes map[pods.Moment]report.Sample

// measurePods runs a pod at a time, in turn without a claim and with one of
// each driver.
func (b *bench) measurePods(ctx context.Context) error {
	plain := podTimes{}
	kinds := map[string]podTimes{"": plain}
	templates := []string{""}
	for _, c := range b.contenders {
		c.pods = podTimes{}
		if c.installed != "" {
			kinds[c.name], templates = c.pods, append(templates, c.name)
		}
	}
	// The first pods find everything cold.
	for i, template := range templates {
		if err := b.onePod(ctx, fmt.Sprintf("warm-%d", i), template, podTimes{}); err != nil {
			return err
		}
	}
	for round := range podRounds {
		for i := range templates {
			// Each kind comes first as often as the others.
			template := templates[(round+i)%len(templates)]
			if err := b.onePod(ctx, fmt.Sprintf("pod-%d-%d", round, i), template, kinds[template]); err != nil {
				return err
			}
		}
	}
	for _, of := range []struct {
		moment       pods.Moment
		name, target string
	}{
		{pods.Scheduled, "scheduled", ""},
		{pods.Started, "container started", "≤ 0.6 × NVIDIA's"},
		{pods.Running, "Running", "≤ 0.6 × NVIDIA's"},
	} {
		measure := fmt.Sprintf("pod with one claim, create → %s, p50 / p90 / max", of.name)
		b.row(measure, "", []float64{0.5, 0.9, 1}, []float64{0.5},
			func(c *contender) report.Sample { return c.pods[of.moment] })
		b.table.Set(measure, columnBase, plain[of.moment].Summary(0.5, 0.9, 1))
		added := func(c *contender) time.Duration { return c.pods[of.moment].Minus(plain[of.moment]).Quantile(0.5) }
		measure = fmt.Sprintf("– until %s: what the claim adds, median of %d pairs", of.name, podRounds)
		for _, c := range b.contenders {
			if c.installed != "" {
				b.table.Set(measure, c.column, signed(added(c)))
			}
		}
		b.table.Set(measure, columnRatio, signed(added(b.contenders[0])-added(b.contenders[1])))
		b.table.Set(measure, columnTarget, of.target)
	}
	return nil
}

// onePod runs a pod with a claim of a template, or without one.
func (b *bench) onePod(ctx context.Context, name, template string, times podTimes) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	object := harness.Pod(name, b.node)
	if template != "" {
		harness.FromTemplate(template)(object)
	}
	pod, err := b.Pods.Create(ctx, object)
	if err != nil {
		return err
	}
	for _, moment := range []pods.Moment{pods.Scheduled, pods.Started, pods.Running} {
		took, err := pod.Took(ctx, moment)
		if err != nil {
			return err
		}
		times[moment] = append(times[moment], took)
	}
	return b.Pods.Delete(ctx, pod)
}
