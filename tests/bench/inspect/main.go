// SPDX-License-Identifier: Apache-2.0

// Command inspect measures `kubectl inspect cgpu` on a cluster of many nodes, which
// it fills with Nodes, ResourceSlices and allocated claims. Run by
// tests/bench/inspect.sh.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/machine"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().Run(ctx, os.Args)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "inspect:", err)
		os.Exit(1)
	}
}

func command() *cli.Command {
	return &cli.Command{
		Name:  "inspect",
		Usage: "measure `kubectl inspect cgpu` on many nodes, on a cluster made by tests/bench/inspect.sh",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "kubeconfig", Required: true, Usage: "kubeconfig `FILE` of the cluster's administrator"},
			&cli.StringFlag{Name: "program", Required: true, Usage: "`PATH` of kubectl-inspect-cgpu"},
			&cli.IntFlag{Name: "nodes", Value: 1000, Usage: "`NUMBER` of nodes of eight GPUs, each with one share"},
			&cli.IntFlag{Name: "pods",
				Usage: "`NUMBER` of pods on each node, of which one holds 3 GiB of a GPU without a claim; without them, no pods " +
					"are read"},
			&cli.IntFlag{Name: "runs", Value: 10, Usage: "`NUMBER` of times to run it"},
		},
		Action: run,
	}
}

func run(ctx context.Context, c *cli.Command) error {
	config, err := clientcmd.BuildConfigFromFlags("", c.String("kubeconfig"))
	if err != nil {
		return fmt.Errorf("configure the API client: %w", err)
	}
	config.QPS = -1 // none of its limits
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+
		runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make the API client: %w", err)
	}
	nodes, pods := c.Int("nodes"), c.Int("pods")
	fmt.Fprintf(os.Stderr, "inspect: fill the cluster with %d nodes\n", nodes)
	if err := fill(ctx, client, nodes, pods); err != nil {
		return err
	}
	if err := explained(ctx, client); err != nil {
		return err
	}
	fmt.Printf("Taken %s; %d nodes, %d shares, %d pods.\n\n| command | process start → end, p50 / max | resident "+
		"memory at most | target |\n| --- | --- | --- | --- |\n", machine.Describe(), nodes, nodes*gpusPerNode, nodes*pods)
	shown := nodeName(0)
	for _, m := range []measured{
		{"", shown, ""},
		{"-d", shown, ""},
		{"-o json", shown, ""},
		{"-d " + shown, shown, ""},
		{"explain pod/" + waitingPod, fmt.Sprintf("Looked at %d nodes with %d GPUs", nodes, nodes*gpusPerNode), ""},
		{"explain pod/" + runningPod, "runs on node " + shown,
			"What is used is not known: no pod of gpu-kubelet-plugin runs on node " + shown + ".\n"},
	} {
		took, resident, err := m.measure(ctx, c.String("program"), c.String("kubeconfig"), c.Int("runs"))
		if err != nil {
			return err
		}
		fmt.Printf("| `%s` | %s | %.0f MiB | < 2 s |\n", strings.TrimSpace("kubectl inspect cgpu "+m.arguments),
			took.Summary(0.5, 1), resident)
	}
	return nil
}

// measured is a command, what it is to show, and what it is to say on the error stream.
type measured struct{ arguments, shows, says string }

// measure runs the program some times and returns how long it took, and how many
// MiB of memory it had at most.
func (m *measured) measure(ctx context.Context, program, kubeconfig string, runs int) (stats.Sample, float64, error) {
	var took stats.Sample
	var most int64
	for range runs {
		command := exec.CommandContext(ctx, program, append(strings.Fields(m.arguments), "--kubeconfig", kubeconfig)...)
		var out, errOut bytes.Buffer
		command.Stdout, command.Stderr = &out, &errOut
		start := time.Now()
		err := command.Run()
		took = append(took, time.Since(start))
		if err == nil && errOut.String() != m.says {
			err = errors.New("it did not show all there is")
		}
		if err == nil && !bytes.Contains(out.Bytes(), []byte(m.shows)) {
			err = fmt.Errorf("it does not show %q but %.500s", m.shows, out.String())
		}
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w\n%s", command, err, errOut.String())
		}
		if usage, ok := command.ProcessState.SysUsage().(*syscall.Rusage); ok {
			most = max(most, usage.Maxrss)
		}
	}
	return took, float64(most) / 1024, nil
}
