// SPDX-License-Identifier: Apache-2.0

// Package steps is what a run does on a machine's GPUs: pods with claims, in each mode of
// a node, whose containers run CUDA programs.
package steps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/kube"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/locate"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// Session is the cluster that the steps run on, and the machine.
type Session struct {
	// Kubectl is in the namespace of the run's pods.
	Kubectl kube.Kubectl
	// Node is the cluster's only node.
	Node string
	// Image is that of the pods: tests/suites/gpu/testdata/cudaprobe.c and gpu-probe.
	Image   string
	Machine *gpu.Machine
	// Simulated says that the machine's GPUs are: its NVML knows of no program.
	Simulated bool
	Driver    *locate.Driver
	// MPS is the directory that supervisor and plugin share, as it is seen from here.
	MPS mps.Dir
	// Limits are the memory limits of the GPU that steps are about; where the driver has none, NoLimits
	// says why.
	Limits   MemoryLimits
	NoLimits string
	// RestartKubelet kills the node's kubelet, and returns when its successor has reported.
	RestartKubelet func(context.Context) error
	// Patience is how long to wait for what usually takes seconds.
	Patience time.Duration
	// Progress is told what is being done, a line at a time.
	Progress func(format string, args ...any)
}

// Group are the steps on a node in one mode.
type Group struct {
	// Name is the heading of the group's table.
	Name string
	// Label is the value of the node's label ack.node.gpu.schedule.
	Label string
	Needs []Need
	Steps []Step
}

// Step is one thing that is tried.
type Step struct {
	Name string
	// Limit is how long it may take.
	Limit time.Duration
	Needs []Need
	Run   func(context.Context, *run) error
}

// Need says why a step cannot be tried on a machine; empty if it can.
type Need func(*Session) string

func needsMPS(s *Session) string {
	if s.Driver.MPSControl == "" {
		return "the driver has no nvidia-cuda-mps-control"
	}
	return ""
}

func needsTwoGPUs(s *Session) string {
	if len(s.Machine.GPUs) < 2 {
		return "the machine has one GPU"
	}
	return ""
}

func needsGPU(s *Session) string {
	if s.Simulated {
		return "the simulated driver does not know which programs run"
	}
	return ""
}

func needsSMI(s *Session) string {
	if s.Driver.SMI == "" {
		return "the driver has no nvidia-smi"
	}
	return ""
}

// run is a step while it is tried.
type run struct {
	*Session
	rows []report.Row
}

// check is a row that is right or wrong.
func (r *run) check(what, granted, observed string, ok bool) {
	result := report.Passed
	if !ok {
		result = report.Failed
	}
	r.rows = append(r.rows, report.Row{What: what, Granted: granted, Observed: observed, Result: result})
}

// seen is a row that is neither.
func (r *run) seen(what, granted, observed string) {
	r.rows = append(r.rows, report.Row{What: what, Granted: granted, Observed: observed, Result: report.Seen})
}

// took is how long the check took that was last.
func (r *run) took(since time.Time) {
	if len(r.rows) > 0 {
		r.rows[len(r.rows)-1].Took = time.Since(since)
	}
}

// gpu is the GPU that steps for one GPU are about.
func (s *Session) gpu() gpu.GPU { return s.Machine.GPUs[0] }

// capMiB is the limit of a share of so many units.
func (s *Session) capMiB(units int64) int64 {
	return (s.gpu().MemoryMiB - s.gpu().ReservedMiB) * units / s.gpu().MemoryUnits()
}

// switchLimit is how long a node may take to change its mode, with MPS daemons to start.
const switchLimit = 90 * time.Second

// cleanLimit is how long pods and claims may take to go.
const cleanLimit = 45 * time.Second

// Try tries the groups one after the other. Neither a step that fails nor one that hangs
// is the end of the others; what the end of ctx leaves no time for is not run.
func (s *Session) Try(ctx context.Context, groups []Group) []report.Table {
	var tables []report.Table
	for _, g := range groups {
		tables = append(tables, report.Table{Mode: g.Name, Rows: s.tryGroup(ctx, g)})
	}
	return tables
}

func (s *Session) tryGroup(ctx context.Context, g Group) []report.Row {
	if why := unmet(s, g.Needs); why != "" {
		return []report.Row{{What: "all of " + g.Name, Observed: why, Result: report.NotRun}}
	}
	rows := s.tryStep(ctx, Step{
		Name: "the node changes to this mode", Limit: switchLimit,
		Run: func(ctx context.Context, r *run) error { return r.changeMode(ctx, g.Label) },
	})
	if failed(rows) {
		return append(rows, notRun(g.Steps, "the node is not in this mode")...)
	}
	for _, step := range g.Steps {
		rows = append(rows, s.tryStep(ctx, step)...)
	}
	return rows
}

func failed(rows []report.Row) bool {
	for _, row := range rows {
		if row.Result == report.Failed || row.Result == report.NotRun {
			return true
		}
	}
	return false
}

func notRun(steps []Step, why string) []report.Row {
	var rows []report.Row
	for _, step := range steps {
		rows = append(rows, report.Row{What: step.Name, Observed: why, Result: report.NotRun})
	}
	return rows
}

func unmet(s *Session, needs []Need) string {
	for _, need := range needs {
		if why := need(s); why != "" {
			return why
		}
	}
	return ""
}

func (s *Session) tryStep(ctx context.Context, step Step) []report.Row {
	if ctx.Err() != nil {
		return notRun([]Step{step}, "the time of the run was over")
	}
	if why := unmet(s, step.Needs); why != "" {
		return notRun([]Step{step}, why)
	}
	s.Progress("  %s", step.Name)
	stepCtx, cancel := context.WithTimeoutCause(
		ctx,
		step.Limit,
		fmt.Errorf("the step's time of %s is over", step.Limit),
	)
	defer cancel()
	began := time.Now()
	r := &run{Session: s}
	err := step.Run(stepCtx, r)
	r.conclude(step.Name, time.Since(began), err)
	if err != nil || failed(r.rows) {
		r.explain(ctx)
	}
	if ctx.Err() != nil {
		// All goes with the cluster.
		return r.rows
	}
	// The next one finds the GPUs free, also where the time of this one is over.
	if err := s.clean(ctx); err != nil {
		r.rows = append(
			r.rows,
			report.Row{
				What:     step.Name + ": its pods and claims go",
				Observed: err.Error(),
				Result:   report.Failed,
				Details:  err.Error(),
			},
		)
	}
	for _, row := range r.rows {
		if row.Result == report.Failed {
			s.Progress("    FAILED %s: %s", row.What, row.Observed)
		}
	}
	return r.rows
}

// conclude adds the row of a step that broke off, or that has none of its own.
func (r *run) conclude(name string, took time.Duration, err error) {
	switch {
	case err != nil:
		r.rows = append(
			r.rows,
			report.Row{What: name, Observed: err.Error(), Result: report.Failed, Details: err.Error(), Took: took},
		)
	case len(r.rows) == 0:
		r.rows = append(r.rows, report.Row{What: name, Result: report.Passed, Took: took})
	}
}

// explain adds to the first failure what a person would look at.
func (r *run) explain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for i := range r.rows {
		if r.rows[i].Result != report.Failed {
			continue
		}
		for _, args := range [][]string{
			{"describe", "pods"},
			{"get", "resourceclaims,resourceslices", "--output", "wide"},
			{"--namespace", "kube-system", "logs", "--selector", "app.kubernetes.io/component=gpu-kubelet-plugin",
				"--tail", "15"},
			{"--namespace", "kube-system", "logs", "--selector", "app.kubernetes.io/component=gpu-mps-supervisor",
				"--tail", "15"},
		} {
			// What cannot be had is not shown.
			out, _ := r.Kubectl.Run(ctx, args...)
			r.rows[i].Details += "\n" + out
		}
		return
	}
}

// clean deletes what a step has made, and waits until it is gone.
func (s *Session) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	_, podsErr := s.Kubectl.Run(ctx, "delete", "pods", "--all", "--grace-period=1")
	_, templatesErr := s.Kubectl.Run(ctx, "delete", "resourceclaimtemplates", "--all")
	if err := errors.Join(podsErr, templatesErr); err != nil {
		return err
	}
	return kube.Until(ctx, cleanLimit, "all claims to go", func(ctx context.Context) error {
		var claims kube.List[kube.Claim]
		if err := s.Kubectl.Get(ctx, &claims, "resourceclaims"); err != nil {
			return err
		}
		if len(claims.Items) > 0 {
			return fmt.Errorf("there are %d, the first is %s", len(claims.Items), claims.Items[0].Metadata.Name)
		}
		return nil
	})
}
