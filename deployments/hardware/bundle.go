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
	"slices"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/driver"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/modes"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

const (
	nodeName = "gpu"
	// setUpLimit is how long the cluster and the driver may take to be there.
	setUpLimit = 2 * time.Minute
	// reserve is what is kept of the time to clean up.
	reserve = 30 * time.Second
)

// bundle is what was unpacked, and what a run has found.
type bundle struct {
	options
	driver *driver.Driver
	gpus   []gpu.GPU
	// found are the modes to be put back.
	found  modes.Record
	report report.Report
}

func (b *bundle) path(name string) string { return filepath.Join(b.payload, name) }

// clusterDir has a short name: sockets lie below it.
func (b *bundle) clusterDir() string { return b.path("c") }

// toPutBack is the file of the modes that GPUs were found in.
func (b *bundle) toPutBack() string { return b.path("modes.json") }

func progress(line string) { fmt.Fprintln(os.Stderr, line) }

func (b *bundle) run(ctx context.Context) error {
	started := time.Now()
	if problems := b.inspect(ctx).problems(); len(problems) > 0 {
		return errors.Join(refusedError(problems), removeUnpacked(b.payload, os.RemoveAll))
	}
	if err := modes.In(b.toPutBack()).Store(b.found); err != nil {
		return fmt.Errorf("write down the modes of the GPUs, of which none was changed: %w", err)
	}
	b.report = report.Report{Simulated: b.simulated != "", Title: b.title(), Started: started}
	r := &b.report
	progress(fmt.Sprintf("%s: a cluster comes up, then each mode is tried; at most %s in all", r.Title, b.limit))

	tried, stop := context.WithDeadlineCause(ctx, started.Add(b.limit-reserve), errors.New("the time of the run was over"))
	var testsErr, logsErr error
	if b.setUp(tried) {
		testsErr = b.test(tried)
	}
	stop()
	if b.logs != "" {
		logsErr = b.saveLogs()
	}
	told, cleanUpErr := b.cleanUp(ctx)
	r.Afterwards = append(told, fmt.Sprintf("the run took %.1f s", time.Since(started).Seconds()))
	err := errors.Join(testsErr, logsErr, cleanUpErr)
	if err != nil {
		r.Afterwards = append(r.Afterwards, err.Error())
	}
	text := r.Markdown()
	fmt.Print(text)
	if writeErr := os.WriteFile(b.page, []byte(text), 0o644); writeErr != nil {
		err = errors.Join(err, fmt.Errorf("write the report: %w", writeErr))
	}
	return errors.Join(failures(r), err)
}

// title is how the report calls the GPUs, and the driver under test.
func (b *bundle) title() string {
	var names []string
	for _, g := range b.gpus {
		if !slices.Contains(names, g.ProductName) {
			names = append(names, g.ProductName)
		}
	}
	version, err := os.ReadFile(b.path("VERSION"))
	if err != nil {
		version = []byte("unknown")
	}
	return fmt.Sprintf("%d × %s, driver under test %s", len(b.gpus), strings.Join(names, " and "),
		strings.TrimSpace(string(version)))
}

// setUp brings the cluster up and installs the driver, and reports whether tests can be run then.
func (b *bundle) setUp(ctx context.Context) (up bool) {
	const mode = "set-up"
	step := func(name string, do func(context.Context) error) bool {
		began := time.Now()
		progress("  " + mode + ": " + name)
		ctx, cancel := context.WithTimeoutCause(ctx, setUpLimit, fmt.Errorf("%s were not enough", setUpLimit))
		defer cancel()
		row := report.Row{What: name, Result: report.Passed}
		if err := do(ctx); err != nil {
			row.Result, row.Observed = report.Failed, err.Error()
			b.report.Failures += name + ": " + err.Error() + "\n" + b.lookAround(ctx)
		}
		row.Took = time.Since(began)
		b.report.Add(mode, row)
		return row.Result == report.Passed
	}
	if !step("the cluster comes up", b.up) || !step("the driver is installed, as it is shipped", b.install) {
		b.report.Add(mode, report.Row{What: "all else", Observed: "that failed", Result: report.NotRun})
		return false
	}
	// Only pods as on ACK need it.
	step("gpu-compat-controller is ready", b.controllerReady)
	return true
}

// test runs the tests of tests/suites/hardware on the cluster, until shortly before the deadline of the context. They
// add to the report, and say on standard output why they failed.
func (b *bundle) test(ctx context.Context) error {
	end, _ := ctx.Deadline()
	// Time to say where they were.
	left := max(time.Second, time.Until(end)-2*time.Second)
	file := report.In(b.path("report.json"))
	if err := file.Store(b.report); err != nil {
		return fmt.Errorf("keep the report for the tests: %w", err)
	}
	cmd := exec.CommandContext(ctx, b.path("lib/ld.so"), "--library-path", b.path("lib"), b.path("bin/hardware.test"),
		"-test.run="+pattern(b.only), "-test.timeout="+left.String())
	cmd.Env = append(os.Environ(), "E2E_CLUSTER_DIR="+b.clusterDir(), "GPUSHARE_NODE="+nodeName,
		"GPUSHARE_DRIVER_ROOT="+b.driver.Root, "GPUSHARE_SIMULATED="+b.simulated, "GPUSHARE_REPORT="+file.Path,
		"GPUSHARE_CUT="+b.found.Cut,
		// With a proxy in the environment the API server would be looked for there.
		"NO_PROXY=*", "no_proxy=*")
	var said strings.Builder
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = b.payload, &said, os.Stderr, time.Second
	ended := cmd.Run()
	told, _, err := file.Load()
	if err != nil {
		return fmt.Errorf("read what the tests have seen: %w", err)
	}
	told.Failures += said.String()
	told.End(ended)
	b.report = told
	return nil
}

// pattern chooses the tests of these modes, as the report calls them; of all where there are none.
func pattern(only []string) string {
	const all = "^TestHardware$"
	if len(only) == 0 {
		return all
	}
	return all + "/^(" + strings.ReplaceAll(regexp.QuoteMeta(strings.Join(only, "\n")), "\n", "|") + ")$"
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
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "),
			cmp.Or(context.Cause(ctx), err), strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// system runs kubectl on what is in kube-system.
func (b *bundle) system(ctx context.Context, input string, args ...string) error {
	_, err := b.program(ctx, input, "programs/kubernetes/kubectl",
		append([]string{"--namespace", "kube-system"}, args...)...)
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

// install applies the manifests as a user does, after the settings that say where the machine has its NVIDIA driver.
func (b *bundle) install(ctx context.Context) error {
	settings := b.driver.Settings()
	if b.simulated != "" {
		settings["SYSFS_ROOT"] = "/host" + b.found.Driver.SysFS
	}
	configured, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": settings,
		"metadata": map[string]string{"name": "gpu-kubelet-plugin"}})
	if err != nil {
		return err
	}
	if err := b.system(ctx, string(configured), "apply", "-f", "-"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"apply", "-f", b.path("driver.yaml")},
		{"rollout", "status", "daemonset/gpu-kubelet-plugin", "--timeout=110s"},
		{"wait", "daemonset/gpu-mps-supervisor", "--for=jsonpath={.status.numberAvailable}=1", "--timeout=110s"},
	} {
		if err := b.system(ctx, "", args...); err != nil {
			return err
		}
	}
	return nil
}

// hostNetwork is the controller where pods can have no network of their own: the kernel
// may lack what that takes.
const hostNetwork = `{"spec":{"replicas":1,"template":{"spec":{"hostNetwork":true}}}}`

// controllerReady waits for the controller. If it does not come up as it is shipped, it is put on the machine's
// network, so that what needs it is tried all the same.
func (b *bundle) controllerReady(ctx context.Context) error {
	const deployment = "deployment/gpu-compat-controller"
	err := b.system(ctx, "", "rollout", "status", deployment, "--timeout=60s")
	if err == nil {
		return nil
	}
	err = fmt.Errorf("it is put on the machine's network, because as it is shipped it was not ready in time: %w", err)
	return errors.Join(err, b.system(ctx, "", "patch", deployment, "--patch", hostNetwork),
		b.system(ctx, "", "rollout", "status", deployment, "--timeout=40s"))
}

// lookAround is what a person would look at where the cluster does not come to be.
func (b *bundle) lookAround(ctx context.Context) (text string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, args := range []string{
		"get pods,events --all-namespaces --output wide --sort-by=.metadata.creationTimestamp",
		"--namespace kube-system logs --selector app.kubernetes.io/component=gpu-kubelet-plugin --tail 20",
	} {
		out, err := b.program(ctx, "", "programs/kubernetes/kubectl", strings.Fields(args)...)
		if err != nil {
			return text
		}
		text += out + "\n"
	}
	return text
}
