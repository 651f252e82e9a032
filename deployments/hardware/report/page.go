// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
	"time"
)

// Report is all that a run has shown.
type Report struct {
	// Simulated says that no GPU took part.
	Simulated bool
	// Title names the GPUs, as in "1 × NVIDIA H200".
	Title   string
	Started time.Time
	Tables  []Table
	// Afterwards says what became of what the run had changed.
	Afterwards []string
}

// Count is how many checks ended so.
func (r Report) Count(result Result) (n int) {
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
func (r Report) Markdown() string {
	var page, failures strings.Builder
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
			if row.Took >= time.Second/10 {
				took = fmt.Sprintf("%.1f", row.Took.Seconds())
			}
			fmt.Fprintf(&page, "| %s | %s | %s | %s |\n", cell(row.What), cell(row.Observed), row.Result, took)
			if row.Result == Failed && row.Details != "" {
				fmt.Fprintf(&failures, "\n%s: %s\n\n```\n%s\n```\n", table.Mode, row.What, fenced(row.Details))
			}
		}
	}
	if failures.Len() > 0 {
		page.WriteString("\n### Failures\n" + failures.String())
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

// maxDetails is how many lines of details are shown, the last ones.
const maxDetails = 60

func fenced(text string) string {
	lines := strings.Split(strings.ReplaceAll(strings.Trim(text, "\n"), "```", "'''"), "\n")
	return strings.Join(lines[max(0, len(lines)-maxDetails):], "\n")
}
