// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const kills = 60

// killing is how one driver came through being killed.
type killing struct {
	// restarts are the times from a new process' start to the claim prepared.
	restarts stats.Sample
	// inside counts the kills that came before the answer.
	inside int
	// left are the files that should not be there.
	left map[string]bool
}

// measureKills kills each driver at random times after it was asked to prepare
// a claim, and starts it again.
func measureKills(ctx context.Context, b *bench) ([]stats.Row, error) {
	var results []*killing
	for _, c := range b.contenders() {
		k, err := c.endure(ctx)
		if err != nil {
			return nil, err
		}
		results = append(results, k)
	}
	restarts := func(k *killing) string { return k.restarts.Summary(0.5, 0.9, 1) }
	left := func(k *killing) string { return fmt.Sprintf("%d (%d)", len(k.left), k.inside) }
	ours, floor := results[0], results[1]
	rows := []stats.Row{
		{
			Measure: fmt.Sprintf("SIGKILL during NodePrepareResources, %d pods on the node; process start → prepared, "+
				"p50 / p90 / max", podsOnNode), Product: restarts(ours), Trivial: restarts(floor),
			Ratio: ratios(ours.restarts, floor.restarts, 0.5), Target: "≤ 60 ms p50, ≤ 100 ms max",
		},
		{
			Measure: fmt.Sprintf("files left behind by %d kills (kills before the answer)", kills),
			Product: left(ours), Trivial: left(floor), Target: "0",
		},
	}
	if len(results) > 2 {
		rows[0].NVIDIA, rows[1].NVIDIA = restarts(results[2]), left(results[2])
	}
	return rows, nil
}

func (c *contender) endure(ctx context.Context) (*killing, error) {
	s, err := c.serve(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { s.kill() }()
	before, err := c.Files()
	if err != nil {
		return nil, err
	}
	window, err := s.window(ctx)
	if err != nil {
		return nil, err
	}
	k := &killing{left: map[string]bool{}}
	for i := range kills {
		if s, err = k.once(ctx, s, c.claims[i%len(c.claims)], rand.N(window), before); err != nil {
			return nil, fmt.Errorf("kill %d of driver %s: %w", i+1, c.Name, err)
		}
	}
	return k, nil
}

// window is how long a preparation takes, the median of a few: most kills
// within it come before the answer.
func (s *served) window(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var times stats.Sample
	for _, claim := range s.claims[:min(10, len(s.claims))] {
		took, err := s.socket.Prepare(ctx, claim)
		if err != nil {
			return 0, err
		}
		if _, err := s.socket.Unprepare(ctx, claim); err != nil {
			return 0, err
		}
		times = append(times, took)
	}
	return times.Quantile(0.5), nil
}

// once kills the driver some time after it was asked, starts it again, and
// looks for what should not be there. It returns the new process.
func (k *killing) once(ctx context.Context, s *served, claim *drapb.Claim, after time.Duration, before []string) (
	*served, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answered := make(chan bool, 1)
	go func() {
		_, err := s.socket.Prepare(ctx, claim)
		answered <- err == nil
	}()
	<-time.After(after)
	s.kill()
	if !<-answered {
		k.inside++
	}
	process, err := s.Start()
	if err != nil {
		return s, err
	}
	socket, err := process.Connect(ctx)
	if err != nil {
		process.Kill()
		return s, err
	}
	next := &served{contender: s.contender, process: process, socket: socket}
	if _, err := socket.Prepare(ctx, claim); err != nil {
		return next, err
	}
	k.restarts = append(k.restarts, time.Since(process.Started()))
	if _, err := socket.Unprepare(ctx, claim); err != nil {
		return next, err
	}
	files, err := s.Files()
	if err != nil {
		return next, err
	}
	for _, file := range files {
		if !slices.Contains(before, file) && !k.left[file] {
			progress("left behind: %s", file)
			k.left[file] = true
		}
	}
	return next, nil
}
