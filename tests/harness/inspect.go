// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// Inspect runs `kubectl inspect cgpu` as kubectl does and returns what it prints,
// and its errors. It fails the test where the program fails.
func (c *Cluster) Inspect(t *testing.T, arguments ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := c.TryInspect(t, arguments...)
	expect.NoError(t, err)
	return stdout, stderr
}

// TryInspect is Inspect for the conditions of Eventually: one call that fails does not end
// the test.
func (c *Cluster) TryInspect(t *testing.T, arguments ...string) (stdout, stderr string, err error) {
	t.Helper()
	command := c.inspect(t, arguments...)
	var out, errOut bytes.Buffer
	command.Stdout, command.Stderr = &out, &errOut
	if err := command.Run(); err != nil {
		return "", "", fmt.Errorf("%s: %w\n%s%s", command, err, out.String(), errOut.String())
	}
	return out.String(), errOut.String(), nil
}

func (c *Cluster) inspect(t *testing.T, arguments ...string) *exec.Cmd {
	t.Helper()
	program, err := findProgram("kubectl-inspect-cgpu")
	expect.NoError(t, err)
	arguments = append([]string{"--kubeconfig", filepath.Join(c.Dir, "kubeconfig")}, arguments...)
	return exec.CommandContext(t.Context(), program, arguments...)
}

// Output is what a program has printed so far.
type Output struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write adds to the output.
func (o *Output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

// String is the output so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// InternalIP is the address of a node.
func (c *Cluster) InternalIP(t *testing.T, node string) string {
	t.Helper()
	n := Get(t, c.Client.CoreV1().Nodes(), node)
	for _, address := range n.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	t.Fatalf("node %s has no internal address", node)
	return ""
}

// Inspected is what `kubectl inspect cgpu` came to, whatever its exit status.
type Inspected struct {
	Stdout, Stderr string
	Status         int
}

// InspectStatus runs it, with the text on its standard input.
func (c *Cluster) InspectStatus(t *testing.T, stdin string, arguments ...string) Inspected {
	t.Helper()
	command := c.inspect(t, arguments...)
	var out, errOut bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(stdin), &out, &errOut
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", command, err)
	}
	return Inspected{out.String(), errOut.String(), command.ProcessState.ExitCode()}
}
