// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package workloads tests what docs/workloads.md tells of programs on shares, with a stand-in for each program, what
// docs/training.md tells of operators' pods, what docs/other-manifests.md and docs/nvidia-dra.md tell of manifests of
// others, and what Kubernetes' AI conformance tests of GPUs: docs/internals/conformance.md. Lane workloads makes the
// cluster: a node with two whole GPUs, one whose four GPUs are shared by MPS, one in mode cgpu, one with eight GPUs in
// the mode of their first claim, and one with MIG instances.
package workloads

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/suites/docs/commands"
)

const (
	checkout = "../../.."
	page     = "docs/workloads.md"
	// wholeNode has two GPUs in mode default, mpsNode four in mode mps, each with gpuMiB, of which shares are gpuGiB.
	wholeNode, mpsNode, dynamicNode, migNode = "whole", "mps", "dynamic", "mig"
	gpuMiB, gpuGiB                           = 16130, 15
	// contextMiB is what CUDA's context takes of a limit, as measured (docs/isolation.md).
	contextMiB = 514
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

// blocks are those of a page.
func blocks(t *testing.T, page string) []commands.Block {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(checkout, page))
	expect.NoError(t, err)
	return commands.Blocks(page, string(content))
}

// given is what a stand-in tells in its log.
type given struct {
	Called  string
	Devices []string
	env     map[string]string
}

func readLog(log string) given {
	g := given{env: map[string]string{}}
	for line := range strings.Lines(log) {
		line = strings.TrimSuffix(line, "\n")
		name, value, isVariable := strings.Cut(line, "=")
		device, isDevice := strings.CutPrefix(line, "device ")
		switch {
		case g.Called == "":
			g.Called = line
		case isDevice:
			g.Devices = append(g.Devices, device)
		case isVariable:
			g.env[name] = value
		}
	}
	return g
}

// Each manifest runs as it stands: its program has one GPU, and the limit of its share. A server is ready, behind its
// Service.
func TestManifests(t *testing.T) {
	tests := map[string]struct {
		waitFor string
		gib     int64
		service bool
	}{
		"vllm":    {"deployment/vllm condition=Available", 8, true},
		"pytorch": {"job/pytorch condition=Complete", 4, false},
		"jupyter": {"deployment/jupyter condition=Available", 4, true},
		"triton":  {"deployment/triton condition=Available", 6, true},
	}
	manifests, err := filepath.Glob(filepath.Join(checkout, "demo", "workloads", "*.yaml"))
	if err != nil || len(manifests) != len(tests) {
		t.Fatalf("demo/workloads has %q (%v), and %d are tested", manifests, err, len(tests))
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ns := cluster.Namespace(t)
			kubectl := func(arguments ...string) string {
				t.Helper()
				return ns.MustKubectl(t, arguments...)
			}
			kubectl("apply", "-f", filepath.Join(checkout, "demo", "workloads", name+".yaml"))
			object, condition, _ := strings.Cut(test.waitFor, " ")
			kubectl("wait", object, "--for="+condition, "--timeout=5m")
			got := readLog(kubectl("logs", object))

			limit := gpuMiB * test.gib / gpuGiB
			if want := fmt.Sprintf("0=%dM", limit); got.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] != want ||
				len(got.Devices) != 1 {
				t.Errorf("it has the limit %q, want %q, and the GPUs %q", got.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], want,
					got.Devices)
			}
			if name == "vllm" {
				takesLessThan(t, got.Called, limit)
			}
			if !test.service {
				return
			}
			kubectl("wait", "endpointslices", "-l", "kubernetes.io/service-name="+name,
				"--for=jsonpath={.endpoints[*].conditions.ready}=true", "--timeout=1m")
		})
	}
}

var utilization = regexp.MustCompile(`--gpu-memory-utilization (\S+)`)

// takesLessThan checks that vLLM starts: beside its context the limit has room for the part of the GPU that it takes,
// which it is told as free. It takes most of it.
func takesLessThan(t *testing.T, called string, limitMiB int64) {
	t.Helper()
	found := utilization.FindStringSubmatch(called)
	if found == nil {
		t.Fatalf("vLLM is told no part of the GPU: %s", called)
	}
	part, err := strconv.ParseFloat(found[1], 64)
	expect.NoErrorf(t, err, "vLLM is told the part %q", found[1])
	if takes := int64(part * gpuMiB); takes > limitMiB-contextMiB || takes < limitMiB/2 {
		t.Errorf("vLLM takes %d MiB, of a limit of %d and a context of %d", takes, limitMiB, contextMiB)
	}
}

// The page's commands, in its order.
func TestPage(t *testing.T) {
	environment, _ := cluster.Shell(t)
	ran := 0
	for _, b := range blocks(t, page) {
		if b.Test != t.Name() {
			continue
		}
		command := exec.CommandContext(t.Context(), "bash", "-e", "-u", "-o", "pipefail", "-c", b.On())
		command.Dir, command.Env = checkout, environment
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s\nprinted\n%s", err, b.On(), output)
		}
		t.Logf("%s\n%s", b.On(), output)
		ran++
	}
	if ran != 1 {
		t.Errorf("%d blocks of %s were run", ran, page)
	}
}
