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
	err := fitting(out, style.Width, func(out io.Writer) error { return detailsByNode(out, t, style) },
		func(out io.Writer) error { return detailsByGPU(out, t, style) })
	if err != nil {
		return err
	}
	return printInstances(out, t)
}

func detailsByNode(out io.Writer, t *Table, style Style) error {
	var text strings.Builder
	dashes := 0
	for i := range t.Nodes {
		n := &t.Nodes[i]
		rows := holders(n, style, t.withUse)
		if i == 0 {
			dashes = len(rows) + detailsLine
		}
		text.WriteString(heading(n, style, t.withUse))
		text.WriteString(rows)
		text.WriteString(sums(n))
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

func heading(n *Node, style Style, use bool) string {
	var text strings.Builder
	text.WriteString(title(n, style, use))
	text.WriteString("\nNAME\tNAMESPACE\t")
	for i := range n.columns() {
		fmt.Fprintf(&text, "GPU%d(Allocated)\t", i)
	}
	if use {
		for i := range n.columns() {
			fmt.Fprintf(&text, "GPU%d(Used)\t", i)
		}
	}
	if n.PendingGiB > 0 {
		text.WriteString("Pending(Allocated)\t")
	}
	if n.CoresPercent.Total > 0 {
		for i := range n.columns() {
			fmt.Fprintf(&text, "CORE%d(Allocated)\t", i)
		}
	}
	if style.Wide {
		text.WriteString("ORIGIN\t")
	}
	text.WriteString("\n")
	return text.String()
}

func holders(n *Node, style Style, use bool) string {
	var text strings.Builder
	for _, h := range n.Holders {
		fmt.Fprintf(&text, "%s\t%s\t", h.Name(), h.Namespace)
		text.WriteString(amounts(n, h, func(s Share) int64 { return s.MemoryGiB }))
		if use {
			for i := range n.columns() {
				text.WriteString(h.usedBy(i) + "\t")
			}
		}
		if n.PendingGiB > 0 {
			fmt.Fprintf(&text, "%d\t", h.PendingGiB)
		}
		if n.CoresPercent.Total > 0 {
			text.WriteString(amounts(n, h, func(s Share) int64 { return s.CoresPercent }))
		}
		if style.Wide {
			fmt.Fprintf(&text, "%s\t", h.Origin)
		}
		text.WriteString("\n")
	}
	return text.String()
}

// amounts are the cells of what a holder has of each GPU.
func amounts(n *Node, h Holder, of func(Share) int64) string {
	var text strings.Builder
	for index := range n.columns() {
		var amount int64
		if i := slices.IndexFunc(h.Shares, func(s Share) bool { return s.GPU == index }); i >= 0 {
			amount = of(h.Shares[i])
		}
		fmt.Fprintf(&text, "%d\t", amount)
	}
	return text.String()
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
