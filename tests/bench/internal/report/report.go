// SPDX-License-Identifier: Apache-2.0

// Package report sums up what was measured, and writes it as a table.
package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Sample is a series of measurements.
type Sample []time.Duration

// Quantile returns the smallest measurement that a share q, 0 to 1, of all does not exceed; 0 for an empty sample.
func (s Sample) Quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Minus returns the sample's differences to another one, pair by pair, without the rest of the longer one.
func (s Sample) Minus(other Sample) Sample {
	out := make(Sample, min(len(s), len(other)))
	for i := range out {
		out[i] = s[i] - other[i]
	}
	return out
}

// Summary writes several quantiles of the sample as one cell of a table, in milliseconds. The cell of an empty sample
// is empty.
func (s Sample) Summary(quantiles ...float64) string {
	if len(s) == 0 {
		return ""
	}
	cells := make([]string, len(quantiles))
	for i, q := range quantiles {
		cells[i] = milliseconds(s.Quantile(q))
	}
	return strings.Join(cells, " / ") + " ms"
}

// milliseconds writes a duration with as many places as are worth reading.
func milliseconds(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if math.Abs(ms) < 99.5 {
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}

// Table is what was measured: a line for each measure, in the order in which they came.
type Table struct {
	// Head has the names of the columns; the first column has the measures.
	Head  []string
	lines [][]string
}

// Set fills the cell of a measure in a column. It ignores a column that the table does not have.
func (t *Table) Set(measure, column, cell string) {
	line := slices.IndexFunc(t.lines, func(line []string) bool { return line[0] == measure })
	if line < 0 {
		line = len(t.lines)
		t.lines = append(t.lines, make([]string, len(t.Head)))
		t.lines[line][0] = measure
	}
	if at := slices.Index(t.Head, column); at > 0 {
		t.lines[line][at] = cell
	}
}

// Write writes the table in Markdown, below an empty line and with a dash for an empty cell.
func (t *Table) Write(w io.Writer) error {
	var out strings.Builder
	out.WriteString("\n")
	for i, line := range slices.Concat([][]string{t.Head}, t.lines) {
		for _, cell := range line {
			out.WriteString("| " + cmp.Or(cell, "–") + " ")
		}
		out.WriteString("|\n")
		if i == 0 {
			out.WriteString(strings.Repeat("| --- ", len(line)) + "|\n")
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// Machine returns the time and the machine of a measurement, in one line.
func Machine() string {
	var info unix.Sysinfo_t
	var name unix.Utsname
	_, _ = unix.Sysinfo(&info), unix.Uname(&name) // fail without a place for the answer only
	load := func(i int) float64 { return float64(info.Loads[i]) / (1 << 16) }
	return fmt.Sprintf("%s, %d cores, %.0f GiB of memory, Linux %s, load before the run %.2f %.2f %.2f",
		time.Now().UTC().Format("2006-01-02 15:04 UTC"), runtime.NumCPU(),
		float64(info.Totalram)*float64(info.Unit)/(1<<30), unix.ByteSliceToString(name.Release[:]),
		load(0), load(1), load(2))
}
