// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// healthAddress and metricsAddress are where the controller serves.
const healthAddress, metricsAddress = "127.0.0.1:18081", "127.0.0.1:18481"

// Controller is gpu-compat-controller as a process of this machine.
type Controller struct {
	*Component
	command *exec.Cmd
}

// StartController starts gpu-compat-controller for a cluster, and returns when it does its work. What it prints goes to
// the file log. It ends with the benchmark.
func (c *Cluster) StartController(ctx context.Context, program, kubeconfig, log string, args ...string) (*Controller,
	error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("write the log of the controller: %w", err)
	}
	defer out.Close()
	args = append([]string{"--kubeconfig", kubeconfig, "--identity", "bench", "--health-address", healthAddress,
		"--metrics-address", metricsAddress}, args...)
	k := &Controller{command: exec.Command(program, args...),
		Component: &Component{URL: "http://" + metricsAddress, client: c.Scheduler.client}}
	k.command.Stdout, k.command.Stderr = out, out
	k.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := k.command.Start(); err != nil {
		return nil, fmt.Errorf("start the controller: %w", err)
	}
	health := &Component{URL: "http://" + healthAddress, client: c.Scheduler.client}
	err = wait.PollUntilContextTimeout(ctx, time.Second, Settled, true, func(ctx context.Context) (bool, error) {
		body, err := health.get(ctx, "/readyz")
		if err != nil {
			return false, nil // not ready yet
		}
		defer body.Close()
		report, err := io.ReadAll(body)
		// Without a check, another replica leads.
		return strings.Contains(string(report), "[+]"), err
	})
	if err != nil {
		k.Stop()
		return nil, fmt.Errorf("wait until the controller works, see %s: %w", log, err)
	}
	return k, nil
}

// Stop ends the controller, and returns when it is gone.
func (k *Controller) Stop() {
	// Errors say that it is gone already, or how it ended.
	_ = k.command.Process.Signal(syscall.SIGTERM)
	_ = k.command.Wait()
}
