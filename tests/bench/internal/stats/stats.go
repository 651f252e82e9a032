// SPDX-License-Identifier: Apache-2.0

// Package stats sums up what was measured.
package stats

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// Sample is a series of measurements.
type Sample []time.Duration

// Quantile is the smallest measurement that a share q, 0 to 1, of all does not
// exceed; 0 of an empty sample.
func (s Sample) Quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Minus is the sample's differences to another one, pair by pair. The longer
// one's rest is left out.
func (s Sample) Minus(other Sample) Sample {
	out := make(Sample, min(len(s), len(other)))
	for i := range out {
		out[i] = s[i] - other[i]
	}
	return out
}

// Summary writes several quantiles of the sample as one cell of a table, in
// milliseconds.
func (s Sample) Summary(quantiles ...float64) string {
	if len(s) == 0 {
		return "–"
	}
	cells := make([]string, len(quantiles))
	for i, q := range quantiles {
		cells[i] = Milliseconds(s.Quantile(q))
	}
	return strings.Join(cells, " / ") + " ms"
}

// Milliseconds writes a duration with as many places as are worth reading.
func Milliseconds(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if math.Abs(ms) < 99.5 {
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}

// Ratio writes a : b.
func Ratio(a, b float64) string {
	if b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}

// Row is one line of the benchmark's table. An empty cell is written as a dash.
type Row struct {
	Measure, Product, Trivial string
	// NVIDIA is NVIDIA's driver. Its column is left out where no row has it.
	NVIDIA              string
	Base, Ratio, Target string
}

// WriteTable writes the rows in Markdown.
func WriteTable(w io.Writer, rows []Row) error {
	withNVIDIA := slices.ContainsFunc(rows, func(r Row) bool { return r.NVIDIA != "" })
	head := Row{Measure: "measure", Product: "gpushare", Trivial: "trivial driver",
		NVIDIA: "NVIDIA's driver", Base: "without a driver",
		Ratio: "gpushare : trivial", Target: "target"}
	var table strings.Builder
	for i, r := range slices.Concat([]Row{head}, rows) {
		cells := []string{r.Measure, r.Product, r.Trivial, r.Base, r.Ratio, r.Target}
		if withNVIDIA {
			cells = slices.Insert(cells, 3, r.NVIDIA)
		}
		for _, cell := range cells {
			table.WriteString("| " + cmp.Or(cell, "–") + " ")
		}
		table.WriteString("|\n")
		if i == 0 {
			table.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
		}
	}
	_, err := io.WriteString(w, table.String())
	return err
}
