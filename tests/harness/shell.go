// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness/terminal"
)

// Shell is the environment in which commands find the cluster's kubectl and its plugin; bin is a
// directory of the test's own, the first in its PATH.
func (c *Cluster) Shell(t *testing.T) (environment []string, bin string) {
	t.Helper()
	tool, err := findProgram("cluster")
	expect.NoError(t, err)
	bin = t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' --dir '%s' kubectl \"$@\"\n", tool, c.Dir)
	expect.NoError(t, os.WriteFile(filepath.Join(bin, "kubectl"), []byte(script), 0o700))
	return append(os.Environ(), "PATH="+bin+":"+filepath.Dir(tool)+":"+os.Getenv("PATH"),
		"KUBECONFIG="+filepath.Join(c.Dir, "kubeconfig")), bin
}

// Kubectl returns what a user who types this sees. An error has all of that, too.
func (c *Cluster) Kubectl(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	return c.tool(Context(t), append([]string{"kubectl"}, arguments...)...)
}

// Kubectl is the cluster's in the namespace.
func (n *Namespace) Kubectl(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	return n.Cluster.Kubectl(t, append([]string{"--namespace", n.Name}, arguments...)...)
}

// MustKubectl is Kubectl for what has to succeed.
func (n *Namespace) MustKubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	output, err := n.Kubectl(t, arguments...)
	expect.NoError(t, err)
	return output
}

// Terminal is a terminal in which a user has the cluster's kubectl.
type Terminal struct {
	*terminal.Screen
	environment []string
}

// Terminal makes a terminal of a size.
func (c *Cluster) Terminal(t *testing.T, columns, rows int) *Terminal {
	t.Helper()
	environment, _ := c.Shell(t)
	// Whatever the tests run in, this one has colours, and its own size.
	environment = append(environment, "TERM=xterm-256color", "NO_COLOR=", "COLUMNS=")
	return &Terminal{terminal.NewScreen(columns, rows), environment}
}

// Start starts a command line there.
func (o *Terminal) Start(t *testing.T, line string) *terminal.Session {
	t.Helper()
	command := exec.CommandContext(t.Context(), "bash", "-c", line)
	command.Env = o.environment
	session, err := terminal.Start(command, o.Screen)
	expect.NoError(t, err)
	return session
}

// Run runs a command line there, and fails the test where that fails.
func (o *Terminal) Run(t *testing.T, line string) {
	t.Helper()
	if err := o.Start(t, line).Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, o.Text())
	}
}

// Shows waits until it shows what a condition says.
func (o *Terminal) Shows(t *testing.T, what string, condition func(text string, program bool) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	expect.NoErrorf(t, o.WaitFor(ctx, condition), "waiting for the terminal to show %s", what)
}
