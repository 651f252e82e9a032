// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/driver"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/preflight"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
)

const (
	nodeName = "gpu"
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
	driver  *driver.Driver
	cgroups preflight.Cgroups
}

func (b *bundle) path(name string) string { return filepath.Join(b.payload, name) }

// clusterDir has a short name: sockets lie below it.
func (b *bundle) clusterDir() string { return b.path("c") }

// toPutBack has what is to be put back of MIG, as long as something is.
func (b *bundle) toPutBack() string { return b.path("mig.json") }

func (b *bundle) version() string {
	content, err := os.ReadFile(b.path("VERSION"))
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(content))
}

func progress(line string) { fmt.Fprintln(os.Stderr, line) }

func (o options) run(ctx context.Context) (err error) {
	started := time.Now()
	b := &bundle{options: o}
	facts, g := b.inspect(ctx)
	if problems := preflight.Problems(facts); len(problems) > 0 {
		return errors.Join(&refusedError{problems}, b.removeUnused(facts))
	}
	r := report.Report{Simulated: b.simulated != "", GPUs: summary(g.machine), Started: started, Facts: b.facts()}
	progress(fmt.Sprintf("%s: a cluster comes up, then each mode is tried; at most %s in all", r.GPUs, o.limit))

	handed := b.handedDown()
	tried, stop := context.WithDeadlineCause(ctx, started.Add(o.limit-reserve), errors.New("the time of the run was over"))
	// Whoever has a GPU open can keep its MIG mode from changing.
	if ret := g.lib.Shutdown(); ret != nvml.SUCCESS {
		progress("NVML could not be closed: " + ret.Error())
	}
	setUp, up := b.setUp(tried)
	r.Tables = []report.Table{setUp}
	var testsErr error
	if up {
		var tests report.Tests
		tests, testsErr = b.test(tried)
		r.Facts, r.Tables = append(r.Facts, tests.Facts...), append(r.Tables, tests.Tables...)
	}
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
	err = errors.Join(testsErr, putBackErr)
	if n := r.Count(report.Failed); n > 0 {
		err = errors.Join(fmt.Errorf("%d checks have failed: see %s", n, o.report), err)
	}
	return err
}

// removeUnused removes what ./run has unpacked for a run that does not take place, but not
// the programs of one that is under way.
func (b *bundle) removeUnused(facts preflight.Facts) error {
	if facts.Earlier != "" {
		return nil
	}
	return removeUnpacked(b.payload, os.RemoveAll)
}

// setUp brings the cluster up and installs the driver, and reports whether tests can be run then.
func (b *bundle) setUp(ctx context.Context) (table report.Table, up bool) {
	table.Mode = "set-up"
	for _, part := range []struct {
		name string
		do   func(context.Context) error
		// fatal says that nothing can be tried without it.
		fatal bool
	}{
		{"the cluster comes up", b.up, true},
		{"the driver is installed, as it is shipped", b.install, true},
		// Legacy pods need it.
		{"gpu-compat-controller is ready", b.controllerReady, false},
	} {
		began := time.Now()
		progress("  " + part.name)
		partCtx, cancel := context.WithTimeoutCause(ctx, setUpLimit, fmt.Errorf("%s were not enough", setUpLimit))
		err := part.do(partCtx)
		cancel()
		row := report.Row{What: part.name, Result: report.Passed, Took: time.Since(began)}
		if err != nil {
			progress("    FAILED " + err.Error())
			row.Result, row.Observed = report.Failed, err.Error()
			row.Details = err.Error() + "\n" + b.lookAround(ctx)
		}
		table.Rows = append(table.Rows, row)
		if err != nil && part.fatal {
			table.Rows = append(table.Rows, report.Row{What: "all else", Observed: part.name + ": failed",
				Result: report.NotRun})
			return table, false
		}
	}
	return table, true
}

// test runs the tests of tests/suites/hardware on the cluster.
func (b *bundle) test(ctx context.Context) (report.Tests, error) {
	left := time.Hour
	if end, ends := ctx.Deadline(); ends {
		// Time to say where they were.
		left = max(time.Second, time.Until(end)-2*time.Second)
	}
	cmd := exec.CommandContext(ctx, b.path("bin/test2json"), "-t", "-p", "hardware",
		b.path("lib/ld.so"), "--library-path", b.path("lib"), b.path("bin/hardware.test"),
		"-test.v=test2json", "-test.run="+pattern(b.only), "-test.timeout="+left.String())
	cmd.Env = append(os.Environ(), "E2E_CLUSTER_DIR="+b.clusterDir(), "GPUSHARE_NODE="+nodeName,
		"GPUSHARE_DRIVER_ROOT="+b.driver.Root, "GPUSHARE_SIMULATED="+b.simulated,
		"GPUSHARE_MAY_CHANGE_MIG="+b.mayChangeMIG, "GPUSHARE_MIG_RECORD="+b.toPutBack(),
		// With a proxy in the environment the API server would be looked for there.
		"NO_PROXY=*", "no_proxy=*")
	cmd.Dir = b.payload
	// The tests are test2json's child.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return report.Tests{}, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return report.Tests{}, fmt.Errorf("run the tests: %w", err)
	}
	tests, err := report.Read(out, progress)
	// That tests have failed is in their rows.
	_ = cmd.Wait()
	return tests, err
}

// pattern chooses the tests of these modes, as the report calls them; of all where there are none.
func pattern(only []string) string {
	const all = "^TestHardware$"
	if len(only) == 0 {
		return all
	}
	var names []string
	for _, name := range only {
		names = append(names, regexp.QuoteMeta(strings.ReplaceAll(name, " ", "_")))
	}
	return all + "/^(" + strings.Join(names, "|") + ")$"
}

// program runs a program of the unpacked directory.
func (b *bundle) program(ctx context.Context, input, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, b.path(name), args...)
	// What clusters of one machine share lies there, unless others use it already. kubectl keeps a cache in the home
	// directory, which is to go with the cluster.
	cmd.Env = append(os.Environ(), "GPUSHARE_CACHE="+cmp.Or(os.Getenv("GPUSHARE_CACHE"), b.path("shared")),
		"KUBECONFIG="+filepath.Join(b.clusterDir(), "kubeconfig"), "HOME="+b.clusterDir(), "NO_PROXY=*", "no_proxy=*")
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = b.payload, strings.NewReader(input), time.Second
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err,
			strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

func (b *bundle) kubectl(ctx context.Context, args ...string) error {
	_, err := b.program(ctx, "", "programs/kubernetes/kubectl", args...)
	return err
}

// cluster runs the program that brings clusters up (tests/cluster).
func (b *bundle) cluster(ctx context.Context, args ...string) error {
	_, err := b.program(ctx, "", "bin/cluster",
		append([]string{"--dir", b.clusterDir(), "--programs", b.path("programs")}, args...)...)
	return err
}

func (b *bundle) up(ctx context.Context) error {
	args := []string{"up", "--no-simulate", "--nodes", nodeName + "=:default", "--image", b.path("images/driver.tar"),
		"--image", b.path("images/cuda.tar")}
	for _, dir := range b.driver.Mounts() {
		args = append(args, "--mount", dir)
	}
	return b.cluster(ctx, args...)
}

// install applies the manifests as a user does, after the settings that say where the
// machine has its NVIDIA driver.
func (b *bundle) install(ctx context.Context) error {
	settings := b.driver.Settings()
	if b.simulated != "" {
		settings["SYSFS_ROOT"] = "/host" + b.sysfs()
	}
	configured, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": settings,
		"metadata": map[string]string{"name": "gpu-kubelet-plugin", "namespace": "kube-system"}})
	if err != nil {
		return err
	}
	if _, err := b.program(ctx, string(configured), "programs/kubernetes/kubectl", "apply", "-f", "-"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"apply", "-f", b.path("driver.yaml")},
		{"--namespace", "kube-system", "rollout", "status", "daemonset/gpu-kubelet-plugin", "--timeout=110s"},
		{"--namespace", "kube-system", "wait", "daemonset/gpu-mps-supervisor",
			"--for=jsonpath={.status.numberAvailable}=1", "--timeout=110s"},
	} {
		if err := b.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// hostNetwork is the controller where pods can have no network of their own: the kernel
// may lack what that takes.
const hostNetwork = `{"spec":{"replicas":1,"template":{"spec":{"hostNetwork":true}}}}`

// controllerReady waits for the controller. If it does not come up as it is shipped, it is
// put on the machine's network, so that what needs it is tried all the same.
func (b *bundle) controllerReady(ctx context.Context) error {
	const deployment = "deployment/gpu-compat-controller"
	err := b.kubectl(ctx, "--namespace", "kube-system", "rollout", "status", deployment, "--timeout=60s")
	if err == nil {
		return nil
	}
	err = fmt.Errorf("it is put on the machine's network, because as it is shipped it was not ready in time: %w", err)
	if patchErr := b.kubectl(ctx, "--namespace", "kube-system", "patch", deployment, "--patch",
		hostNetwork); patchErr != nil {
		return errors.Join(err, patchErr)
	}
	return errors.Join(err, b.kubectl(ctx, "--namespace", "kube-system", "rollout", "status", deployment, "--timeout=40s"))
}

// lookAround is what a person would look at where the cluster does not come to be.
func (b *bundle) lookAround(ctx context.Context) (text string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, args := range [][]string{
		{"get", "pods", "--all-namespaces", "--output", "wide"},
		{"get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"},
		{"--namespace", "kube-system", "logs", "--selector", "app.kubernetes.io/component=gpu-kubelet-plugin", "--tail",
			"20"},
	} {
		out, err := b.program(ctx, "", "programs/kubernetes/kubectl", args...)
		if err != nil {
			return text
		}
		text += out + "\n"
	}
	return text
}
