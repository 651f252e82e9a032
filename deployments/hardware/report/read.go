// SPDX-License-Identifier: Apache-2.0

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

// RowKey is the attribute (testing.T.Attr) in which a test says a row, as JSON.
const RowKey = "row"

// event is what `go doc test2json` describes.
type event struct {
	Action, Test, Output, Key, Value string
	Elapsed                          float64
}

// Read makes tables of what test2json writes: the rows of TEST/TABLE/STEP and of all below it are in that table. A test
// that ends without a row has one of its own, as has one that fails and has no row that says why. progress is told what
// is being done, a line at a time.
func Read(from io.Reader, progress func(line string)) ([]Table, error) {
	r := reader{steps: map[string]*step{}, failed: map[string]bool{}, progress: progress}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			r.follow(e)
		}
	}
	if err := lines.Err(); err != nil {
		return r.end(), fmt.Errorf("read what the tests say: %w", err)
	}
	return r.end(), nil
}

type reader struct {
	tables   []Table
	steps    map[string]*step // of the tests that run
	running  []string
	failed   map[string]bool // tests with a failed row, their own or of one below them
	said     strings.Builder // by no test
	progress func(string)
}

// step is a test that runs.
type step struct {
	rows []Row
	said strings.Builder
}

// place is the table of a test and what it is called there.
func place(test string) (table, what string) {
	parts := append(strings.SplitN(strings.ReplaceAll(test, "_", " "), "/", 3), "", "")
	if parts[1] == "" {
		return "tests", "all tests"
	}
	if parts[2] == "" {
		return parts[1], "all of " + parts[1]
	}
	return parts[1], parts[2]
}

func (r *reader) follow(e event) {
	s := r.steps[e.Test]
	switch {
	case e.Action == "run":
		r.steps[e.Test], r.running = &step{}, append(r.running, e.Test)
		if _, what := place(e.Test); strings.Count(e.Test, "/") > 1 {
			r.progress("  " + what)
		}
	case e.Action == "output" && s == nil:
		r.said.WriteString(e.Output)
	case s == nil:
	case e.Action == "output" && !strings.HasPrefix(e.Output, "=== "):
		s.said.WriteString(e.Output)
	case e.Action == "attr" && e.Key == RowKey:
		var row Row
		if json.Unmarshal([]byte(e.Value), &row) == nil {
			s.rows = append(s.rows, row)
		}
	case e.Action == "pass", e.Action == "fail", e.Action == "skip":
		r.finish(e, s)
		delete(r.steps, e.Test)
		r.running = slices.DeleteFunc(r.running, func(test string) bool { return test == e.Test })
	}
}

// finish adds the rows of a test that has ended.
func (r *reader) finish(e event, s *step) {
	table, what := place(e.Test)
	own := Row{What: what, Result: Passed, Observed: firstOwn(s.said.String()),
		Took: time.Duration(e.Elapsed * float64(time.Second))}
	at := slices.IndexFunc(s.rows, func(row Row) bool { return row.Result == Failed })
	switch {
	case e.Action == "fail" && at >= 0:
		s.rows[at].Details = s.said.String()
	case e.Action == "fail" && !r.failed[e.Test]:
		own.Result, own.Details = Failed, s.said.String()
		s.rows, at = append(s.rows, own), len(s.rows)
	case e.Action == "skip" && len(s.rows) == 0:
		own.Result, own.Took = NotRun, 0
		s.rows = []Row{own}
	case e.Action == "pass" && len(s.rows) == 0 && strings.Count(e.Test, "/") > 1:
		own.Observed = ""
		s.rows = []Row{own}
	}
	if at >= 0 {
		r.progress("    FAILED " + s.rows[at].What + ": " + s.rows[at].Observed)
		for above := e.Test; above != ""; above = above[:max(0, strings.LastIndex(above, "/"))] {
			r.failed[above] = true
		}
	}
	r.add(table, s.rows...)
}

func (r *reader) add(table string, rows ...Row) {
	if len(rows) == 0 {
		return
	}
	at := slices.IndexFunc(r.tables, func(t Table) bool { return t.Mode == table })
	if at < 0 {
		r.tables, at = append(r.tables, Table{Mode: table}), len(r.tables)
	}
	r.tables[at].Rows = append(r.tables[at].Rows, rows...)
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
	return strings.TrimSpace(said)
}

// end has a failed row also for the test that did not end, after which no other was tried.
func (r *reader) end() []Table {
	if n := len(r.running); n > 0 {
		test := r.running[n-1]
		r.steps[test].said.WriteString("test.go:0: it did not end\n" + r.said.String())
		r.finish(event{Action: "fail", Test: test}, r.steps[test])
		r.add("what follows", Row{What: "all tables that are not here", Result: NotRun,
			Observed: "the tests were ended, as when the time of the run is over"})
	}
	if len(r.tables) == 0 {
		r.add("tests", Row{What: "the tests", Observed: "none began: " + r.said.String(), Result: Failed,
			Details: r.said.String()})
	}
	return r.tables
}
