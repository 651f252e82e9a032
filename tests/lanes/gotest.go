// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// event is what `go test -json` writes, as `go doc test2json` describes it.
type event struct {
	Action, Package, ImportPath, Test, Output, Key, Value string
	Elapsed                                               float64
}

// Test is how one test ended, or a package of which no test did.
type Test struct {
	Lane, Package, Name string
	// Verdict is pass, fail or skip.
	Verdict string
	// Took is how long the test took, without Queued, for which it waited until others had left its nodes.
	Took, Queued time.Duration
	// Waited is the longest that the test waited, and for what, where it says so.
	Waited string
	// Output is all that it wrote.
	Output []string

	// began says that it was told to have begun: output can come after its end.
	began bool
}

// top reports whether it is no subtest.
func (t *Test) top() bool { return t.Name != "" && !strings.Contains(t.Name, "/") }

// digest reads what `go test -json` writes. It shows a line for each package and, if tests is set, for
// each test when it ends, and what a failed one said. It returns the tests in the order of their ends.
func digest(lane string, from io.Reader, tests bool, show func(line string)) ([]*Test, error) {
	running := map[string]*Test{}
	var ended []*Test
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				show(strings.TrimRight(line, "\n")) // of the go command itself
			} else if t := follow(lane, running, &e, show); t != nil {
				ended = append(ended, t)
				report(t, tests, show)
			}
		}
		if err == io.EOF {
			return ended, unended(running)
		} else if err != nil {
			return ended, fmt.Errorf("read what the tests wrote: %w", err)
		}
	}
}

// unended is an error where tests, or packages, began and did not end: what ran them was killed, of which `go tool`
// says nothing in its exit status.
func unended(running map[string]*Test) error {
	maps.DeleteFunc(running, func(_ string, t *Test) bool { return !t.began })
	if len(running) == 0 {
		return nil
	}
	keys := slices.Sorted(maps.Keys(running))
	return fmt.Errorf("%d tests or packages did not end, the first is %s", len(keys), strings.TrimSpace(keys[0]))
}

// follow brings a test up to date, and returns it when it has ended.
func follow(lane string, running map[string]*Test, e *event, show func(string)) *Test {
	switch e.Action {
	case "build-output":
		show(strings.TrimRight(e.Output, "\n"))
		return nil
	case "build-fail":
		return &Test{Lane: lane, Package: e.ImportPath, Verdict: "fail", Output: []string{"it does not compile\n"}}
	}
	key := e.Package + " " + e.Test
	t := running[key]
	if t == nil {
		t = &Test{Lane: lane, Package: e.Package, Name: e.Test}
		running[key] = t
	}
	switch e.Action {
	case "start", "run":
		t.began = true
	case "output":
		t.Output = append(t.Output, e.Output)
	case "attr":
		switch e.Key {
		case "waited":
			t.Waited = e.Value
		case "queued":
			queued, err := time.ParseDuration(e.Value)
			if err == nil {
				t.Queued += queued
			}
		}
	case "pass", "fail", "skip":
		delete(running, key)
		t.Verdict, t.Took = e.Action, max(0, time.Duration(e.Elapsed*float64(time.Second))-t.Queued)
		return t
	}
	return nil
}

// report shows a test, or package, that has ended.
func report(t *Test, tests bool, show func(string)) {
	took := fmt.Sprintf("%6.1f s", t.Took.Seconds())
	switch {
	case t.Name == "" && t.Verdict == "pass":
		if strings.Contains(strings.Join(t.Output, ""), "(cached)") {
			took = "  cached"
		}
		show(fmt.Sprintf("ok   %s  %s", took, t.Package))
	case t.Name == "" && t.Verdict == "fail":
		show(fmt.Sprintf("FAIL %s  %s", took, t.Package))
	case t.Name == "":
	case t.Verdict == "fail":
		show(fmt.Sprintf("FAIL %s  %s", took, t.Name))
		for _, line := range t.Output {
			show("     " + strings.TrimRight(line, "\n"))
		}
	case tests && t.top():
		text := fmt.Sprintf("%s %s  %s", t.Verdict, took, t.Name)
		if t.Waited != "" {
			text += " (waited " + t.Waited + ")"
		}
		show(text)
	}
}

var (
	// said begins what a test says by its own words.
	said = regexp.MustCompile(`^ +[a-z0-9_]+\.go:\d+: `)
	// shown begins the description of what is in a cluster, which is long.
	shown = regexp.MustCompile(`^ +[a-z0-9_]+\.go:\d+: --- namespace `)
	// mark is a line of the test's life.
	mark = regexp.MustCompile(`^ *(=== |--- (PASS|FAIL|SKIP): )`)
)

// own is what a test said itself: without what it shows of the cluster, and the lines that say that
// it runs. A test that says nothing, as one that panics, has all of its output.
func (t *Test) own() []string {
	var own []string
	keep, spoke := false, false
	for _, line := range t.Output {
		switch {
		case mark.MatchString(line):
			keep = false
		case said.MatchString(line):
			keep = !shown.MatchString(line)
			spoke = true
		}
		if keep {
			own = append(own, strings.TrimRight(line, "\n"))
		}
	}
	if spoke {
		return own
	}
	for _, line := range t.Output {
		if !mark.MatchString(line) {
			own = append(own, strings.TrimRight(line, "\n"))
		}
	}
	return own
}

var (
	// ran is a test that still ran, and position where one was, as a test binary says whose time is up.
	ran      = regexp.MustCompile(`^\t\t(Test\S+ \(\S+\))$`)
	position = regexp.MustCompile(`^\t.*?([a-z0-9_]+_test\.go:\d+)( \+0x[0-9a-f]+)?$`)
)

// timedOut reports whether the time of a test binary was up, which tests still ran then, and where they were.
func (t *Test) timedOut() (still, where []string, is bool) {
	for _, line := range t.Output {
		line = strings.TrimRight(line, "\n")
		is = is || strings.HasPrefix(line, "panic: test timed out after ")
		if m := ran.FindStringSubmatch(line); m != nil && is {
			still = append(still, m[1])
		}
		if m := position.FindStringSubmatch(line); m != nil && is && !slices.Contains(where, m[1]) {
			where = append(where, m[1])
		}
	}
	return still, where, is
}

// reason is why a test was skipped.
func (t *Test) reason() string {
	return strings.TrimSpace(said.ReplaceAllString(strings.Join(t.own(), " "), ""))
}
