// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// A run with a time limit runs the lanes of every change whatever they take, and of the others those that
// there is time for.
func TestLanesAreRunInTime(t *testing.T) {
	lane := func(name string, when When, script string) Lane {
		return Lane{Name: name, When: when, Commands: []Command{{Shell: script}}}
	}
	run := func(within time.Duration, lanes ...Lane) []Outcome {
		r := &Runner{Checkout: t.TempDir(), Out: io.Discard, Within: within}
		return r.Run(t.Context(), lanes)
	}
	outcomes := run(time.Second, lane("late", Complete, "sleep 600"), lane("later", Complete, "true"))
	if o := outcomes[0]; !o.Unfinished || o.Err != nil {
		t.Errorf("%+v, want it to be ended", o)
	}
	if o := outcomes[1]; !strings.Contains(o.NotRun, "the run is to end within") {
		t.Errorf("%+v, want it not to be run", o)
	}
	outcomes = run(time.Nanosecond, lane("always", EveryChange, "true"), lane("fails", EveryChange, "exit 1"))
	if o := outcomes[0]; o.Err != nil || o.NotRun != "" || o.Unfinished {
		t.Errorf("%+v, want it to pass", o)
	}
	if outcomes[1].Err == nil {
		t.Errorf("%+v, want it to fail", outcomes[1])
	}
}

// A lane that may be left out does not slow one that is always run, though it needs no cluster.
func TestLanesThatMayBeLeftOutWait(t *testing.T) {
	dir := t.TempDir()
	lane := func(name string, when When, built bool, script string) Lane {
		return Lane{Name: name, When: when, Built: built, Commands: []Command{{Shell: script}}}
	}
	cluster := filepath.Join(dir, ".build", "bin", "cluster")
	expect.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(cluster), 0o755),
		os.WriteFile(filepath.Join(dir, "Makefile"), []byte("images kubectl-inspect-cgpu helm:\n"), 0o644),
		os.WriteFile(cluster, []byte("#!/bin/sh\n"), 0o755), syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600)))
	r := &Runner{Checkout: dir, Out: io.Discard, Within: time.Hour}
	for _, o := range r.Run(t.Context(), []Lane{lane("beside", Complete, false, "[ -e ended ]"),
		lane("always", EveryChange, true, "read -r _ <pipe; touch ended"),
		lane("starts", EveryChange, false, "echo go >pipe")}) {
		if o.Err != nil || o.NotRun != "" {
			t.Errorf("%+v", o)
		}
	}
}

// Where lanes took longer than their table says, the next ones are expected to.
func TestPace(t *testing.T) {
	var p pace
	next := Lane{Takes: 4 * time.Minute}
	for _, step := range []struct {
		lane    Lane
		outcome Outcome
		want    time.Duration
	}{
		{Lane{Takes: time.Minute}, Outcome{NotRun: "no time"}, 4 * time.Minute},
		{Lane{Takes: 10 * time.Minute}, Outcome{Took: 5 * time.Minute}, 4 * time.Minute},
		{Lane{Takes: 10 * time.Minute}, Outcome{Took: 45 * time.Minute}, 10 * time.Minute},
	} {
		p.add(step.lane, step.outcome)
		if got := p.expects(next); got != step.want {
			t.Errorf("after %+v: %s, want %s", step, got, step.want)
		}
	}
}
