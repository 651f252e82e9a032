// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// slowest is how many of the slowest tests a summary names.
const slowest = 10

// Outcome is how a lane ended.
type Outcome struct {
	Lane string
	Took time.Duration
	// NotRun is why the lane was not run.
	NotRun string
	// Unfinished says that the lane was ended when the time of the run was up, and nothing had failed.
	Unfinished bool
	// Still are the tests that ran then, with the time since they began, and Where the places in them.
	Still, Where []string
	Err          error
	Tests        []*Test
}

// summarise writes how a run ended: what a failed test said stands last, where it is found.
func summarise(to io.Writer, outcomes []Outcome, took time.Duration) {
	var all, skipped, failed []*Test
	for _, o := range outcomes {
		for _, t := range o.Tests {
			if t.Verdict == "skip" && t.Name != "" {
				skipped = append(skipped, t)
			}
			if t.Verdict == "fail" && !followed(t, o.Tests) {
				failed = append(failed, t)
			}
			if t.top() {
				all = append(all, t)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *Test) int { return cmp.Compare(b.Took, a.Took) })
	if len(all) > 0 {
		fmt.Fprintf(to, "\nThe slowest tests:\n")
	}
	for _, t := range all[:min(slowest, len(all))] {
		fmt.Fprintf(to, "  %7.1f s  %s %s", t.Took.Seconds(), t.Lane, t.Name)
		if t.Waited != "" {
			fmt.Fprintf(to, ", which waited %s", t.Waited)
		}
		fmt.Fprintln(to)
	}
	if len(skipped) > 0 {
		fmt.Fprintf(to, "\nSkipped:\n")
	}
	for _, t := range skipped {
		fmt.Fprintf(to, "  %s %s: %s\n", t.Lane, t.Name, t.reason())
	}
	fmt.Fprintf(to, "\nLanes:\n")
	broken := 0
	for _, o := range outcomes {
		verdict := "passed after " + clock(o.Took)
		switch {
		case o.NotRun != "":
			verdict = "not run: " + o.NotRun
		case o.Unfinished:
			verdict = fmt.Sprintf("NOT FINISHED: %v after %s, in which nothing failed", errTimeIsUp, clock(o.Took))
			if len(o.Still) > 0 {
				verdict += "; still running: " + strings.Join(o.Still, ", ") + "; at " + strings.Join(o.Where, ", ")
			}
		case o.Err != nil:
			verdict = fmt.Sprintf("failed after %s: %v", clock(o.Took), o.Err)
			broken++
		}
		fmt.Fprintf(to, "  %-20s %s\n", o.Lane, verdict)
	}
	fmt.Fprintf(to, "All of it took %s.\n", clock(took))
	for _, t := range failed {
		fmt.Fprintf(to, "\n--- FAIL: %s %s (%.1f s)\n", t.Lane, cmp.Or(t.Name, t.Package), t.Took.Seconds())
		for _, line := range t.own() {
			fmt.Fprintln(to, line)
		}
	}
	// A lane may fail without any test that does.
	if broken > 0 && len(failed) == 0 {
		failed = make([]*Test, broken)
	}
	passed := 0
	for _, t := range all {
		if t.Verdict == "pass" {
			passed++
		}
	}
	if len(all)+len(failed) > 0 {
		fmt.Fprintf(to, "\n%d passed, %d failed, %d skipped\n", passed, len(failed), len(skipped))
	}
}

// followed reports whether a test or package failed because of a test in it, which says why.
func followed(t *Test, all []*Test) bool {
	prefix := t.Name + "/"
	return slices.ContainsFunc(all, func(other *Test) bool {
		return other != t && other.Verdict == "fail" && other.Package == t.Package && other.Name != "" &&
			(t.Name == "" || len(other.Name) > len(prefix) && other.Name[:len(prefix)] == prefix)
	})
}

func clock(d time.Duration) string {
	return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
}
