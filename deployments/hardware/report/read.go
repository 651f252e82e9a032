// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// What tests say in their attributes (testing.T.Attr): rows as JSON, the heading of the table that the rows of a test
// and its subtests are in, and facts of the machine, name and value with a tab between them.
const (
	RowKey   = "row"
	TableKey = "table"
	FactKey  = "fact"
)

// event is what `go doc test2json` describes.
type event struct {
	Action, Test, Output, Key, Value string
	Elapsed                          float64
}

// Tests are what a test program has shown.
type Tests struct {
	Facts  []Fact
	Tables []Table
}

// Read makes tables of what test2json writes of a test program: TEST/TABLE/STEP is a test whose rows are in that table.
// A step that has no rows has one of its own, and so has one that fails without a row that says why. progress is told
// what is being done, a line at a time.
func Read(from io.Reader, progress func(line string)) (Tests, error) {
	r := reader{tables: map[string]*Table{}, steps: map[string]*step{}, progress: progress}
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) == nil {
			r.follow(e)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return r.result(), fmt.Errorf("read what the tests say: %w", err)
		}
	}
	return r.result(), nil
}

type reader struct {
	facts    []Fact
	tables   map[string]*Table
	order    []*Table
	steps    map[string]*step
	running  []string
	other    []string // what no test has said
	progress func(string)
}

// step is a test that runs.
type step struct {
	rows int
	// failed are the rows of its table up to its last failed one; 0 for none.
	failed int
	said   strings.Builder
}

// name is a test's, as its author wrote it.
func name(part string) string { return strings.ReplaceAll(part, "_", " ") }

// stepName is the name of a step, without that of the step which it is a part of.
func (r *reader) stepName(test, step string) string {
	for other := range r.steps {
		if _, is := place(other); is != "" && strings.HasPrefix(test, other+"/") {
			return name(strings.TrimPrefix(test, other+"/"))
		}
	}
	return name(step)
}

// place splits a test's name; step is empty for one that has others below it.
func place(test string) (table, step string) {
	parts := append(strings.SplitN(test, "/", 3), "", "")
	return parts[1], parts[2]
}

func (r *reader) table(of string) *Table {
	if r.tables[of] == nil {
		r.tables[of] = &Table{Mode: name(of)}
		r.order = append(r.order, r.tables[of])
	}
	return r.tables[of]
}

func (r *reader) follow(e event) {
	table, stepName := place(e.Test)
	s := r.steps[e.Test]
	switch e.Action {
	case "run":
		r.steps[e.Test] = &step{}
		r.running = append(r.running, e.Test)
		if stepName != "" {
			r.progress("  " + r.stepName(e.Test, stepName))
		}
	case "output":
		if s == nil {
			r.other = append(r.other, e.Output)
		} else if !strings.HasPrefix(strings.TrimSpace(e.Output), "=== ") {
			s.said.WriteString(e.Output)
		}
	case "attr":
		r.attribute(e, table)
	case "pass", "fail", "skip":
		if s != nil && stepName != "" {
			r.end(e, table, r.stepName(e.Test, stepName), s)
		}
		delete(r.steps, e.Test)
	}
}

func (r *reader) attribute(e event, table string) {
	switch e.Key {
	case FactKey:
		key, value, _ := strings.Cut(e.Value, "\t")
		r.facts = append(r.facts, Fact{key, value})
	case TableKey:
		r.table(table).Mode = e.Value
	case RowKey:
		var row Row
		if json.Unmarshal([]byte(e.Value), &row) != nil || table == "" {
			return
		}
		t := r.table(table)
		t.Rows = append(t.Rows, row)
		if s := r.steps[e.Test]; s != nil {
			s.rows++
			if row.Result == Failed {
				s.failed = len(t.Rows)
			}
		}
	}
}

func (r *reader) end(e event, table, what string, s *step) {
	row := Row{What: what, Result: Passed, Took: time.Duration(e.Elapsed * float64(time.Second))}
	switch {
	case s.failed > 0:
		failed := &r.table(table).Rows[s.failed-1]
		failed.Details = s.said.String()
		r.progress("    FAILED " + failed.What + ": " + failed.Observed)
		return
	case e.Action == "fail":
		row.Result, row.Details = Failed, s.said.String()
		row.Observed = firstOwn(row.Details)
		r.progress("    FAILED " + row.Observed)
	case e.Action == "skip" && s.rows == 0:
		row.Result, row.Observed = NotRun, firstOwn(s.said.String())
	case s.rows > 0:
		return
	}
	r.table(table).Rows = append(r.table(table).Rows, row)
}

// firstOwn is what a test has said first by its own words: "    file.go:12: words".
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

// result has a failed row also for each test that did not end, after which no other was tried.
func (r *reader) result() Tests {
	for _, test := range r.running {
		table, stepName := place(test)
		if s := r.steps[test]; s != nil && stepName != "" {
			r.end(event{Action: "fail"}, table, name(stepName)+": it did not end", s)
			r.table("what follows").Rows = []Row{{What: "all tables that are not here", Result: NotRun,
				Observed: "the tests were ended, as when the time of the run is over"}}
		}
	}
	t := Tests{Facts: r.facts}
	for _, table := range r.order {
		t.Tables = append(t.Tables, *table)
	}
	if len(t.Tables) == 0 {
		said := strings.Join(r.other, "")
		t.Tables = []Table{{Mode: "tests", Rows: []Row{{What: "the tests", Observed: "none began: " + said, Result: Failed,
			Details: said}}}}
	}
	return t
}
