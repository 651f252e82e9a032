// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

// noClaim is the column of pods without a claim.
const noClaim = "no claim"

// table is what was measured: a line for each measure, a column for each mode.
type table struct {
	columns []string
	lines   []line
}

type line struct {
	measure, target string
	cells           map[string]string
}

// set fills one cell, in the line of that measure, which is added where there
// is none yet.
func (t *table) set(measure, column, cell string) { t.line(measure).cells[column] = cell }

// aim sets what the design wants of the measure.
func (t *table) aim(measure, target string) { t.line(measure).target = target }

func (t *table) line(measure string) *line {
	for i := range t.lines {
		if t.lines[i].measure == measure {
			return &t.lines[i]
		}
	}
	t.lines = append(t.lines, line{measure: measure, cells: map[string]string{}})
	return &t.lines[len(t.lines)-1]
}

// write writes the table in Markdown. An empty cell becomes a dash.
func (t *table) write(w io.Writer) error {
	rows := [][]string{append(append([]string{"measure"}, t.columns...), "target"), make([]string, len(t.columns)+2)}
	for i := range rows[1] {
		rows[1][i] = "---"
	}
	for _, l := range t.lines {
		row := []string{l.measure}
		for _, c := range t.columns {
			row = append(row, l.cells[c])
		}
		row = append(row, l.target)
		for i, cell := range row {
			if cell == "" {
				row[i] = "–"
			}
		}
		rows = append(rows, row)
	}
	for _, row := range rows {
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | ")); err != nil {
			return err
		}
	}
	return nil
}

// micros writes quantiles of the sample in microseconds.
func micros(s stats.Sample, quantiles ...float64) string {
	cells := make([]string, len(quantiles))
	for i, q := range quantiles {
		cells[i] = fmt.Sprintf("%.0f", float64(s.Quantile(q))/float64(time.Microsecond))
	}
	return strings.Join(cells, " / ")
}
