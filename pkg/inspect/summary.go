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
	return printTable(out, t, style, summaryByNode, summaryByGPU)
}

// printTable prints the form that fits the width of the style, and then the MIG instances, if there are any.
func printTable(out io.Writer, t *Table, style Style, byNode, byGPU func(io.Writer, *Table, Style) error) error {
	err := fitting(out, style.Width, func(out io.Writer) error { return byNode(out, t, style) },
		func(out io.Writer) error { return byGPU(out, t, style) })
	if err != nil {
		return err
	}
	return printInstances(out, t)
}

func summaryByNode(out io.Writer, t *Table, style Style) error {
	columns := nodeColumns(t, style)
	var text strings.Builder
	text.WriteString(line(columns.headers()))
	for i := range t.Nodes {
		text.WriteString(line(columns.cells(&t.Nodes[i])))
	}
	if len(t.Nodes) > 0 {
		style.Bars = false
		text.WriteString(strings.Repeat("-", len(line(nodeColumns(t, style).cells(&t.Nodes[0])))+summaryLine))
	}
	text.WriteString("\n" + clusterSums(t))
	return align(out, text.String())
}

// clusterSums returns the lines below a summary.
func clusterSums(t *Table) string {
	text := fmt.Sprintf("Allocated/Total GPU Memory In Cluster:\n%s (%s)\t\n", t.MemoryGiB, t.MemoryGiB.percent())
	if t.CoresPercent.Total > 0 {
		text += fmt.Sprintf("Allocated/Total GPU Core In Cluster:\n%s (%s)\t\n", t.CoresPercent, t.CoresPercent.percent())
	}
	return text + t.Lost.String()
}

// columns are the columns of a table with a line for each T.
type columns[T any] []column[T]

type column[T any] struct {
	header string
	cell   func(T) string
}

func (c *columns[T]) add(header string, cell func(T) string) {
	*c = append(*c, column[T]{header, cell})
}

func (c columns[T]) headers() []string {
	cells := make([]string, 0, len(c))
	for _, column := range c {
		cells = append(cells, column.header)
	}
	return cells
}

func (c columns[T]) cells(of T) []string {
	cells := make([]string, 0, len(c))
	for _, column := range c {
		cells = append(cells, column.cell(of))
	}
	return cells
}

// nodeColumns returns the columns of a summary with a line for each node.
func nodeColumns(t *Table, style Style) (c columns[*Node]) {
	c.add("NAME", func(n *Node) string { return n.Name })
	c.add("IPADDRESS", func(n *Node) string { return n.IPAddress })
	ofGPUs := func(header string, amount func(*GPU) Amount) {
		for index := range t.gpus() {
			c.add(fmt.Sprintf(header, index), func(n *Node) string {
				i := slices.IndexFunc(n.GPUs, func(g GPU) bool { return g.Index == index })
				if i < 0 {
					return absentGPU
				}
				return cell(amount(&n.GPUs[i]), style.Bars)
			})
		}
	}
	ofGPUs("GPU%d(Allocated/Total)", func(g *GPU) Amount { return g.MemoryGiB })
	if slices.ContainsFunc(t.Nodes, func(n Node) bool { return n.PendingGiB > 0 }) {
		c.add("PENDING(Allocated)", func(n *Node) string { return pending(n.PendingGiB) })
	}
	c.add("GPU Memory(GiB)", func(n *Node) string { return n.MemoryGiB.String() })
	if t.withUse {
		c.add("USED(GiB)", func(n *Node) string { return usedGiB(n.usedMiB()) })
	}
	if t.CoresPercent.Total > 0 {
		ofGPUs("CORE%d(Allocated/Total)", func(g *GPU) Amount { return g.CoresPercent })
		c.add("GPU Core(%)", func(n *Node) string { return n.CoresPercent.String() })
	}
	if style.Wide {
		c.add("MODE", modes)
		c.add("MODEL", models)
	}
	return c
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
