// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/manifests"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

// errWaiting is that not all pods of a plan fit.
var errWaiting = fmt.Errorf("%w: not all pods would find room", errFindings)

// planOptions are what the command plan is told.
type planOptions struct {
	files     []string
	recursive bool
	// machines are nodes to plan on instead of a cluster, fromACK whether the cluster's pods
	// are planned on nodes that have moved.
	machines []string
	fromACK  bool
}

// newPlan makes the command plan.
func newPlan(o *options) *cobra.Command {
	var p planOptions
	c := o.subcommand(&cobra.Command{
		Use:   "plan -f FILE",
		Short: "Say whether the pods of manifests would find their GPUs, without creating anything",
		Long: "Say where the pods of manifests would land, what would be left, and which would wait and why. Pods are " +
			"placed one after the other, each beside those before it. Whether a pod finds its GPUs is found out by the " +
			"scheduler's own allocator, from what is published and allocated now. What the cluster's policies make of a pod " +
			"and its claims is found out by dry runs of creating them. Nothing is created.\n" +
			"It reads pods, Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs, ResourceClaims, their " +
			"templates, DeviceClasses and namespaces; legacy pods, which ask for GPUs as on ACK, count as what they are " +
			"converted to.\n" +
			"The exit code is 0 if all pods would find room, 2 if some would wait, 1 if it could not be found out, or if all " +
			"that the manifests have was skipped.",
		Example: "  kubectl inspect cgpu plan -f train.yaml\n" +
			"  kubectl inspect cgpu plan -f manifests/ -R -n team-a\n" +
			"  helm template . | kubectl inspect cgpu plan -f - -o json\n" +
			"  kubectl inspect cgpu plan -f train.yaml --machine n1=demo/machines/v100x4.yaml:share\n" +
			"  kubectl inspect cgpu plan --from-ack           # before a migration",
		RunE: func(c *cobra.Command, _ []string) error { return o.plan(c.Context(), p) },
	}, "the namespace of objects that name none; without it, that of the context", outputJSON)
	flags := c.Flags()
	flags.StringSliceVarP(&p.files, "filename", "f", nil, "a file, a directory, or - for what is piped; can be repeated")
	flags.BoolVarP(&p.recursive, "recursive", "R", false, "read directories below those that -f names, too")
	flags.StringArrayVar(&p.machines, "machine", nil, "plan on this node instead of a cluster, "+
		"NAME=FILE[:MODE[:PLACEMENT]], as in n1=demo/machines/v100x4.yaml:share; can be repeated")
	flags.BoolVar(&p.fromACK, "from-ack", false, "plan the cluster's legacy pods, as if all nodes had moved from "+
		"ACK's device plugins to the driver")
	return c
}

func (o *options) plan(ctx context.Context, p planOptions) error {
	switch {
	case len(p.files) == 0 && !p.fromACK:
		return errors.New("name manifests with -f: a file, a directory, or - for what is piped")
	case p.fromACK && len(p.machines) > 0:
		return errors.New("--from-ack plans on a cluster's nodes: leave out --machine")
	}
	// The namespace of the context is there without a cluster, too.
	namespace, _, err := o.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return fmt.Errorf("find out the namespace: %w", err)
	}
	wanted := manifests.Reader{Namespace: namespace}
	if err := wanted.ReadAll(p.files, p.recursive, o.streams.In); err != nil {
		return err
	}
	in, err := o.planInput(ctx, p, wanted.Manifests())
	if err != nil {
		return err
	}
	return o.printPlan(ctx, in)
}

// planInput is the cluster to plan on, and what is planned.
func (o *options) planInput(ctx context.Context, p planOptions, wanted plan.Manifests) (plan.Input, error) {
	if len(p.machines) > 0 {
		in, err := manifests.Machines(p.machines)
		in.Manifests, in.Now = wanted, time.Now()
		return in, err
	}
	reader, err := o.reader()
	if err != nil {
		return plan.Input{}, err
	}
	if p.fromACK {
		return reader.PlanFromACK(ctx, wanted)
	}
	return reader.PlanInput(ctx, wanted)
}

func (o *options) printPlan(ctx context.Context, in plan.Input) error {
	made, err := plan.Of(ctx, in)
	if err != nil {
		return err
	}
	style := inspect.Style{Bars: o.terminal.is}
	if o.terminal.is {
		style.Width, _ = o.terminal.size()
	}
	notes := made.Notes
	if o.output == outputJSON {
		notes = nil // it has them
	}
	if err := o.printNoting(made, func(out io.Writer) error { return made.Print(out, style) }, notes); err != nil {
		return err
	}
	if made.Nothing() {
		return errors.New("nothing was planned: all that the manifests have was skipped")
	}
	switch {
	case made.Waits > 0:
		return errWaiting
	case !made.AllFit():
		return errors.New("whether all pods would find room is not known: nodes were not searched to the end")
	}
	return nil
}
