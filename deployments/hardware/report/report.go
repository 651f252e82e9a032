// SPDX-License-Identifier: Apache-2.0

// Package report makes a page of what test2json writes of the tests of real GPUs. Pure.
package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Result is how a check ended.
type Result string

// The results, as the page writes them.
const (
	Passed Result = "ok"
	Failed Result = "**failed**"
	NotRun Result = "not run"
	// Seen is what is worth to know, with no right or wrong: that of a test with the attribute SeenKey.
	Seen Result = "seen"
)

// SeenKey is the attribute (testing.T.Attr) of a test that is neither right nor wrong.
const SeenKey = "seen"

// Row is one check, a line of its table.
type Row struct {
	What, Observed string
	Result         Result
	Took           time.Duration
	// Details are for a check that failed: whatever helps to find out why.
	Details string
}

// Table has the checks of one mode.
type Table struct {
	Mode string
	Rows []Row
}

// event is what `go doc test2json` describes.
type event struct {
	Action, Test, Output, Key string
	Elapsed                   float64
}

// test is one that runs.
type test struct {
	above *test // nil for the first
	name  string
	depth int
	// parts says that it has tests below it, failed that one of these has failed.
	parts, failed, seen bool
	said                strings.Builder
}

// table is the name of that in which the test's row is.
func (t *test) table() string {
	for ; t.depth > 1; t = t.above {
	}
	return t.name
}

type reader struct {
	tables   []Table
	tests    map[string]*test
	running  []*test
	said     strings.Builder // by no test
	progress func(string)
}

// Read makes tables of what test2json writes: a row for each test without others below it, in the table TEST/TABLE. It
// observed what it has logged first. progress is told what is being done, a line at a time.
func Read(from io.Reader, progress func(line string)) ([]Table, error) {
	r := reader{tests: map[string]*test{}, progress: progress}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			r.follow(e)
		}
	}
	r.end()
	if err := lines.Err(); err != nil {
		return r.tables, fmt.Errorf("read what the tests say: %w", err)
	}
	return r.tables, nil
}

// begin notes a test, whose own name may have slashes.
func (r *reader) begin(full string) {
	t := &test{name: full}
	for up := full; t.above == nil && strings.Contains(up, "/"); {
		up = up[:strings.LastIndex(up, "/")]
		if t.above = r.tests[up]; t.above != nil {
			t.depth, t.above.parts, t.name = t.above.depth+1, true, full[len(up)+1:]
		}
	}
	// As its author wrote it; tests of one name are numbered.
	t.name, _, _ = strings.Cut(strings.ReplaceAll(t.name, "_", " "), "#")
	if t.depth == 2 {
		r.progress("  " + t.name)
	}
	r.tests[full], r.running = t, append(r.running, t)
}

func (r *reader) follow(e event) {
	t := r.tests[e.Test]
	switch {
	case e.Action == "run":
		r.begin(e.Test)
	case e.Action == "output" && t == nil:
		r.said.WriteString(e.Output)
	case t == nil:
	case e.Action == "output" && !strings.HasPrefix(strings.TrimSpace(e.Output), "=== "):
		t.said.WriteString(e.Output)
	case e.Action == "attr" && e.Key == SeenKey:
		t.seen = true
	case e.Action == "pass", e.Action == "fail", e.Action == "skip":
		r.finish(t, e.Action, time.Duration(e.Elapsed*float64(time.Second)))
		delete(r.tests, e.Test)
	}
}

// finish has the row of a test that has ended.
func (r *reader) finish(t *test, action string, took time.Duration) {
	r.running = slices.DeleteFunc(r.running, func(other *test) bool { return other == t })
	row := Row{What: t.name, Observed: firstOwn(t.said.String()), Took: took}
	switch {
	case action == "fail" && t.failed:
		// What is told of all of it belongs to the part that has failed.
		rows := r.table(t.table()).Rows
		for i, failed := range slices.Backward(rows) {
			if failed.Result == Failed {
				rows[i].Details += t.said.String()
				break
			}
		}
	case action == "fail":
		row.Result, row.Details = Failed, t.said.String()
		r.progress("    FAILED " + row.What + ": " + row.Observed)
	case action == "skip":
		row.Result, row.Took = NotRun, 0
	case t.parts || t.depth < 2:
	case t.seen:
		row.Result = Seen
	default:
		row.Result = Passed
	}
	if action == "fail" && t.above != nil {
		t.above.failed = true
	}
	if row.Result != "" {
		table := r.table(t.table())
		table.Rows = append(table.Rows, row)
	}
}

func (r *reader) table(mode string) *Table {
	at := slices.IndexFunc(r.tables, func(t Table) bool { return t.Mode == mode })
	if at < 0 {
		r.tables, at = append(r.tables, Table{Mode: mode}), len(r.tables)
	}
	return &r.tables[at]
}

// firstOwn is what a test has said first in its own words: "    file.go:12: words".
func firstOwn(said string) string {
	for line := range strings.Lines(said) {
		if _, words, found := strings.Cut(line, ".go:"); found {
			if _, words, found = strings.Cut(words, ": "); found {
				return strings.TrimSpace(words)
			}
		}
	}
	return ""
}

// end has a failed row also for a test that did not end, after which no other was tried, and where none began.
func (r *reader) end() {
	switch n := len(r.running); {
	case n > 0:
		t := r.running[n-1]
		t.said.WriteString(r.said.String())
		r.finish(t, "fail", 0)
		rows := r.table(t.table()).Rows
		rows[len(rows)-1].Observed = "it did not end, and no other was tried, as when the time of the run is over"
	case len(r.tables) == 0:
		r.tables = []Table{{Mode: "tests", Rows: []Row{{What: "all tests", Observed: "none began: " + r.said.String(),
			Result: Failed, Details: r.said.String()}}}}
	}
}
