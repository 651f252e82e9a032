// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// fitting prints the one where its lines fit into a width, else the other. Everything
// fits into a width of 0.
func fitting(out io.Writer, width int, wide, narrow func(io.Writer) error) error {
	if width == 0 {
		return wide(out)
	}
	var text bytes.Buffer
	if err := wide(&text); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		if utf8.RuneCountInString(strings.TrimRight(line, " \n")) > width {
			return narrow(out)
		}
	}
	if _, err := out.Write(text.Bytes()); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}

// summaryByGPU is the summary with a line for each GPU.
func summaryByGPU(out io.Writer, t *Table, style Style) error {
	s := newSummary(t, style)
	header := []string{"NAME", "GPU", "GPU Memory(GiB)"}
	if t.withUse {
		header = append(header, "USED(GiB)")
	}
	if s.cores {
		header = append(header, "GPU Core(%)")
	}
	if style.Wide {
		header = append(header, "MODE", "MODEL")
	}
	var text strings.Builder
	text.WriteString(line(header))
	for i := range t.Nodes {
		n := &t.Nodes[i]
		name := n.Name
		for j := range n.GPUs {
			c := &n.GPUs[j]
			cells := []string{name, fmt.Sprintf("GPU%d", c.Index), cell(c.MemoryGiB, style.Bars)}
			if t.withUse {
				cells = append(cells, usedGiB(c.UsedMiB))
			}
			if s.cores {
				cells = append(cells, cell(c.CoresPercent, style.Bars))
			}
			if style.Wide {
				cells = append(cells, string(c.Mode), c.Model)
			}
			text.WriteString(line(cells))
			name = ""
		}
		if n.PendingGiB > 0 {
			text.WriteString(line([]string{name, "PENDING", pending(n.PendingGiB)}))
		}
		cells := []string{"", "all", n.MemoryGiB.String()}
		if t.withUse {
			cells = append(cells, usedGiB(n.usedMiB()))
		}
		if s.cores {
			cells = append(cells, n.CoresPercent.String())
		}
		text.WriteString(line(cells))
	}
	text.WriteString("\n")
	text.WriteString(s.sums())
	return align(out, text.String())
}

// detailsByGPU are the details with a line for each GPU that somebody holds.
func detailsByGPU(out io.Writer, t *Table, style Style) error {
	var text strings.Builder
	for i := range t.Nodes {
		n := &t.Nodes[i]
		cores := n.CoresPercent.Total > 0
		text.WriteString(title(n, style, t.withUse))
		header := []string{"NAME", "NAMESPACE", "GPU", "GPU Memory(GiB)"}
		if t.withUse {
			header = append(header, "USED(GiB)")
		}
		if cores {
			header = append(header, "GPU Core(%)")
		}
		if style.Wide {
			header = append(header, "ORIGIN")
		}
		text.WriteString("\n" + line(header))
		for _, h := range n.Holders {
			text.WriteString(linesOf(h, cores, t.withUse, style.Wide))
		}
		text.WriteString(sums(n))
		text.WriteString("\n")
	}
	text.WriteString(total(t))
	return align(out, text.String())
}

func linesOf(h Holder, cores, use, wide bool) string {
	type part struct {
		gpu        string
		memory, of int64
		used       string
	}
	parts := make([]part, 0, len(h.Shares)+1)
	for _, s := range h.Shares {
		parts = append(parts, part{fmt.Sprintf("GPU%d", s.GPU), s.MemoryGiB, s.CoresPercent, usedGiB(s.UsedMiB)})
	}
	if h.PendingGiB > 0 {
		parts = append(parts, part{"PENDING", h.PendingGiB, 0, unknownUse})
	}
	var text strings.Builder
	name := []string{h.Name(), h.Namespace}
	for _, p := range parts {
		cells := slices.Concat(name, []string{p.gpu, fmt.Sprint(p.memory)})
		if use {
			cells = append(cells, p.used)
		}
		if cores {
			cells = append(cells, fmt.Sprint(p.of))
		}
		if wide {
			cells = append(cells, string(h.Origin))
		}
		text.WriteString(line(cells))
		name = []string{"", ""}
	}
	return text.String()
}
