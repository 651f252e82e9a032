// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/defragment"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling/moves"
)

// movesMost is how many moves are planned where nobody says how many.
const movesMost = 10

// goal is what moves are for.
type goal struct {
	pod       string
	gpu, node bool
	most      int
}

// newDefragment makes the command defragment.
func newDefragment(o *options) *cobra.Command {
	var g goal
	c := o.subcommand(&cobra.Command{
		Use:   "defragment [--for pod/NAME | --gpu | --node]",
		Short: "Show which pods should move to other nodes, and the gain",
		Long: "Show which pods should move to other nodes to make room for a pod that waits, to free a GPU or a node, or " +
			"to leave fewer GPUs fragmented. The command evicts no pod.\n" +
			"The scheduler's own allocator decides whether a pod finds its GPUs on another node. Only pods of ReplicaSets and " +
			"StatefulSets move, and only as their PodDisruptionBudgets allow.",
		Example: "  kubectl inspect cgpu defragment\n" +
			"  kubectl inspect cgpu defragment --for pod/train -n team-a\n" +
			"  kubectl inspect cgpu defragment --node --moves 20 -o json",
		RunE: func(c *cobra.Command, _ []string) error { return o.defragment(c.Context(), g) },
	}, "the namespace of the pod that --for names; without it, that of the context", outputJSON)
	flags := c.Flags()
	flags.StringVar(&g.pod, "for", "", "make room for pod/NAME, which waits")
	flags.BoolVar(&g.gpu, "gpu", false, "free a GPU")
	flags.BoolVar(&g.node, "node", false, "free all GPUs of a node")
	flags.IntVar(&g.most, "moves", movesMost, "how many pods move at most")
	register(c, "for", o.completeObject)
	c.MarkFlagsMutuallyExclusive("for", "gpu", "node")
	return c
}

// question is what the flags ask; name is that of a pod.
func (g *goal) question() (q moves.Question, name string, err error) {
	q.Most = g.most
	switch {
	case g.most < 1:
		return q, "", fmt.Errorf("--moves %d: not 1 or more", g.most)
	case g.gpu:
		q.Goal = moves.GPU
	case g.node:
		q.Goal = moves.Node
	case g.pod != "":
		kind, name, err := objectOf([]string{g.pod})
		if err == nil && kind != kindPod {
			err = errors.New("--for makes room for a pod: write pod/NAME")
		}
		return q, name, err
	}
	return q, "", nil
}

func (o *options) defragment(ctx context.Context, g goal) error {
	q, name, err := g.question()
	if err != nil {
		return err
	}
	reader, err := o.reader()
	if err != nil {
		return err
	}
	c, pod, notes, err := reader.Moves(ctx, name)
	if err != nil {
		return err
	}
	q.For = pod
	plan, err := c.Plan(ctx, q)
	if err != nil {
		return err
	}
	report := defragment.Of(plan, notes)
	return o.printNoting(report, report.Print, notes)
}
