// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package pages runs the commands of the documents as they stand there, page by page, as a
// reader would: docs/install.md first, which installs the driver by its chart. run.sh makes the
// cluster. Which blocks it runs, and what it chooses for the words that stand for a reader's
// own, is in tests/suites/docs/commands; a test of tests/suites/docs holds that each block is run or says
// why not.
package pages

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/suites/docs/commands"
)

const (
	checkout = "../../.."
	// installation is the page whose commands install the driver.
	installation = "docs/install.md"
	// patience is how long one block may take, and again for how long one that only looks is tried
	// again.
	patience, again = 5 * time.Minute, time.Minute
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

// prelude has what the blocks find: grep that finds nothing is no failure to a reader, and pods
// by the names that the choices have.
const prelude = `grep() { command grep "$@" || [ $? -eq 1 ]; }
first() { kubectl "$@" -o jsonpath='{.items[0].metadata.name}' 2>/dev/null || true; }
plugin=$(first -n kube-system get pods -l app.kubernetes.io/component=gpu-kubelet-plugin --field-selector spec.nodeName=n3)
leader=$(kubectl -n kube-system get lease gpu-compat-controller -o jsonpath='{.spec.holderIdentity}' 2>/dev/null || true)
claim=$(first get resourceclaims)
`

// looks are commands that change nothing, and so can be tried again.
var looks = regexp.MustCompile(
	`^(kubectl( -n \S+| --namespace \S+)? (get|describe|logs|wait|rollout status|auth|inspect|config) |#|$)`)

func onlyLooks(text string) bool {
	for line := range strings.Lines(text) {
		if !looks.MatchString(strings.TrimSpace(line) + " ") {
			return false
		}
	}
	return true
}

// shell is how commands are run: in the root of the checkout, with the cluster's kubectl.
type shell struct{ environment []string }

func newShell(t *testing.T) shell {
	t.Helper()
	environment, bin := cluster.Shell(t)
	return shell{append(environment, "bin="+bin)}
}

func (s shell) run(ctx context.Context, text string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-e", "-u", "-o", "pipefail", "-c", prelude+text)
	command.Dir = checkout
	command.Env = s.environment
	output, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s\nprinted\n%s", err, text, output)
	}
	return string(output), nil
}

// must runs a block, again if it only looks: what it looks at may just restart. It returns what the
// block printed.
func (s shell) must(t *testing.T, text string) string {
	t.Helper()
	var output string
	attempt := func(ctx context.Context) (err error) {
		output, err = s.run(ctx, text)
		return err
	}
	err := attempt(t.Context())
	if err != nil && onlyLooks(text) {
		err = harness.Poll(t.Context(), again, attempt)
	}
	expect.NoError(t, err)
	t.Logf("%s\n%s", text, output)
	return output
}

func TestPages(t *testing.T) {
	paths := []string{installation, "README.md"}
	found, err := filepath.Glob(filepath.Join(checkout, "docs", "*.md"))
	expect.NoError(t, err)
	for _, path := range found {
		if path := "docs/" + filepath.Base(path); path != installation {
			paths = append(paths, path)
		}
	}
	s := newShell(t)
	// The driver of simulated nodes is not in /: docs/install.md#special-cases.
	s.must(t, "kubectl -n kube-system create configmap gpu-kubelet-plugin "+
		"--from-literal=NVIDIA_DRIVER_ROOT=/run/nvidia/driver --from-literal=SYSFS_ROOT=/host/run/nvidia/driver/sys "+
		"--from-literal=GPU_READ_INTERVAL=2s --dry-run=client -o yaml | kubectl apply -f -")
	ran := 0
	for _, path := range paths {
		content, err := os.ReadFile(filepath.Join(checkout, path))
		expect.NoError(t, err)
		var blocks []commands.Block
		for _, b := range commands.Blocks(path, string(content)) {
			if b.OnCluster() {
				blocks = append(blocks, b)
			}
		}
		if len(blocks) == 0 {
			continue
		}
		if !t.Run(strings.TrimSuffix(filepath.Base(path), ".md"), func(t *testing.T) { s.page(t, path, blocks) }) &&
			path == installation {
			t.Fatal("the driver is not installed: the other pages are not tried")
		}
		ran += len(blocks)
	}
	t.Logf("%d blocks of commands were run", ran)
}

// page runs the blocks of a page in their order: a later one builds on what an earlier one did.
func (s shell) page(t *testing.T, path string, blocks []commands.Block) {
	around := commands.Pages[path]
	if around.Before != "" {
		s.must(t, around.Before)
	}
	if around.After != "" {
		defer func() { s.must(t, around.After) }()
	}
	for _, b := range blocks {
		ran := t.Run(fmt.Sprintf("line-%d", b.Line), func(t *testing.T) {
			if strings.TrimSpace(b.On()) == "" {
				t.Skip("tests/suites/docs/commands has for each of the commands why it is skipped")
			}
			output := s.must(t, b.On())
			for command, shows := range around.Shows {
				if strings.Contains(b.On(), command) && !strings.Contains(output, shows) {
					t.Errorf("%s is to show %s, and printed\n%s", command, shows, output)
				}
			}
		})
		if !ran && path == installation {
			return
		}
	}
}
