// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Details prints for each node who holds how much of which GPU, and the sum of all, and then the MIG
// instances, if there are any.
func Details(out io.Writer, t *Table, style Style) error {
	return printTable(out, t, style, detailsByNode, detailsByGPU)
}

func detailsByNode(out io.Writer, t *Table, style Style) error {
	// A tab ends each cell, also the last one.
	closed := func(cells []string) string { return strings.Join(cells, "\t") + "\t\n" }
	var text strings.Builder
	dashes := 0
	for i := range t.Nodes {
		n := &t.Nodes[i]
		columns, rows := holderColumns(n, style, t.withUse), ""
		for j := range n.Holders {
			rows += closed(columns.cells(&n.Holders[j]))
		}
		if i == 0 {
			dashes = len(rows) + detailsLine
		}
		text.WriteString(title(n, style, t.withUse) + "\n" + closed(columns.headers()) + rows + sums(n))
		text.WriteString(strings.Repeat("-", dashes) + "\n")
	}
	text.WriteString("\n\n" + total(t))
	return align(out, text.String())
}

func total(t *Table) string {
	text := fmt.Sprintf("Allocated/Total GPU Memory In Cluster:\t%s (%s)\t\n", t.MemoryGiB, t.MemoryGiB.percent())
	if t.CoresPercent.Total > 0 {
		text += fmt.Sprintf("Allocated/Total GPU Core In Cluster:\t%s (%s)\t\n", t.CoresPercent, t.CoresPercent.percent())
	}
	return text
}

// title is whose the details are.
func title(n *Node, style Style, use bool) string {
	var text strings.Builder
	fmt.Fprintf(&text, "\nNAME:\t%s\nIPADDRESS:\t%s\n", n.Name, n.IPAddress)
	if style.Wide {
		fmt.Fprintf(&text, "MODE:\t%s\nMODEL:\t%s\n", modes(n), models(n))
	}
	if style.Bars {
		for _, c := range n.GPUs {
			fmt.Fprintf(&text, "GPU%d:\t%s\n", c.Index, cell(c.MemoryGiB, true))
		}
	}
	if use {
		fmt.Fprintf(&text, "USED(GiB):\t%s\n", usedGiB(n.usedMiB()))
	}
	return text.String()
}

// holderColumns returns the columns of a node's details with a line for each holder.
func holderColumns(n *Node, style Style, use bool) (c columns[*Holder]) {
	c.add("NAME", func(h *Holder) string { return h.Name() })
	c.add("NAMESPACE", func(h *Holder) string { return h.Namespace })
	ofGPUs := func(header string, cell func(h *Holder, index int) string) {
		for index := range n.columns() {
			c.add(fmt.Sprintf(header, index), func(h *Holder) string { return cell(h, index) })
		}
	}
	ofGPUs("GPU%d(Allocated)", func(h *Holder, index int) string { return fmt.Sprint(h.on(index).MemoryGiB) })
	if use {
		ofGPUs("GPU%d(Used)", (*Holder).usedBy)
	}
	if n.PendingGiB > 0 {
		c.add("Pending(Allocated)", func(h *Holder) string { return fmt.Sprint(h.PendingGiB) })
	}
	if n.CoresPercent.Total > 0 {
		ofGPUs("CORE%d(Allocated)", func(h *Holder, index int) string { return fmt.Sprint(h.on(index).CoresPercent) })
	}
	if style.Wide {
		c.add("ORIGIN", func(h *Holder) string { return string(h.Origin) })
	}
	return c
}

// on returns the holder's share of a GPU.
func (h *Holder) on(index int) Share {
	if i := slices.IndexFunc(h.Shares, func(s Share) bool { return s.GPU == index }); i >= 0 {
		return h.Shares[i]
	}
	return Share{}
}

func sums(n *Node) string {
	text := fmt.Sprintf("Allocated :\t%s (%s)\t\nTotal :\t%d \t\n", n.MemoryGiB.allocated(), n.MemoryGiB.percent(),
		n.MemoryGiB.Total)
	if n.CoresPercent.Total > 0 {
		text += fmt.Sprintf("Core Allocated :\t%s (%s)\t\nCore Total :\t%d \t\n", n.CoresPercent.allocated(),
			n.CoresPercent.percent(), n.CoresPercent.Total)
	}
	return text
}
