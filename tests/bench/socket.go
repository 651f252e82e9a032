// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/driver"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const (
	// rounds is how many times all claims go through each step.
	rounds = 3
	// pace is the pause between two paced calls: long enough that nothing of
	// one call is left to do in the next.
	pace = 10 * time.Millisecond
)

// step is one call to a driver.
type step func(s *driver.Socket, ctx context.Context, claim *drapb.Claim) (time.Duration, error)

// steps are what is measured of one contender.
type steps struct{ first, again, back, burst stats.Sample }

// measureSocket asks all drivers the same in turn, claim by claim, at the
// sockets the kubelet would use.
func measureSocket(ctx context.Context, b *bench) ([]stats.Row, error) {
	drivers, stop, err := b.serveAll(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	measured := make([]steps, len(drivers))
	var writes stats.Sample
	twoWrites := func() error {
		took, err := b.twoWrites()
		writes = append(writes, took)
		return err
	}
	alternate := func(call step, into func(*steps) *stats.Sample, also func() error) error {
		for i := range claimCount {
			for n, s := range drivers {
				if i >= len(s.claims) {
					continue
				}
				if err := one(ctx, s, call, i, into(&measured[n])); err != nil {
					return err
				}
			}
			if err := also(); err != nil {
				return err
			}
		}
		return nil
	}
	nothing := func() error { return nil }
	for range rounds {
		for _, s := range []struct {
			call step
			into func(*steps) *stats.Sample
			also func() error
		}{
			{(*driver.Socket).Prepare, func(m *steps) *stats.Sample { return &m.first }, twoWrites},
			{(*driver.Socket).Prepare, func(m *steps) *stats.Sample { return &m.again }, nothing},
			{(*driver.Socket).Unprepare, func(m *steps) *stats.Sample { return &m.back }, nothing},
		} {
			if err := alternate(s.call, s.into, s.also); err != nil {
				return nil, err
			}
		}
		for n, s := range drivers {
			if err := backToBack(ctx, s, &measured[n].burst); err != nil {
				return nil, err
			}
		}
	}
	return socketRows(measured, writes), nil
}

// one makes one paced call.
func one(ctx context.Context, s *served, call step, i int, into *stats.Sample) error {
	select {
	case <-time.After(pace):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	took, err := call(s.socket, ctx, s.claims[i])
	if err != nil {
		return fmt.Errorf("%w: see %s", err, s.Log())
	}
	*into = append(*into, took)
	return nil
}

// backToBack prepares all claims, each as soon as the one before is answered.
func backToBack(ctx context.Context, s *served, into *stats.Sample) error {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTimeout)
	defer cancel()
	for _, claim := range s.claims {
		took, err := s.socket.Prepare(ctx, claim)
		if err != nil {
			return fmt.Errorf("%w: see %s", err, s.Log())
		}
		*into = append(*into, took)
	}
	for _, claim := range s.claims {
		if _, err := s.socket.Unprepare(ctx, claim); err != nil {
			return fmt.Errorf("%w: see %s", err, s.Log())
		}
	}
	return nil
}

// twoWrites writes two files of a record's size to the disk, in the way that
// records are written.
func (b *bench) twoWrites() (time.Duration, error) {
	content := bytes.Repeat([]byte{'x'}, 700)
	start := time.Now()
	for range 2 {
		if err := atomicfile.Write(filepath.Join(b.dir, "write"), content, 0o600, true); err != nil {
			return 0, fmt.Errorf("write a file: %w", err)
		}
	}
	return time.Since(start), nil
}

func socketRows(measured []steps, writes stats.Sample) []stats.Row {
	row := func(measure string, of func(steps) stats.Sample, target string) stats.Row {
		ours, floor := of(measured[0]), of(measured[1])
		r := stats.Row{
			Measure: measure + ", p50 / p90 / p99", Product: ours.Summary(0.5, 0.9, 0.99),
			Trivial: floor.Summary(0.5, 0.9, 0.99),
			Ratio:   ratios(ours, floor, 0.5, 0.99), Target: target,
		}
		if len(measured) > 2 {
			r.NVIDIA = of(measured[2]).Summary(0.5, 0.9, 0.99)
		}
		return r
	}
	first := row("NodePrepareResources, paced", func(m steps) stats.Sample { return m.first },
		"trivial + 1 ms p50, + 2 ms p99")
	first.Base = writes.Summary(0.5, 0.9, 0.99) + " (two fsynced writes)"
	return []stats.Row{
		first,
		row(fmt.Sprintf("NodePrepareResources, %d back to back (NVIDIA's: %d)", claimCount, newGPUs),
			func(m steps) stats.Sample { return m.burst }, "as paced"),
		row("NodePrepareResources again", func(m steps) stats.Sample { return m.again }, "≤ trivial p50"),
		row("NodeUnprepareResources", func(m steps) stats.Sample { return m.back }, "≤ 1.6 ms p50, 4 ms p99"),
	}
}

// ratios writes the ratio and the difference of two quantiles.
func ratios(ours, floor stats.Sample, quantiles ...float64) string {
	var out string
	for i, q := range quantiles {
		if i > 0 {
			out += "; "
		}
		a, b := ours.Quantile(q), floor.Quantile(q)
		out += fmt.Sprintf("%s (%s) p%.0f", stats.Ratio(float64(a), float64(b)), signed(a-b), q*100)
	}
	return out
}
