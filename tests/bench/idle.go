// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const (
	// settling is how long a driver is left alone before its memory is read.
	settling = 5 * time.Second
	// writing is how long it takes until the status of all claims is written, five a second,
	// after which a driver has nothing to do.
	writing    = claimCount * time.Second / 5
	idleWindow = 60 * time.Second
)

// usage is what one driver takes of the machine.
type usage struct {
	// fresh and loaded are its resident memory, in bytes, without and with all
	// claims prepared.
	fresh, loaded int64
	// core is the share of a core that it takes with all claims prepared and
	// nothing to do.
	core float64
}

// measureIdle has both drivers do nothing, at the same time.
func measureIdle(ctx context.Context, b *bench) ([]stats.Row, error) {
	gpushare, trivial, stop, err := b.serveAll(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	both := []*served{gpushare, trivial}
	usages := make([]usage, len(both))
	if err := rest(ctx, settling); err != nil {
		return nil, err
	}
	for i, s := range both {
		if usages[i].fresh, err = s.process.RSS(); err != nil {
			return nil, err
		}
	}
	for _, s := range both {
		for _, claim := range s.claims {
			if _, err := s.socket.Prepare(ctx, claim); err != nil {
				return nil, fmt.Errorf("%w: see %s", err, s.Log())
			}
		}
	}
	if err := rest(ctx, writing+settling); err != nil {
		return nil, err
	}
	if err := idle(ctx, both, usages); err != nil {
		return nil, err
	}
	return idleRows(usages[0], usages[1]), nil
}

func idle(ctx context.Context, both []*served, usages []usage) error {
	before := make([]time.Duration, len(both))
	start := time.Now()
	var err error
	for i, s := range both {
		if before[i], err = s.process.CPU(); err != nil {
			return err
		}
	}
	if err := rest(ctx, idleWindow); err != nil {
		return err
	}
	for i, s := range both {
		after, err := s.process.CPU()
		if err != nil {
			return err
		}
		usages[i].core = float64(after-before[i]) / float64(time.Since(start))
		if usages[i].loaded, err = s.process.RSS(); err != nil {
			return err
		}
	}
	return nil
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func idleRows(ours, floor usage) []stats.Row {
	memory := func(measure string, ours, floor int64, target string) stats.Row {
		mib := func(b int64) string { return fmt.Sprintf("%.1f MiB", float64(b)/(1<<20)) }
		return stats.Row{Measure: measure, Product: mib(ours), Trivial: mib(floor),
			Ratio: stats.Ratio(float64(ours), float64(floor)), Target: target}
	}
	return []stats.Row{
		memory(fmt.Sprintf("resident memory, %d GPUs, no claims", cards), ours.fresh, floor.fresh, "≤ 50 MiB"),
		memory(fmt.Sprintf("resident memory, %d prepared claims", claimCount), ours.loaded, floor.loaded, "≤ 45 MiB"),
		{
			Measure: fmt.Sprintf("CPU at rest, %d prepared claims, %.0f s", claimCount, idleWindow.Seconds()),
			Product: fmt.Sprintf("%.3f %% of a core", 100*ours.core), Trivial: fmt.Sprintf("%.3f %%", 100*floor.core),
			Ratio: stats.Ratio(ours.core, floor.core), Target: "≤ 0.1 %",
		},
	}
}
