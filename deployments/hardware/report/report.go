// SPDX-License-Identifier: Apache-2.0

// Package report turns what tests on a machine's GPUs have shown into a document. Pure.
package report

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Result is how a check ended.
type Result string

// The results, as the report writes them.
const (
	Passed Result = "ok"
	Failed Result = "**failed**"
	NotRun Result = "not run"
	// Seen is what is worth to know, with no right or wrong.
	Seen Result = "seen"
)

// Row is one check, a line of its mode's table.
type Row struct {
	// What was looked at, what it should be or was granted, and what it was.
	What, Granted, Observed string
	Result                  Result
	// Details are for a check that failed: whatever helps to find out why.
	Details string
	Took    time.Duration
}

// Table has the checks of one mode.
type Table struct {
	Mode string
	Rows []Row
}

// Fact is a property of the machine.
type Fact struct{ Name, Value string }

// Report is all that a run has shown.
type Report struct {
	// Simulated says that no GPU took part.
	Simulated bool
	// GPUs names them, as in "1 × NVIDIA H200".
	GPUs    string
	Started time.Time
	Took    time.Duration
	Facts   []Fact
	Tables  []Table
	// Afterwards says what became of what the run had changed.
	Afterwards []string
}

// Count says how many checks ended so.
func (r Report) Count(result Result) int {
	n := 0
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

// Markdown is the document. Its headings begin at the second level, so that it can stand
// in another one.
func (r Report) Markdown() string {
	var out strings.Builder
	title := r.GPUs
	if r.Simulated {
		title += ", simulated"
	}
	fmt.Fprintf(&out, "## %s\n\n", title)
	if r.Simulated {
		fmt.Fprintf(&out, "%s\n\n", simulated)
	}
	fmt.Fprintf(&out, "%s\n\n", r.summary())
	facts := append([]Fact{
		{"Date", r.Started.UTC().Format("2006-01-02 15:04 UTC")},
		{"Time taken", seconds(r.Took) + " s"},
	}, r.Facts...)
	out.WriteString("| | |\n|---|---|\n")
	for _, fact := range facts {
		fmt.Fprintf(&out, "| %s | %s |\n", cell(fact.Name), cell(fact.Value))
	}
	for _, table := range r.Tables {
		writeTable(&out, table)
	}
	r.writeFailures(&out)
	if len(r.Afterwards) > 0 {
		out.WriteString("\n### Afterwards\n\n")
		for _, line := range r.Afterwards {
			fmt.Fprintf(&out, "- %s\n", strings.Join(strings.Fields(line), " "))
		}
	}
	return out.String()
}

func (r Report) summary() string {
	parts := []string{fmt.Sprintf("%d passed", r.Count(Passed)), fmt.Sprintf("%d failed", r.Count(Failed))}
	if n := r.Count(NotRun); n > 0 {
		parts = append(parts, fmt.Sprintf("%d not run", n))
	}
	total := r.Count(Passed) + r.Count(Failed) + r.Count(NotRun)
	return fmt.Sprintf("Of %d checks %s.", total, enumerate(parts))
}

func enumerate(parts []string) string {
	last := len(parts) - 1
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}

func writeTable(out *strings.Builder, table Table) {
	fmt.Fprintf(
		out,
		"\n### %s\n\n| Check | Granted, or expected | Observed | Result | s |\n|---|---|---|---|---|\n",
		table.Mode,
	)
	for _, row := range table.Rows {
		took := ""
		if row.Took > 0 {
			took = seconds(row.Took)
		}
		columns := []string{cell(row.What), cell(row.Granted), cell(row.Observed), string(row.Result), took}
		fmt.Fprintf(out, "| %s |\n", strings.Join(columns, " | "))
	}
}

// writeFailures has what did not fit into the tables.
func (r Report) writeFailures(out *strings.Builder) {
	heading := "\n### Failures\n"
	for _, table := range r.Tables {
		for _, row := range table.Rows {
			if row.Result != Failed || row.Details == "" {
				continue
			}
			fmt.Fprintf(out, "%s\n%s: %s\n\n```\n%s\n```\n", heading, table.Mode, row.What, fenced(row.Details))
			heading = ""
		}
	}
}

// maxCell is the longest text of a cell: a table has to stay one.
const maxCell = 160

// cell is a text as a cell of a table takes it.
func cell(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > maxCell {
		text = string(runes[:maxCell-1]) + "…"
	}
	return strings.ReplaceAll(text, "|", `\|`)
}

// maxDetails is how many lines of details are shown, the last ones.
const maxDetails = 60

func fenced(text string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	lines = lines[max(0, len(lines)-maxDetails):]
	lines = slices.DeleteFunc(
		lines,
		func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "```") },
	)
	return strings.Join(lines, "\n")
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) }
