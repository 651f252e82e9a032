// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const (
	podRounds  = 30
	podTimeout = 2 * time.Minute
)

// podKind is a pod that is the same as others but for its claim.
type podKind struct {
	name, template              string
	scheduled, started, running stats.Sample
}

// measurePods runs a pod at a time, in turn without a claim and with one of
// each driver.
func measurePods(ctx context.Context, b *bench) ([]stats.Row, error) {
	plain, ours, floor := &podKind{name: "plain"}, &podKind{name: "gpushare", template: gpushareTemplate},
		&podKind{name: "trivial", template: trivialTemplate}
	kinds := []*podKind{plain, ours, floor}
	nvidia := &podKind{name: "nvidia", template: nvidiaTemplate}
	if b.nvidia != nil {
		kinds = append(kinds, nvidia)
	}
	// The first pods find everything cold.
	for _, k := range kinds {
		if err := b.onePod(ctx, "warm-"+k.name, &podKind{template: k.template}); err != nil {
			return nil, err
		}
	}
	for round := range podRounds {
		for i := range kinds {
			// Each kind comes first as often as the others.
			k := kinds[(round+i)%len(kinds)]
			if err := b.onePod(ctx, fmt.Sprintf("%s-%d", k.name, round), k); err != nil {
				return nil, err
			}
		}
	}
	row := func(measure string, of func(*podKind) stats.Sample) stats.Row {
		return stats.Row{
			Measure: measure + ", p50 / p90 / max", Product: of(ours).Summary(0.5, 0.9, 1),
			Trivial: of(floor).Summary(0.5, 0.9, 1),
			Base:    of(plain).Summary(0.5, 0.9, 1),
			NVIDIA:  b.ofNVIDIA(of(nvidia).Summary(0.5, 0.9, 1)),
			Ratio:   ratios(of(ours), of(floor), 0.5),
		}
	}
	cost := func(of func(*podKind) stats.Sample, target string) stats.Row {
		added := func(k *podKind) time.Duration { return of(k).Minus(of(plain)).Quantile(0.5) }
		return stats.Row{
			Measure: fmt.Sprintf("– what the claim adds, median of %d pairs", podRounds), Product: signed(added(ours)),
			Trivial: signed(added(floor)),
			NVIDIA:  b.ofNVIDIA(signed(added(nvidia))),
			Ratio:   signed(added(ours) - added(floor)), Target: target,
		}
	}
	scheduled := func(k *podKind) stats.Sample { return k.scheduled }
	started := func(k *podKind) stats.Sample { return k.started }
	running := func(k *podKind) stats.Sample { return k.running }
	return []stats.Row{
		row("pod with one claim, create → scheduled", scheduled),
		cost(scheduled, ""),
		row("pod with one claim, create → container started", started),
		cost(started, "≤ 0.6 × NVIDIA's"),
		row("pod with one claim, create → Running", running),
		cost(running, "≤ 0.6 × NVIDIA's"),
	}, nil
}

// ofNVIDIA is a cell of NVIDIA's column: empty where its driver is not measured.
func (b *bench) ofNVIDIA(cell string) string {
	if b.nvidia == nil {
		return ""
	}
	return cell
}

// signed writes a difference.
func signed(d time.Duration) string {
	return fmt.Sprintf("%+.1f ms", float64(d)/float64(time.Millisecond))
}

func (b *bench) onePod(ctx context.Context, name string, k *podKind) error {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	pod, err := b.pods.Create(ctx, name, k.template)
	if err != nil {
		return err
	}
	scheduled, err := pod.Scheduled(ctx)
	if err != nil {
		return err
	}
	started, err := pod.Started(ctx)
	if err != nil {
		return err
	}
	running, err := pod.Running(ctx)
	if err != nil {
		return err
	}
	k.scheduled, k.started, k.running = append(k.scheduled, scheduled), append(k.started, started),
		append(k.running, running)
	return b.pods.Delete(ctx, pod)
}
