// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/process"
)

const (
	restSettling = 30 * time.Second
	restWindow   = 2 * time.Minute
)

// resting has the processes of a program, with what they had used at the first look.
type resting struct {
	measure, column string
	pids            []int
	looks           []process.Look
}

// measureRest measures what idle programs use: the installed ones, and drivers whose claims are prepared.
func (b *bench) measureRest(ctx context.Context) error {
	stop, err := b.serveAll(ctx)
	defer stop()
	if err != nil {
		return err
	}
	all, err := b.installed()
	if err != nil {
		return err
	}
	for _, c := range b.contenders {
		for _, claim := range c.claims {
			if _, err := c.socket.Prepare(ctx, claim); err != nil {
				return fmt.Errorf("%w: see %s", err, c.Log())
			}
		}
		all = append(all, &resting{column: c.column, pids: []int{c.process.PID},
			measure: fmt.Sprintf("the driver with %d claims, a process of the machine (NVIDIA's: %d)", manyClaims, gpus)})
	}
	if err := process.LeaveAlone(ctx, restSettling); err != nil {
		return err
	}
	for _, r := range all {
		for _, pid := range r.pids {
			look, err := process.LookAt(pid)
			if err != nil {
				return err
			}
			r.looks = append(r.looks, look)
		}
	}
	if err := process.LeaveAlone(ctx, restWindow); err != nil {
		return err
	}
	for _, r := range all {
		cell, err := r.used()
		if err != nil {
			return err
		}
		measure := fmt.Sprintf("at rest for %.0f s: %s: processor time, resident memory", restWindow.Seconds(), r.measure)
		b.table.Set(measure, r.column, cell)
		b.table.Set(measure, columnTarget, "≤ 0.05 s a minute")
	}
	return nil
}

// installed returns the programs in containers.
func (b *bench) installed() ([]*resting, error) {
	ours := b.contenders[0].column
	programs := [][3]string{{"gpu-mps-supervisor, nothing uses MPS", ours, "/usr/bin/gpu-mps-supervisor"},
		{"gpu-compat-controller, each replica", ours, "/usr/bin/gpu-compat-controller"}}
	for _, c := range b.contenders {
		if c.installed != "" {
			programs = append(programs, [3]string{"the driver in its container", c.column, c.installed})
		}
	}
	var all []*resting
	for _, program := range programs {
		pids, err := process.With(program[2])
		if err != nil {
			return nil, err
		}
		all = append(all, &resting{measure: program[0], column: program[1], pids: pids})
	}
	return all, nil
}

// used returns what each process has used.
func (r *resting) used() (string, error) {
	var cells []string
	for _, look := range r.looks {
		use, err := look.Since()
		if err != nil {
			return "", err
		}
		cells = append(cells, use)
	}
	return strings.Join(cells, "; "), nil
}
