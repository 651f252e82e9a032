// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Style is how Summary and Details look. The zero value is, byte by byte, what the
// known tool prints for the same cluster, as long as no GPU is in mode core-mem.
type Style struct {
	// Wide adds modes and GPU models.
	Wide bool
	// Bars draws how full each GPU is, for terminals.
	Bars bool
	// Width, if it is not 0, is how many columns there are: a table that is wider is
	// printed with a line for each GPU instead.
	Width int
}

// The known tool measures its lines in bytes before tabs become spaces, and adds this.
const (
	summaryLine = 20
	detailsLine = 10
)

// absentGPU is what the known tool shows where a node has no GPU of that index.
const absentGPU = "0/0"

// Summary prints a line for each node and the sum of all, and then the MIG instances, if there are any.
func Summary(out io.Writer, t *Table, style Style) error {
	err := fitting(out, style.Width, func(out io.Writer) error { return summaryByNode(out, t, style) },
		func(out io.Writer) error { return summaryByGPU(out, t, style) })
	if err != nil {
		return err
	}
	return printInstances(out, t)
}

func summaryByNode(out io.Writer, t *Table, style Style) error {
	s := newSummary(t, style)
	var text strings.Builder
	text.WriteString(line(s.header()))
	for i := range t.Nodes {
		text.WriteString(line(s.row(&t.Nodes[i], style.Bars)))
	}
	if len(t.Nodes) > 0 {
		text.WriteString(strings.Repeat("-", len(line(s.row(&t.Nodes[0], false)))+summaryLine))
	}
	text.WriteString("\n")
	text.WriteString(s.sums())
	return align(out, text.String())
}

func (s *summary) sums() string {
	t := s.table
	text := fmt.Sprintf("Allocated/Total GPU Memory In Cluster:\n%s (%s)\t\n", t.MemoryGiB, t.MemoryGiB.percent())
	if s.cores {
		text += fmt.Sprintf("Allocated/Total GPU Core In Cluster:\n%s (%s)\t\n", t.CoresPercent, t.CoresPercent.percent())
	}
	return text + s.table.Lost.String()
}

type summary struct {
	table   *Table
	style   Style
	columns int
	cores   bool
	pending bool
}

func newSummary(t *Table, style Style) summary {
	return summary{
		table: t, style: style, columns: t.gpus(), cores: t.CoresPercent.Total > 0,
		pending: slices.ContainsFunc(t.Nodes, func(n Node) bool { return n.PendingGiB > 0 }),
	}
}

func (s *summary) header() []string {
	cells := []string{"NAME", "IPADDRESS"}
	for i := range s.columns {
		cells = append(cells, fmt.Sprintf("GPU%d(Allocated/Total)", i))
	}
	if s.pending {
		cells = append(cells, "PENDING(Allocated)")
	}
	cells = append(cells, "GPU Memory(GiB)")
	if s.table.withUse {
		cells = append(cells, "USED(GiB)")
	}
	if s.cores {
		for i := range s.columns {
			cells = append(cells, fmt.Sprintf("CORE%d(Allocated/Total)", i))
		}
		cells = append(cells, "GPU Core(%)")
	}
	if s.style.Wide {
		cells = append(cells, "MODE", "MODEL")
	}
	return cells
}

func (s *summary) row(n *Node, bars bool) []string {
	cells := []string{n.Name, n.IPAddress}
	amounts := func(of func(*GPU) Amount) {
		row := slices.Repeat([]string{absentGPU}, s.columns)
		for i := range n.GPUs {
			row[n.GPUs[i].Index] = cell(of(&n.GPUs[i]), bars)
		}
		cells = append(cells, row...)
	}
	amounts(func(c *GPU) Amount { return c.MemoryGiB })
	if s.pending {
		cells = append(cells, pending(n.PendingGiB))
	}
	cells = append(cells, n.MemoryGiB.String())
	if s.table.withUse {
		cells = append(cells, usedGiB(n.usedMiB()))
	}
	if s.cores {
		amounts(func(c *GPU) Amount { return c.CoresPercent })
		cells = append(cells, n.CoresPercent.String())
	}
	if s.style.Wide {
		cells = append(cells, modes(n), models(n))
	}
	return cells
}

// pending is how the known tool shows what is on GPUs that are not known.
func pending(gib int64) string {
	if gib == 0 {
		return ""
	}
	return fmt.Sprint(gib)
}

// Bars stand below each other behind amounts up to 100/100, and leave the columns no wider than
// their headers.
const (
	barWidth    = 10
	amountWidth = 7
)

func cell(a Amount, bars bool) string {
	if !bars || a.Total == 0 {
		return a.String()
	}
	full := int(a.part() * barWidth)
	// What is not empty looks so.
	if a.part() > 0 {
		full = max(full, 1)
	}
	return fmt.Sprintf("%-*s %s%s", amountWidth, a, strings.Repeat("█", full), strings.Repeat("░", barWidth-full))
}

// modes is the mode of a node, and of a dynamic one those of its GPUs that are
// held, as in "dynamic(GPU0=share,GPU3=mps)".
func modes(n *Node) string {
	if n.Mode != mode.Dynamic {
		return string(n.Mode)
	}
	var holds []string
	for _, c := range n.GPUs {
		if c.Mode != mode.Dynamic {
			holds = append(holds, fmt.Sprintf("GPU%d=%s", c.Index, c.Mode))
		}
	}
	if len(holds) == 0 {
		return string(n.Mode)
	}
	return fmt.Sprintf("%s(%s)", n.Mode, strings.Join(holds, ","))
}

// models lists the GPU models of a node in the order of its GPUs, with how many
// GPUs follow each other of each, as in "NVIDIA-A10*2,Tesla-T4*2".
func models(n *Node) string {
	var runs []string
	for start, end := 0, 0; start < len(n.GPUs); start = end {
		for end = start + 1; end < len(n.GPUs) && n.GPUs[end].Model == n.GPUs[start].Model; end++ {
		}
		name := n.GPUs[start].Model
		if name == "" {
			name = "unknown"
		}
		runs = append(runs, fmt.Sprintf("%s*%d", name, end-start))
	}
	return strings.Join(runs, ",")
}

func line(cells []string) string { return strings.Join(cells, "\t") + "\n" }

// align turns tabs into columns two spaces apart, as the known tool does.
func align(out io.Writer, text string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}
