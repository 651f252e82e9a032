// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
)

// lacksMost is how many nodes are shown of those that lack something for a pod.
const lacksMost = 8

// Print prints the plan as text: the pods, why some wait, and the table of what is left.
func (p *Plan) Print(out io.Writer, style inspect.Style) error {
	var text strings.Builder
	total, unsearched := p.Fits+p.Waits+p.Unsearched, ""
	if p.Unsearched > 0 {
		unsearched = fmt.Sprintf("; of %d it is not known, as nodes were not searched to the end", p.Unsearched)
	}
	switch {
	case p.Nothing():
		text.WriteString("Nothing was planned: all that the manifests have was skipped.\n")
	case total == 0:
		text.WriteString("There are no pods to plan.\n")
	case p.AllFit() && total == 1:
		text.WriteString("The pod would find room.\n")
	case p.AllFit():
		fmt.Fprintf(&text, "All %d pods would find room.\n", total)
	default:
		fmt.Fprintf(&text, "%d of %d pods would find room, %d would wait%s.\n", p.Fits, total, p.Waits, unsearched)
	}
	p.printPods(&text)
	p.printWaiting(&text)
	for _, s := range p.Skipped {
		fmt.Fprintf(&text, "\nSkipped: %s (%s): %s.\n", s.Object, s.Source, s.Why)
	}
	if len(p.Nodes) > 0 && total > 0 {
		text.WriteString("\nWith these pods:\n")
		if err := inspect.Summary(&text, p.left, style); err != nil {
			return err
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func (p *Plan) printPods(text *strings.Builder) {
	if len(p.Pods) == 0 {
		return
	}
	text.WriteString("\n")
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tPOD\tNODE\tDEVICES")
	for _, pod := range p.Pods {
		node, devices := pod.Node, strings.Join(pod.Devices, ", ")
		switch {
		case pod.Unsearched:
			node, devices = "-", "not searched to the end"
		case node == "":
			node, devices = "-", "would wait"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", pod.Namespace, pod.Name, node, cmp.Or(devices, "-"))
	}
	table.Flush() //nolint:errcheck // A strings.Builder takes everything.
}

// printWaiting says why pods wait, once for those of a workload that wait for the same.
func (p *Plan) printWaiting(text *strings.Builder) {
	for i, pod := range p.Pods {
		if pod.Node != "" || i > 0 && p.Pods[i-1].sameReason(pod) {
			continue
		}
		n := 1
		for i+n < len(p.Pods) && pod.sameReason(p.Pods[i+n]) {
			n++
		}
		what := "pod " + pod.Name
		if n > 1 {
			what = fmt.Sprintf("%d pods", n)
		}
		fmt.Fprintf(text, "\n%s -n %s (%s), %s: %s.\n", pod.Workload, pod.Namespace, pod.Source, what, pod.Why)
		for _, asked := range pod.Asked {
			fmt.Fprintf(text, "  asked: %s\n", asked)
		}
		for _, lack := range pod.Lacks[:min(len(pod.Lacks), lacksMost)] {
			fmt.Fprintf(text, "  node %s (%d GPUs): %s\n", lack.Node, lack.GPUs,
				cmp.Or(strings.Join(lack.Lacks, "; "), "it has room for one"))
		}
		if more := len(pod.Lacks) - lacksMost; more > 0 {
			fmt.Fprintf(text, "  and %d nodes that lack as much or more\n", more)
		}
		for _, help := range pod.Help {
			fmt.Fprintf(text, "  would help: %s\n", help)
		}
	}
}

func (p Pod) sameReason(other Pod) bool {
	return p.Node == "" && other.Node == "" && p.Workload == other.Workload && p.Namespace == other.Namespace &&
		p.Source == other.Source && p.Why == other.Why
}
