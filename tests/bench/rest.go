// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/driver"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

// The programs in their containers; the drivers that the benchmark starts itself have other paths.
const (
	pluginProgram     = "/usr/bin/gpu-kubelet-plugin"
	supervisorProgram = "/usr/bin/gpu-mps-supervisor"
	controllerProgram = "/usr/bin/gpu-compat-controller"
	trivialProgram    = "/trivial"
	nvidiaProgram     = "/nvidia/gpu-kubelet-plugin"
)

const (
	restSettling = 30 * time.Second
	restWindow   = 2 * time.Minute
)

// measureRest looks at what the installed programs take while nobody asks for anything.
func measureRest(ctx context.Context, b *bench) ([]stats.Row, error) {
	rows := []struct {
		measure                  string
		product, trivial, nvidia string
		target                   string
	}{
		{"gpu-kubelet-plugin", pluginProgram, trivialProgram, b.ofNVIDIA(nvidiaProgram), "≤ 0.05 s a minute"},
		{"gpu-mps-supervisor, nothing uses MPS", supervisorProgram, "", "", "≤ 0.05 s a minute"},
		{"gpu-compat-controller, each replica", controllerProgram, "", "", ""},
	}
	if err := rest(ctx, restSettling); err != nil {
		return nil, err
	}
	resting := map[string]*atRest{}
	for _, r := range rows {
		for _, program := range []string{r.product, r.trivial, r.nvidia} {
			if program == "" {
				continue
			}
			a, err := begin(program)
			if err != nil {
				return nil, err
			}
			resting[program] = a
		}
	}
	if err := rest(ctx, restWindow); err != nil {
		return nil, err
	}
	cells := map[string]string{"": ""}
	for program, a := range resting {
		var err error
		if cells[program], err = a.end(); err != nil {
			return nil, err
		}
	}
	var out []stats.Row
	for _, r := range rows {
		out = append(out, stats.Row{
			Measure: fmt.Sprintf("at rest for %.0f s: %s: processor time, resident memory", restWindow.Seconds(), r.measure),
			Product: cells[r.product], Trivial: cells[r.trivial], NVIDIA: cells[r.nvidia], Target: r.target,
		})
	}
	return out, nil
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// atRest is what the processes of one program had used when it was looked at first.
type atRest struct {
	since time.Time
	used  map[int]time.Duration
}

func begin(program string) (*atRest, error) {
	pids, err := driver.Running(program)
	if err != nil {
		return nil, err
	}
	a := &atRest{since: time.Now(), used: map[int]time.Duration{}}
	for _, pid := range pids {
		if a.used[pid], err = driver.CPU(pid); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// end says what each process has used since, the busiest first.
func (a *atRest) end() (string, error) {
	type process struct {
		core float64
		rss  int64
	}
	var all []process
	for pid, before := range a.used {
		now, err := driver.CPU(pid)
		if err != nil {
			return "", err
		}
		rss, err := driver.RSS(pid)
		if err != nil {
			return "", err
		}
		all = append(all, process{float64(now-before) / float64(time.Since(a.since)), rss})
	}
	slices.SortFunc(all, func(a, b process) int { return int(b.core*1e6) - int(a.core*1e6) })
	cells := make([]string, len(all))
	for i, p := range all {
		cells[i] = fmt.Sprintf("%.3f s a minute, %.1f MiB", 60*p.core, float64(p.rss)/(1<<20))
	}
	return strings.Join(cells, "; "), nil
}
