// SPDX-License-Identifier: Apache-2.0

// Package defragment tells in words, or for programs, which pods should be on other nodes, and what that would bring.
// What moves package scheduling/moves plans. It is pure.
package defragment

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling/moves"
)

// Report is the answer. Its JSON form is an interface: fields are added, never renamed.
type Report struct {
	Moves []Move `json:"moves"`
	Gain  Gain   `json:"gain"`
	// Why is why there are no moves.
	Why   string   `json:"why,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// Move is a pod that should be on another node.
type Move struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	From      string `json:"from"`
	To        string `json:"to"`
}

// Gain is what the moves bring: GPUs and nodes more that are free, how much less of the GPUs is fragmented, and the
// pods that find room then and wait now.
type Gain struct {
	FreeGPUs   int      `json:"freeGPUs"`
	FreeNodes  int      `json:"freeNodes"`
	Fragmented float64  `json:"fragmentedLess"`
	Waiting    []string `json:"waiting,omitempty"`
}

// Of is the report on a plan.
func Of(p *moves.Plan, notes []string) *Report {
	r := &Report{Moves: []Move{}, Why: p.Why, Notes: notes,
		Gain: Gain{FreeGPUs: p.GPUs, FreeNodes: p.Nodes, Fragmented: math.Round(100*p.Saved) / 100}}
	for _, m := range p.Moves {
		r.Moves = append(r.Moves, Move{m.Pod.Namespace, m.Pod.Name, m.From, m.To})
	}
	for _, pod := range p.Waiting {
		r.Gain.Waiting = append(r.Gain.Waiting, pod.Namespace+"/"+pod.Name)
	}
	return r
}

// Print prints the report as text.
func (r *Report) Print(out io.Writer) error {
	if len(r.Moves) == 0 {
		_, err := fmt.Fprintf(out, "No moves: %s.\n", r.Why)
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tPOD\tFROM\tTO")
	for _, m := range r.Moves {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", m.Namespace, m.Pod, m.From, m.To)
	}
	fmt.Fprintf(table, "\nGain: free GPUs %+d, free nodes %+d, fragmented GPUs %+.1f\n", r.Gain.FreeGPUs,
		r.Gain.FreeNodes, -r.Gain.Fragmented)
	if len(r.Gain.Waiting) > 0 {
		fmt.Fprintf(table, "Then find room: %s\n", strings.Join(r.Gain.Waiting, ", "))
	}
	return table.Flush()
}
