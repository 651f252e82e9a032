// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/process"
)

// StartController starts gpu-compat-controller for the cluster as a process of this machine, and returns when it does
// its work. What it prints goes to a file beside the program.
func (c *Cluster) StartController(ctx context.Context, program string, args ...string) (stop func(), err error) {
	log := program + ".log"
	health, err := freeAddress()
	if err != nil {
		return nil, err
	}
	started, err := process.Start(log, program, append([]string{"--kubeconfig", c.kubeconfig, "--identity", "bench",
		"--health-address", health, "--metrics-address", "0"}, args...)...)
	if err != nil {
		return nil, err
	}
	stop = func() {
		started.Stop()
		c.processes = c.processes[:1]
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, pods.Settled, true, func(ctx context.Context) (bool, error) {
		select {
		case <-started.Exited:
			return false, started.Gone()
		default:
			return leads(ctx, health), nil
		}
	})
	if err != nil {
		stop()
		return nil, fmt.Errorf("wait until the controller works, see %s: %w", log, err)
	}
	c.processes = append(c.processes, started.PID)
	return stop, nil
}

// freeAddress returns an address of this machine at which nobody listens: another benchmark may run a controller, too.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port for the controller's health checks: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}

// leads reports whether the controller is ready and leads, by its health checks. If its answer lists none, another
// replica leads.
func leads(ctx context.Context, health string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+health+"/readyz", nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	report, err := io.ReadAll(response.Body)
	return err == nil && response.StatusCode == http.StatusOK && strings.Contains(string(report), "[+]")
}
