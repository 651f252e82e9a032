// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/driver"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/process"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/report"
)

const (
	// rounds is how many times all claims go through each step.
	rounds = 3
	// pace is the pause between two paced calls: long enough that nothing of
	// one call is left to do in the next.
	pace = 10 * time.Millisecond
)

// step is one call to a driver, with the sample for its times.
type step struct {
	measure, target string
	call            func(*driver.Socket, context.Context, *drapb.Claim) (time.Duration, error)
	into            func(*contender) *report.Sample
}

// measureSocket asks all drivers the same in turn, claim by claim, at the
// sockets the kubelet would use.
func (b *bench) measureSocket(ctx context.Context) error {
	stop, err := b.serveAll(ctx)
	defer stop()
	if err != nil {
		return err
	}
	steps := []step{
		{"NodePrepareResources, paced", "trivial + 1 ms p50, + 2 ms p99", (*driver.Socket).Prepare,
			func(c *contender) *report.Sample { return &c.prepare }},
		{"NodePrepareResources again", "≤ trivial p50", (*driver.Socket).Prepare,
			func(c *contender) *report.Sample { return &c.again }},
		{"NodeUnprepareResources", "≤ 1.6 ms p50, 4 ms p99", (*driver.Socket).Unprepare,
			func(c *contender) *report.Sample { return &c.unprepare }},
	}
	for range rounds {
		for _, s := range steps {
			for i := range manyClaims {
				for _, c := range b.contenders {
					if err := c.paced(ctx, s, i); err != nil {
						return err
					}
				}
			}
		}
		for _, c := range b.contenders {
			if err := c.backToBack(ctx); err != nil {
				return err
			}
		}
	}
	steps = append(steps, step{fmt.Sprintf("NodePrepareResources, %d back to back (NVIDIA's: %d)", manyClaims, gpus),
		"as paced", nil, func(c *contender) *report.Sample { return &c.burst }})
	for _, s := range steps {
		b.row(s.measure+", p50 / p90 / p99", s.target, []float64{0.5, 0.9, 0.99}, []float64{0.5, 0.99},
			func(c *contender) report.Sample { return *s.into(c) })
	}
	return nil
}

// paced makes one paced call, for a claim that the driver has.
func (c *contender) paced(ctx context.Context, of step, i int) error {
	if i >= len(c.claims) {
		return nil
	}
	if err := process.LeaveAlone(ctx, pace); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	took, err := of.call(c.socket, ctx, c.claims[i])
	if err != nil {
		return fmt.Errorf("%w: see %s", err, c.Log())
	}
	into := of.into(c)
	*into = append(*into, took)
	return nil
}

// backToBack prepares all claims, each as soon as the one before is answered.
func (c *contender) backToBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTimeout)
	defer cancel()
	for _, claim := range c.claims {
		took, err := c.socket.Prepare(ctx, claim)
		if err != nil {
			return fmt.Errorf("%w: see %s", err, c.Log())
		}
		c.burst = append(c.burst, took)
	}
	for _, claim := range c.claims {
		if _, err := c.socket.Unprepare(ctx, claim); err != nil {
			return fmt.Errorf("%w: see %s", err, c.Log())
		}
	}
	return nil
}
