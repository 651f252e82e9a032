// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package picture records what is in pictures of the documents: what kubectl shows in a terminal, on a cluster that
// its lane makes.
package picture

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const checkout = "../../.."

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

// share is a pod with a share of a GPU, and how much of it a process uses.
type share struct {
	pod     string
	gpu     int
	memory  string
	usedMiB int64
}

func TestPicture(t *testing.T) {
	ns := cluster.Namespace(t, func(n *corev1.Namespace) { n.Name, n.GenerateName = "team-a", "" })
	for node, shares := range map[string][]share{
		"n1": {{"llm", 0, "15Gi", 14200}, {"embed", 1, "6Gi", 3900}, {"rerank", 1, "4Gi", 2800},
			{"notebook", 2, "3Gi", 1200}},
		"n2": {{"train", 0, "22Gi", 19800}, {"vision", 1, "16Gi", 11500}, {"speech", 2, "12Gi", 9300},
			{"batch", 3, "8Gi", 6100}},
	} {
		runs(t, ns, node, shares)
	}
	ns.Claim(t, "tune", harness.Requests(harness.Share("gpu", "16Gi")))
	waits := harness.Pod("tune", "", harness.FromClaim("tune"))
	waits.Spec.NodeSelector = nil
	ns.Create(t, waits)
	ns.WaitUnschedulable(t, "tune", "cannot allocate all claims")
	harness.Eventually(t, "what is used to be known", func(context.Context) error {
		out, notes, err := cluster.TryInspect(t, "--use=always")
		if err == nil && (!harness.ContainsAll(out, []string{" 21.6", " 45.6"}) || notes != "") {
			err = errors.New(out + notes)
		}
		return err
	})

	still := terminal(t)
	still.runs(t, "kubectl inspect cgpu", time.Second, 0)
	still.show("\r\n")
	still.runs(t, "kubectl inspect cgpu explain pod/tune -n team-a", time.Second, 0)
	still.keep(t, "inspect.cast")
	firstClaim(t)
}

// firstClaim records the first claim of README.md, and then who has which GPU and why a pod waits.
func firstClaim(t *testing.T) {
	r := terminal(t)
	r.environment = append(r.environment, "image=localhost/dra-driver-gpushare:dev")
	t.Cleanup(func() { r.output(t, "kubectl delete --ignore-not-found -f demo/first-claim.yaml") })
	readme, err := os.ReadFile(checkout + "/README.md")
	expect.NoError(t, err)
	for _, command := range []struct {
		line  string
		clear bool
		// takes and read are how long it takes in the recording, and how long the reader has for what it says.
		takes, read time.Duration
	}{
		{`sed "s#your-image#$image#" demo/first-claim.yaml | kubectl apply -f -`, false, time.Second, 2 * time.Second},
		{"kubectl wait pod/first --for=condition=Ready", false, 2 * time.Second, 2 * time.Second},
		{"kubectl logs first", false, time.Second, 6 * time.Second},
		{"kubectl inspect cgpu", true, time.Second, 6 * time.Second},
		{"kubectl inspect cgpu explain pod/tune -n team-a", true, time.Second, 8 * time.Second},
	} {
		if !command.clear && !strings.Contains(string(readme), "\n"+command.line+"\n") {
			t.Errorf("README.md has no command %s", command.line)
		}
		if command.clear {
			r.prompt = clearScreen + r.prompt
		}
		r.runs(t, command.line, command.takes, command.read)
	}
	r.keep(t, "first-claim.cast")
}

// runs has the pods of a node run, and use what they do.
func runs(t *testing.T, ns *harness.Namespace, node string, shares []share) {
	t.Helper()
	processes := make([]harness.GPUProcess, 0, len(shares))
	for _, s := range shares {
		ns.Template(t, s.pod, harness.Requests(harness.Capped("share", s.gpu, "memory", s.memory)))
		ns.Run(t, harness.Pod(s.pod, node, harness.FromTemplate(s.pod)))
		processes = append(processes, harness.GPUProcess{GPU: s.gpu, Pod: s.pod, MemoryMiB: s.usedMiB})
	}
	ns.SetGPUProcesses(t, node, processes...)
}
