// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/cut"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/kube"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/locate"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/preflight"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/steps"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

const (
	nodeName  = "gpu"
	namespace = "gpu-run"
	podImage  = "localhost/gpu-cuda:latest"
	// neededMiB is what a run takes beside what is unpacked: images, and what etcd and
	// logs grow to.
	neededMiB = 1200
	// setUpLimit is how long the cluster and the driver may take to be there.
	setUpLimit = 2 * time.Minute
	// reserve is what is kept of the time to clean up.
	reserve = 30 * time.Second
)

// bundle is what was unpacked, and what a run has found.
type bundle struct {
	options
	driver  *locate.Driver
	cgroups preflight.Cgroups
	// cut is the GPU that may be cut into MIG instances; nil if none may.
	cut *cut.GPU
}

func newBundle(o options) *bundle { return &bundle{options: o} }

func (b *bundle) path(name string) string { return filepath.Join(b.payload, name) }

// clusterDir has a short name: sockets lie below it.
func (b *bundle) clusterDir() string { return b.path("c") }

func (b *bundle) version() string {
	content, err := os.ReadFile(b.path("VERSION"))
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(content))
}

// sysfs is where a simulated node has its own; empty on a real one.
func (b *bundle) sysfs() string {
	if b.simulated == "" {
		return ""
	}
	return filepath.Join(b.simulated, "sys")
}

func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (o options) run(ctx context.Context) (err error) {
	started := time.Now()
	b := newBundle(o)
	facts, g := b.inspect(ctx)
	if problems := preflight.Problems(facts); len(problems) > 0 {
		return errors.Join(&refusedError{problems}, b.removeUnused(facts))
	}
	r := report.Report{Simulated: b.simulated != "", GPUs: summary(g.machine), Started: started}
	progress("%s: a cluster comes up, then each mode is tried; at most %s in all", r.GPUs, o.limit)

	handed := b.handedDown()
	tried, stop := context.WithTimeoutCause(
		ctx,
		o.limit-reserve-time.Since(started),
		errors.New("the time of the run was over"),
	)
	// Before anything is cut.
	partitions := b.partitions(tried, g)
	r.Tables = append(b.try(tried, g), partitions)
	r.Facts = b.facts(tried, g)
	stop()
	if b.logs != "" {
		if err := b.saveLogs(); err != nil {
			r.Afterwards = append(r.Afterwards, "the logs could not be saved: "+err.Error())
		}
	}
	told, putBackErr := b.cleanUp(ctx, handed)
	r.Afterwards = append(append(r.Afterwards, told...), g.putBack()...)
	r.Took = time.Since(started)
	text := r.Markdown()
	fmt.Print(text)
	if err := os.WriteFile(o.report, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if n := r.Count(report.Failed); n > 0 {
		return errors.Join(fmt.Errorf("%d checks have failed: see %s", n, o.report), putBackErr)
	}
	return putBackErr
}

// removeUnused removes what ./run has unpacked for a run that does not take place, but not
// the programs of one that is under way.
func (b *bundle) removeUnused(facts preflight.Facts) error {
	if facts.Earlier != "" {
		return nil
	}
	return removeUnpacked(b.payload, os.RemoveAll)
}

// try brings the cluster up and tries the groups on it.
func (b *bundle) try(ctx context.Context, g *gpus) []report.Table {
	kubectl := kube.Kubectl{
		Program: b.path("programs/kubernetes/kubectl"),
		Config:  filepath.Join(b.clusterDir(), "kubeconfig"),
	}
	setUp := report.Table{Mode: "set-up"}
	for _, part := range []struct {
		name string
		do   func(context.Context, kube.Kubectl) error
		// fatal says that nothing can be tried without it.
		fatal bool
	}{
		{"the cluster comes up", b.up, true},
		{"the driver is installed, as it is shipped", b.install, true},
		{"the driver offers the GPUs", b.offers(len(g.machine.GPUs)), true},
		// Legacy pods need it.
		{"gpu-compat-controller is ready", b.controllerReady, false},
	} {
		began := time.Now()
		progress("  %s", part.name)
		partCtx, cancel := context.WithTimeoutCause(ctx, setUpLimit, fmt.Errorf("%s were not enough", setUpLimit))
		err := part.do(partCtx, kubectl)
		cancel()
		row := report.Row{What: part.name, Result: report.Passed, Took: time.Since(began)}
		if err != nil {
			progress("    FAILED %v", err)
			row.Result, row.Observed = report.Failed, err.Error()
			row.Details = err.Error() + "\n" + b.lookAround(ctx, kubectl)
		}
		setUp.Rows = append(setUp.Rows, row)
		if err != nil && part.fatal {
			return append([]report.Table{setUp}, b.tryCut(ctx, nil)...)
		}
	}
	session := b.session(kubectl, g)
	tables := append([]report.Table{setUp}, session.Try(ctx, b.groups())...)
	return append(tables, b.tryCut(ctx, session)...)
}

func (b *bundle) session(kubectl kube.Kubectl, g *gpus) *steps.Session {
	return &steps.Session{
		Kubectl: kubectl.In(namespace), Node: nodeName, Image: podImage, Machine: g.machine, Driver: b.driver,
		Simulated: b.simulated != "",
		Limits:    g.memoryLimits(), NoLimits: g.noMemoryLimits(),
		RestartKubelet: func(ctx context.Context) error { return b.cluster(ctx, "node", "restart-kubelet", nodeName) },
		MPS:            mps.Dir(filepath.Join(b.clusterDir(), "nodes", nodeName, mps.DefaultHostDir)),
		Patience:       45 * time.Second, Progress: progress,
	}
}

// groups are those that the command line does not leave out.
func (b *bundle) groups() []steps.Group {
	groups := steps.Groups()
	if len(b.only) == 0 {
		return groups
	}
	return slices.DeleteFunc(groups, func(g steps.Group) bool { return !slices.Contains(b.only, g.Name) })
}

// cluster runs the program that brings clusters up (tests/cluster).
func (b *bundle) cluster(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(
		ctx,
		b.path("bin/cluster"),
		append([]string{"--dir", b.clusterDir(), "--programs", b.path("programs")}, args...)...)
	// What clusters of one machine share lies there, unless others use it already.
	cmd.Env = append(os.Environ(), "GPUSHARE_CACHE="+cmp.Or(os.Getenv("GPUSHARE_CACHE"), b.path("shared")))
	cmd.Dir = b.payload
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cluster %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (b *bundle) up(ctx context.Context, _ kube.Kubectl) error {
	args := []string{
		"up",
		"--no-simulate",
		"--nodes",
		nodeName + "=:default",
		"--image",
		b.path("images/driver.tar"),
		"--image",
		b.path("images/cuda.tar"),
	}
	for _, dir := range b.driver.Mounts() {
		args = append(args, "--mount", dir)
	}
	return b.cluster(ctx, args...)
}

// offers waits until so many GPUs are in ResourceSlices.
func (b *bundle) offers(count int) func(context.Context, kube.Kubectl) error {
	return func(ctx context.Context, k kube.Kubectl) error {
		return kube.Until(ctx, setUpLimit, "the GPUs in a ResourceSlice", func(ctx context.Context) error {
			devices, err := k.Devices(ctx, v1alpha1.DriverName)
			if err != nil {
				return err
			}
			if len(devices) != count {
				return fmt.Errorf("there are %d, want %d", len(devices), count)
			}
			return nil
		})
	}
}

// hostNetwork is the controller where pods can have no network of their own: the kernel
// may lack what that takes.
const hostNetwork = `{"spec":{"replicas":1,"template":{"spec":{"hostNetwork":true}}}}`

// controllerReady waits for the controller. If it does not come up as it is shipped, it is
// put on the machine's network, so that what needs it is tried all the same.
func (b *bundle) controllerReady(ctx context.Context, k kube.Kubectl) error {
	const deployment = "deployment/gpu-compat-controller"
	system := k.In("kube-system")
	_, err := system.Run(ctx, "rollout", "status", deployment, "--timeout=60s")
	if err == nil {
		return nil
	}
	err = fmt.Errorf("it is put on the machine's network, because as it is shipped it was not ready in time: %w", err)
	if _, patchErr := system.Run(ctx, "patch", deployment, "--patch", hostNetwork); patchErr != nil {
		return errors.Join(err, patchErr)
	}
	_, againErr := system.Run(ctx, "rollout", "status", deployment, "--timeout=40s")
	return errors.Join(err, againErr)
}

// lookAround is what a person would look at where the cluster does not come to be.
func (b *bundle) lookAround(ctx context.Context, k kube.Kubectl) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	var text string
	for _, args := range [][]string{
		{"get", "pods", "--all-namespaces", "--output", "wide"},
		{"get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"},
		{"--namespace", "kube-system", "logs", "--selector", "app.kubernetes.io/component=gpu-kubelet-plugin", "--tail",
			"20"},
	} {
		out, err := k.Run(ctx, args...)
		if err != nil {
			return text
		}
		text += out + "\n"
	}
	return text
}

// clusterFacts are what the node says of itself.
func (b *bundle) clusterFacts(ctx context.Context) []report.Fact {
	k := kube.Kubectl{
		Program: b.path("programs/kubernetes/kubectl"),
		Config:  filepath.Join(b.clusterDir(), "kubeconfig"),
	}
	var node struct {
		Status struct {
			NodeInfo struct {
				KubeletVersion          string `json:"kubeletVersion"`
				ContainerRuntimeVersion string `json:"containerRuntimeVersion"`
			} `json:"nodeInfo"`
		} `json:"status"`
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := k.Get(ctx, &node, "node", nodeName); err != nil {
		return nil
	}
	return []report.Fact{
		{
			Name:  "Kubernetes",
			Value: node.Status.NodeInfo.KubeletVersion + ", " + node.Status.NodeInfo.ContainerRuntimeVersion,
		},
	}
}
