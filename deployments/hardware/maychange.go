// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/cut"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/steps"
)

// putBackLimit is how long it may take to put MIG mode back. A GPU of seven instances takes some ten seconds.
const putBackLimit = time.Minute

// toPutBack has what is to be put back of MIG, as long as something is.
func (b *bundle) toPutBack() string { return b.path("mig.json") }

// chooseCut finds the GPU that --may-change-mig names, if it does.
func (b *bundle) chooseCut(g *gpus) error {
	if b.mayChangeMIG == "" {
		return nil
	}
	if err := cut.Has(g.lib); err != nil {
		return err
	}
	chosen, err := cut.Choose(b.mayChangeMIG, g.machine)
	if err != nil {
		return err
	}
	b.cut = cut.New(g.lib, b.driver.NVML, chosen, cmp.Or(b.simulated, "/"))
	return nil
}

// tryCut switches MIG mode on, asks the driver what cannot be known without, and tries pods with instances. It comes
// last, with none of the driver's programs on the GPUs while the mode is switched: what has a GPU open can keep it from
// changing. Without a session there is no cluster, and only the driver is asked.
func (b *bundle) tryCut(ctx context.Context, session *steps.Session) []report.Table {
	if b.cut == nil {
		return nil
	}
	table := report.Table{Mode: fmt.Sprintf("MIG GPU %d", b.cut.Index)}
	if len(b.only) > 0 && !slices.Contains(b.only, table.Mode) {
		return nil
	}
	if ctx.Err() != nil {
		table.Rows = []report.Row{{What: "all of " + table.Mode, Observed: "the time of the run was over",
			Result: report.NotRun}}
		return []report.Table{table}
	}
	progress("  %s: what its driver says", table.Mode)
	table.Rows = b.cutRows(ctx, session)
	return []report.Table{table}
}

func (b *bundle) cutRows(ctx context.Context, session *steps.Session) []report.Row {
	if session != nil {
		withdrawn := b.part("the driver lets go of the GPUs", func() error {
			return b.withdraw(ctx, session.Kubectl)
		})
		if failed(withdrawn) {
			return []report.Row{withdrawn}
		}
	}
	rows, ready := b.cut.SwitchOn(ctx, b.toPutBack())
	if !ready {
		return rows
	}
	asked, small := b.cut.Ask(ctx)
	rows = append(rows, asked...)
	if small == "" {
		return rows
	}
	return append(rows, b.podRows(ctx, session, small)...)
}

// podRows tries pods that have instances of the profile made for them.
func (b *bundle) podRows(ctx context.Context, session *steps.Session, profile string) []report.Row {
	why := ""
	switch {
	case session == nil:
		why = "there is no cluster"
	case ctx.Err() != nil:
		why = "the time of the run was over"
	}
	if why != "" {
		return []report.Row{{What: "pods with MIG instances", Observed: why, Result: report.NotRun}}
	}
	installed := b.part("the driver is installed with MIG_INSTANCES=dynamic", func() error {
		if err := session.Relabel(ctx); err != nil {
			return err
		}
		// The manifests name their namespaces.
		kubectl := session.Kubectl.In("")
		if err := b.configure(ctx, kubectl, map[string]string{"MIG_INSTANCES": "dynamic"}); err != nil {
			return err
		}
		return b.deploy(ctx, kubectl)
	})
	rows := []report.Row{installed}
	if failed(installed) {
		return rows
	}
	return append(rows, session.TryInstances(ctx, steps.Cut{GPU: b.cut.GPU, Profile: profile, Instances: b.cut})...)
}

func failed(row report.Row) bool { return row.Result == report.Failed }

// part is a row about what has to be done before others can be tried.
func (b *bundle) part(what string, do func() error) report.Row {
	progress("  %s", what)
	began := time.Now()
	row := report.Row{What: what, Result: report.Passed}
	if err := do(); err != nil {
		progress("    FAILED %v", err)
		row.Result, row.Observed, row.Details = report.Failed, err.Error(), err.Error()
	}
	row.Took = time.Since(began)
	return row
}

// putBackMIG is also called when the run's own context has ended, and by ./run down.
func (b *bundle) putBackMIG(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), putBackLimit)
	defer cancel()
	return cut.PutBack(ctx, b.toPutBack())
}
