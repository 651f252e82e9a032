// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Print writes the answer as text.
func (a *Answer) Print(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s.\n", a.Headline)
	for _, asked := range a.Asked {
		fmt.Fprintf(&text, "Asked: %s\n", asked)
	}
	if a.Gang != nil {
		for _, line := range a.Gang.text() {
			fmt.Fprintln(&text, line)
		}
	}
	a.printHas(&text)
	a.printNodes(&text)
	if len(a.Help) > 0 {
		text.WriteString("\nWhat would help:\n")
		for _, help := range a.Help {
			fmt.Fprintf(&text, "- %s\n", help)
		}
	}
	if len(a.Said) > 0 {
		text.WriteString("\n" + strings.Join(a.Said, "\n") + "\n")
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func (a *Answer) printHas(text *strings.Builder) {
	for _, d := range a.Has {
		fmt.Fprintf(text, "\n%s\n", strings.Join(d.GPUs, ", "))
		row := func(name, value string) {
			if value != "" {
				fmt.Fprintf(text, "  %-11s%s\n", name+":", value)
			}
		}
		row("claim", d.Claim+", request "+d.Request)
		row("has", d.Amount)
		row("mode", d.Mode)
		row("isolation", d.Isolation)
		for _, uses := range d.Uses {
			row("uses", uses)
		}
		for _, wrong := range d.Wrong {
			row("but", wrong)
		}
	}
}

func (a *Answer) printNodes(text *strings.Builder) {
	if len(a.Nodes) == 0 {
		return
	}
	fmt.Fprintf(text, "\nLooked at %s with %s:\n", number(len(a.Nodes)+a.More, "node"), number(a.GPUs, "GPU"))
	table := tabwriter.NewWriter(text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tGPUS\tLACKS")
	for _, n := range a.Nodes {
		lacks := "nothing: it has room"
		if len(n.Lacks) > 0 {
			lacks = strings.Join(n.Lacks, "; ")
		}
		fmt.Fprintf(table, "%s\t%d\t%s\n", n.Name, n.GPUs, lacks)
	}
	table.Flush() //nolint:errcheck // A strings.Builder takes everything.
	if a.More > 0 {
		fmt.Fprintf(text, "and %s that lack as much or more\n", number(a.More, "node"))
	}
}

func number(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	if strings.HasSuffix(of, "s") {
		of += "e"
	}
	return fmt.Sprintf("%d %ss", n, of)
}
