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

// gpuLine is a line for a GPU of a node, or for all of them where gpu is nil.
type gpuLine struct {
	name string
	node *Node
	gpu  *GPU
}

// gpuColumns returns the columns of a summary with a line for each GPU. Only lines of single GPUs fill the last two of
// a wide one.
func gpuColumns(t *Table, style Style) (c columns[gpuLine]) {
	c.add("NAME", func(l gpuLine) string { return l.name })
	c.add("GPU", func(l gpuLine) string {
		if l.gpu == nil {
			return "all"
		}
		return fmt.Sprintf("GPU%d", l.gpu.Index)
	})
	amount := func(header string, ofGPU func(*GPU) Amount, ofNode func(*Node) Amount) {
		c.add(header, func(l gpuLine) string {
			if l.gpu == nil {
				return ofNode(l.node).String()
			}
			return cell(ofGPU(l.gpu), style.Bars)
		})
	}
	amount("GPU Memory(GiB)", func(g *GPU) Amount { return g.MemoryGiB }, func(n *Node) Amount { return n.MemoryGiB })
	if t.withUse {
		c.add("USED(GiB)", func(l gpuLine) string {
			if l.gpu == nil {
				return usedGiB(l.node.usedMiB())
			}
			return usedGiB(l.gpu.UsedMiB)
		})
	}
	if t.CoresPercent.Total > 0 {
		amount("GPU Core(%)", func(g *GPU) Amount { return g.CoresPercent }, func(n *Node) Amount { return n.CoresPercent })
	}
	return c
}

// summaryByGPU prints the summary with a line for each GPU.
func summaryByGPU(out io.Writer, t *Table, style Style) error {
	columns := gpuColumns(t, style)
	wide := slices.Clone(columns)
	if style.Wide {
		wide.add("MODE", func(l gpuLine) string { return string(l.gpu.Mode) })
		wide.add("MODEL", func(l gpuLine) string { return l.gpu.Model })
	}
	var text strings.Builder
	text.WriteString(line(wide.headers()))
	for i := range t.Nodes {
		n := &t.Nodes[i]
		name := n.Name
		for j := range n.GPUs {
			text.WriteString(line(wide.cells(gpuLine{name, n, &n.GPUs[j]})))
			name = ""
		}
		if n.PendingGiB > 0 {
			text.WriteString(line([]string{name, "PENDING", pending(n.PendingGiB)}))
		}
		text.WriteString(line(columns.cells(gpuLine{"", n, nil})))
	}
	text.WriteString("\n" + clusterSums(t))
	return align(out, text.String())
}

// shareLine is a line for what a holder has of one GPU.
type shareLine struct {
	name, namespace, gpu string
	share                Share
	origin               Origin
}

// shareColumns returns the columns of a node's details with a line for each GPU that somebody holds.
func shareColumns(n *Node, style Style, use bool) (c columns[shareLine]) {
	c.add("NAME", func(l shareLine) string { return l.name })
	c.add("NAMESPACE", func(l shareLine) string { return l.namespace })
	c.add("GPU", func(l shareLine) string { return l.gpu })
	c.add("GPU Memory(GiB)", func(l shareLine) string { return fmt.Sprint(l.share.MemoryGiB) })
	if use {
		c.add("USED(GiB)", func(l shareLine) string { return usedGiB(l.share.UsedMiB) })
	}
	if n.CoresPercent.Total > 0 {
		c.add("GPU Core(%)", func(l shareLine) string { return fmt.Sprint(l.share.CoresPercent) })
	}
	if style.Wide {
		c.add("ORIGIN", func(l shareLine) string { return string(l.origin) })
	}
	return c
}

// detailsByGPU are the details with a line for each GPU that somebody holds.
func detailsByGPU(out io.Writer, t *Table, style Style) error {
	var text strings.Builder
	for i := range t.Nodes {
		n := &t.Nodes[i]
		columns := shareColumns(n, style, t.withUse)
		text.WriteString(title(n, style, t.withUse) + "\n" + line(columns.headers()))
		for _, h := range n.Holders {
			of := shareLine{name: h.Name(), namespace: h.Namespace, origin: h.Origin}
			for _, s := range h.Shares {
				of.gpu, of.share = fmt.Sprintf("GPU%d", s.GPU), s
				text.WriteString(line(columns.cells(of)))
				of.name, of.namespace = "", ""
			}
			if h.PendingGiB > 0 {
				of.gpu, of.share = "PENDING", Share{MemoryGiB: h.PendingGiB}
				text.WriteString(line(columns.cells(of)))
			}
		}
		text.WriteString(sums(n) + "\n")
	}
	text.WriteString(total(t))
	return align(out, text.String())
}
