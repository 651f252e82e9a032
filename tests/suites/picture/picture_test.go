// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package picture records what is in the picture of the documents: what `kubectl inspect cgpu` shows in a
// terminal, on a cluster that its lane makes.
package picture

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	// recording is in the format of asciinema, of which lane picture draws the picture.
	recording     = "../../../.build/inspect.cast"
	columns, rows = 90, 50
)

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

	environment, _ := cluster.Shell(t)
	var shown bytes.Buffer
	for i, line := range []string{"kubectl inspect cgpu", "kubectl inspect cgpu explain pod/tune -n team-a"} {
		if i > 0 {
			shown.WriteString("\r\n")
		}
		// What a user's shell shows.
		fmt.Fprintf(&shown, "$ %s\r\n", line)
		// A terminal of that size, by util-linux.
		command := exec.CommandContext(t.Context(), "script", "--quiet", "--return", "--command",
			fmt.Sprintf("stty columns %d rows %d && %s", columns, rows, line), "/dev/null")
		command.Env = append(environment, "TERM=xterm-256color", "NO_COLOR=", "COLUMNS=")
		output, err := command.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, output)
		}
		shown.Write(output)
	}
	t.Log("\n" + shown.String())
	cast, err := os.Create(recording)
	if err != nil {
		t.Fatal(err)
	}
	encoder := json.NewEncoder(cast)
	if err := errors.Join(encoder.Encode(map[string]int{"version": 2, "width": columns, "height": rows}),
		encoder.Encode([]any{0.1, "o", shown.String()}), cast.Close()); err != nil {
		t.Fatal(err)
	}
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
