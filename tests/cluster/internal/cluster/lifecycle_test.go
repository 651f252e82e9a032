// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/build"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/sandbox"
)

// TestMain lets the test program be the first process of the sandboxes it starts,
// as the real one is.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == sandbox.InitArgument {
		if err := sandbox.Init(slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// newTestCluster is a cluster that goes down with the test.
func newTestCluster(t *testing.T) *Cluster {
	t.Helper()
	checkout, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := build.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{
		Dir:      filepath.Join(t.TempDir(), "cluster"),
		Checkout: checkout,
		Builder: &build.Builder{Sources: filepath.Join(checkout, "tests/cluster/components"), Cache: cache,
			Progress: t.Logf},
		Progress: t.Logf,
	}
	t.Cleanup(func() {
		if err := c.Down(context.Background()); err != nil {
			t.Errorf("down: %v", err)
		}
	})
	return c
}

func up(t *testing.T, c *Cluster, list string) {
	t.Helper()
	nodes, err := ParseNodes(list)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Up(t.Context(), Wanted{Nodes: nodes}); err != nil {
		t.Fatalf("up %q: %v", list, err)
	}
}

func kubectl(t *testing.T, c *Cluster, input string, args ...string) string {
	t.Helper()
	program, err := c.Program("kubernetes", "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %v: %v: %s", args, err, complaint.String())
	}
	return string(out)
}

// pod is one that prints its environment, and sleeps.
func pod(name, node string) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q},
		"spec": {"nodeName": %q, "terminationGracePeriodSeconds": 1,
		"containers": [{"name": "probe", "image": %q, "imagePullPolicy": "Never"}]}}`, name, node, probeImage)
}

func TestNodesJoinAndLeave(t *testing.T) {
	c := newTestCluster(t)
	up(t, c, "a b")
	if err := c.KillNode(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	dead := stateOf(t, c).node("b").Init
	names := func() string {
		return kubectl(t, c, "", "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")
	}
	if err := c.AddNode(t.Context(), Node{Name: "c", Mode: "share"}, nil); err != nil {
		t.Fatal(err)
	}
	if got := names(); got != "a b c" {
		t.Errorf("the cluster has the nodes %s", got)
	}
	if stateOf(t, c).node("b").Init != dead {
		t.Error("a node that was killed was brought back")
	}
	if err := c.AddNode(t.Context(), Node{Name: "c"}, nil); err == nil ||
		!strings.Contains(err.Error(), "has one of that name") {
		t.Errorf("a second node of one name: %v", err)
	}
	if err := c.RemoveNode(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	if got := names(); got != "a b" {
		t.Errorf("the cluster has the nodes %s", got)
	}
	if _, err := os.Stat(c.nodeRoot("c")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the node's files are left: %v", err)
	}
}

// TestNodeIsKilledAndComesBack also covers the loss of kubelet alone.
func TestNodeIsKilledAndComesBack(t *testing.T) {
	c := newTestCluster(t)
	up(t, c, "a")
	kubectl(t, c, pod("stays", "a"), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
	restarts := func() string {
		return kubectl(t, c, "", "get", "pod", "stays", "-o", "jsonpath={.status.containerStatuses[0].restartCount} "+
			"{.status.containerStatuses[0].ready}")
	}

	before, _ := stateOf(t, c).node("a").Init.Child("kubelet")
	if err := c.RestartKubelet(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if after, found := stateOf(t, c).node("a").Init.Child("kubelet"); !found || after == before {
		t.Errorf("kubelet %+v was not replaced: %+v, %t", before, after, found)
	}
	// A kubelet that starts may say for a moment that it does not know how the pod is.
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
	if got := restarts(); got != "0 true" {
		t.Errorf("the loss of kubelet touched the pod: restarts and readiness are %s", got)
	}

	if err := c.KillNode(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	driver, volatile := filepath.Join(c.nodeRoot("a"), "run/nvidia/driver"), filepath.Join(c.nodeRoot("a"), "run/cdi/spec")
	if err := errors.Join(os.MkdirAll(driver, 0o755), os.WriteFile(volatile, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := c.StartNode(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(driver); err != nil {
		t.Errorf("the driver is gone after a restart: %v", err)
	}
	if _, err := os.Stat(volatile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("/run outlived a restart: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := proc.Poll(ctx, 100*time.Millisecond, func() bool { return restarts() == "1 true" }); err != nil {
		t.Errorf("the pod did not start again: restarts and readiness are %s", restarts())
	}
}

// TestUpRepairs kills parts of a cluster as a crash would, and wants Up to end in the
// same cluster as on a fresh machine.
func TestUpRepairs(t *testing.T) {
	c := newTestCluster(t)
	up(t, c, "a b")
	tests := []struct {
		name string
		hurt func(s *state) error
		same bool // the cluster goes on, with what it holds
	}{
		{"nothing", func(*state) error { return nil }, true},
		{"a node", func(s *state) error { return s.node("b").Init.Kill(t.Context()) }, true},
		{"a node that was never finished", func(s *state) error {
			return c.update(s, func() { s.node("b").Made = false })
		}, true},
		{"the API server", func(s *state) error {
			server, _ := s.Control.Child("kube-apiserver")
			return server.Kill(t.Context())
		}, true},
		{"the control plane", func(s *state) error { return s.Control.Kill(t.Context()) }, false},
		{"all of it", func(s *state) error {
			return errors.Join(s.Control.Kill(t.Context()), s.node("a").Init.Kill(t.Context()),
				s.node("b").Init.Kill(t.Context()))
		}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := stateOf(t, c)
			if err := test.hurt(s); err != nil {
				t.Fatal(err)
			}
			up(t, c, "a b")
			report, err := c.Status(t.Context())
			if err != nil || !report.Healthy() || len(report.Nodes) != 2 {
				t.Errorf("after up: %v, %v", report, err)
			}
			if same := stateOf(t, c).ID == s.ID; same != test.same {
				t.Errorf("the same cluster: %t, want %t", same, test.same)
			}
		})
	}
}

// TestDownLeavesNothing looks for all that a cluster puts on a machine, while another
// cluster is up beside it and has to go on.
func TestDownLeavesNothing(t *testing.T) {
	neighbour, c := newTestCluster(t), newTestCluster(t)
	up(t, neighbour, "a")
	up(t, c, "a b")
	kubectl(t, c, pod("runs", "a"), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/runs", "--timeout=60s")

	s := stateOf(t, c)
	if left := traces(t, c, s); len(left) < 4 {
		t.Fatalf("this test looks in the wrong places: of a running cluster it sees only %q", left)
	}
	if err := c.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := traces(t, c, s); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "\n"))
	}
	if err := c.Down(t.Context()); err != nil {
		t.Errorf("down once more: %v", err)
	}
	if report, err := neighbour.Status(t.Context()); err != nil || !report.Healthy() {
		t.Errorf("the cluster beside it: %v, %v", report, err)
	}
}

// traces is what can be found of a cluster on the machine.
func traces(t *testing.T, c *Cluster, s *state) []string {
	t.Helper()
	var found []string
	note := func(kind string, value any) { found = append(found, fmt.Sprint(kind, " ", value)) }

	if _, err := os.Lstat(c.Dir); err == nil {
		note("directory", c.Dir)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range processes {
		cmdline, _ := os.ReadFile(filepath.Join(process, "cmdline"))
		groups, _ := os.ReadFile(filepath.Join(process, "cgroup"))
		root, _ := os.Readlink(filepath.Join(process, "root"))
		if bytes.Contains(cmdline, []byte(c.Dir)) || bytes.Contains(groups, []byte(s.ID)) || strings.HasPrefix(root, c.Dir) {
			note("process", string(cmdline))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, c.Dir) {
			note("mount", line)
		}
	}
	mounted, err := mountedHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range mounted {
		entries, err := os.ReadDir(h.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if strings.Contains(entry.Name(), s.ID) {
				note("control group", filepath.Join(h.path, entry.Name()))
			}
		}
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		own := prefixOf(address.IPNet)
		if slices.ContainsFunc(s.Network.ranges(), own.Overlaps) {
			note("address", address)
		}
	}
	return found
}
