// SPDX-License-Identifier: Apache-2.0

// Package report has what a run shows of real GPUs: a row for each check, in a table for each mode, and the page that
// is made of them. The tests add the rows; a file has them meanwhile, in case a run does not end.
package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/statefile"
)

// Result is how a check ended.
type Result string

// The results, as the page writes them.
const (
	Passed Result = "ok"
	Failed Result = "**failed**"
	NotRun Result = "not run"
	// Seen is what is worth to know, with no right or wrong.
	Seen Result = "seen"
)

// Row is one check, a line of its table.
type Row struct {
	What, Observed string
	Result         Result
	Took           time.Duration
}

// Table has the checks of one mode.
type Table struct {
	Mode string
	Rows []Row
}

// Report is all that a run has shown.
type Report struct {
	// Simulated says that no GPU took part.
	Simulated bool
	// Title names the GPUs, as in "1 × NVIDIA H200".
	Title   string
	Started time.Time
	Tables  []Table
	// Trying is what has begun and not ended; empty for nothing.
	Trying string
	// Failures is what was said of checks that failed: whatever helps to find out why.
	Failures string
	// Afterwards says what became of what the run had changed.
	Afterwards []string
}

// In keeps a report in a file.
func In(path string) statefile.File[Report] { return statefile.File[Report]{Path: path} }

// Add adds a row to the table of a mode, which is the last one or a new one.
func (r *Report) Add(mode string, row Row) {
	if n := len(r.Tables); n == 0 || r.Tables[n-1].Mode != mode {
		r.Tables = append(r.Tables, Table{Mode: mode})
	}
	last := &r.Tables[len(r.Tables)-1]
	last.Rows = append(last.Rows, row)
}

// End adds what no test could add: that the tests ended with an error without a check that failed, or in the middle of
// one.
func (r *Report) End(err error) {
	switch {
	case err != nil && r.Trying != "":
		r.Add("tests", Row{What: r.Trying, Result: Failed,
			Observed: "it did not end, and no other was tried, as when the time of the run is over"})
	case err != nil && r.Count(Failed) == 0:
		r.Add("tests", Row{What: "all tests", Observed: fmt.Sprintf("%v: %s", err, r.Failures), Result: Failed})
	}
	r.Trying = ""
}

// Count is how many checks ended so.
func (r *Report) Count(result Result) (n int) {
	for _, table := range r.Tables {
		for _, row := range table.Rows {
			if row.Result == result {
				n++
			}
		}
	}
	return n
}

// simulated is what a reader must not miss.
const simulated = `**No GPU took part in this run.** The node was simulated: stand-ins took the place of
NVML, of CUDA and of the MPS control program. The run shows that pods, claims, limits in the environment, mounts and
users come out as intended, and that the bundle works. It shows nothing about CUDA, about MPS or about a GPU.`

// Markdown is the page. Its headings begin at the second level, so that it can stand in another one.
func (r *Report) Markdown() string {
	var page strings.Builder
	title, note := r.Title, ""
	if r.Simulated {
		title, note = title+", simulated", simulated+"\n\n"
	}
	passed, failed, notRun := r.Count(Passed), r.Count(Failed), r.Count(NotRun)
	fmt.Fprintf(&page, "## %s\n\n%sOf %d checks %d passed, %d failed and %d were not run. %s.\n", title, note,
		passed+failed+notRun, passed, failed, notRun, r.Started.UTC().Format("2006-01-02 15:04 UTC"))
	for _, table := range r.Tables {
		fmt.Fprintf(&page, "\n### %s\n\n| Check | Observed | Result | s |\n|---|---|---|---|\n", table.Mode)
		for _, row := range table.Rows {
			took := ""
			if row.Took > 0 {
				took = fmt.Sprintf("%.1f", row.Took.Seconds())
			}
			fmt.Fprintf(&page, "| %s | %s | %s | %s |\n", cell(row.What), cell(row.Observed), row.Result, took)
		}
	}
	if failed > 0 && r.Failures != "" {
		fmt.Fprintf(&page, "\n### Failures\n\n```\n%s\n```\n", fenced(r.Failures))
	}
	if len(r.Afterwards) > 0 {
		page.WriteString("\n### Afterwards\n\n")
	}
	for _, line := range r.Afterwards {
		fmt.Fprintf(&page, "- %s\n", strings.Join(strings.Fields(line), " "))
	}
	return page.String()
}

// maxCell is the longest text of a cell: a table has to stay one.
const maxCell = 200

// cell is a text as a cell of a table takes it.
func cell(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > maxCell {
		text = string(runes[:maxCell-1]) + "…"
	}
	return strings.ReplaceAll(text, "|", `\|`)
}

// maxFailures is how many lines are shown of failures, the first ones.
const maxFailures = 400

func fenced(text string) string {
	lines := strings.Split(strings.ReplaceAll(strings.Trim(text, "\n"), "```", "'''"), "\n")
	return strings.Join(lines[:min(maxFailures, len(lines))], "\n")
}
