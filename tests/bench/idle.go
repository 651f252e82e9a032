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

// measureIdle has all drivers do nothing, at the same time.
func measureIdle(ctx context.Context, b *bench) ([]stats.Row, error) {
	drivers, stop, err := b.serveAll(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	usages := make([]usage, len(drivers))
	if err := rest(ctx, settling); err != nil {
		return nil, err
	}
	for i, s := range drivers {
		if usages[i].fresh, err = s.process.RSS(); err != nil {
			return nil, err
		}
	}
	for _, s := range drivers {
		for _, claim := range s.claims {
			if _, err := s.socket.Prepare(ctx, claim); err != nil {
				return nil, fmt.Errorf("%w: see %s", err, s.Log())
			}
		}
	}
	if err := rest(ctx, writing+settling); err != nil {
		return nil, err
	}
	if err := idle(ctx, drivers, usages); err != nil {
		return nil, err
	}
	return idleRows(usages), nil
}

func idle(ctx context.Context, drivers []*served, usages []usage) error {
	before := make([]time.Duration, len(drivers))
	start := time.Now()
	var err error
	for i, s := range drivers {
		if before[i], err = s.process.CPU(); err != nil {
			return err
		}
	}
	if err := rest(ctx, idleWindow); err != nil {
		return err
	}
	for i, s := range drivers {
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

func idleRows(usages []usage) []stats.Row {
	row := func(measure string, of func(usage) (cell string, value float64), target string) stats.Row {
		ours, value := of(usages[0])
		floor, least := of(usages[1])
		r := stats.Row{Measure: measure, Product: ours, Trivial: floor, Ratio: stats.Ratio(value, least), Target: target}
		if len(usages) > 2 {
			r.NVIDIA, _ = of(usages[2])
		}
		return r
	}
	mib := func(b int64) (string, float64) { return fmt.Sprintf("%.1f MiB", float64(b)/(1<<20)), float64(b) }
	claims := fmt.Sprintf("%d prepared claims (NVIDIA's: %d)", claimCount, newGPUs)
	return []stats.Row{
		row(fmt.Sprintf("resident memory, %d GPUs, no claims", newGPUs),
			func(u usage) (string, float64) { return mib(u.fresh) }, "≤ 45 MiB"),
		row("resident memory, "+claims, func(u usage) (string, float64) { return mib(u.loaded) }, "≤ 45 MiB"),
		row(fmt.Sprintf("processor time, %s, over %.0f s", claims, idleWindow.Seconds()),
			func(u usage) (string, float64) { return perMinute(u.core), u.core }, "≤ 0.15 s a minute"),
	}
}

// perMinute writes a share of a core.
func perMinute(core float64) string { return fmt.Sprintf("%.3f s a minute", 60*core) }
