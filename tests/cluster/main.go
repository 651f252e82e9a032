// SPDX-License-Identifier: Apache-2.0

// Command cluster starts and stops a real Kubernetes on this machine for tests and
// demonstrations: nodes with their own kubelet and containerd, and simulated
// NVIDIA GPUs. See `cluster --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/build"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/cluster"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/sandbox"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == sandbox.InitArgument {
		logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
		if err := sandbox.Init(logger); err != nil {
			logger.Error("Could not set the sandbox up", "err", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().Run(ctx, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, explain(err))
		os.Exit(1)
	}
}

// logTail is how much of a log an error shows.
const logTail = 15

// explain renders an error with the end of the log that tells most about it.
func explain(err error) string {
	text := "error: " + err.Error()
	var logged interface{ LogPath() string }
	if !errors.As(err, &logged) {
		return text
	}
	content, readErr := os.ReadFile(logged.LogPath())
	if readErr != nil {
		return text
	}
	lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	lines = lines[max(0, len(lines)-logTail):]
	return fmt.Sprintf("%s\n--- end of %s\n%s\n--- other logs: %s", text, logged.LogPath(), strings.Join(lines, "\n"),
		filepath.Dir(logged.LogPath()))
}

func command() *cli.Command {
	return &cli.Command{
		Name:  "cluster",
		Usage: "a real Kubernetes on this machine, for tests and demonstrations of the GPU driver",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dir", Usage: "`DIRECTORY` that holds all of the cluster (default: .cluster in the checkout)"},
			&cli.StringFlag{Name: "checkout",
				Usage: "root `DIRECTORY` of the repository (default: found from the working directory, or from where this " +
					"program lies)"},
			&cli.StringFlag{Name: "programs",
				Usage: "`DIRECTORY` with the programs of a cluster, built already (see the command programs); then neither " +
					"a checkout nor Go is needed"},
		},
		Commands: []*cli.Command{
			{
				Name:  "up",
				Usage: "start the cluster, or change its nodes to those named",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "nodes", Required: true,
						Usage: "`LIST` of name[=machine[:mode]][+stock-timers], such as \"n1=v100x4:share n2=dgx1\"; nodes " +
							"with +stock-timers have kubelet's own timers, the others shorter ones"},
					&cli.BoolFlag{Name: "no-simulate", Usage: "give nodes no simulated GPUs"},
					&cli.StringSliceFlag{Name: "image",
						Usage: "OCI `ARCHIVE` that every node has before its first pod; may be repeated"},
					&cli.StringSliceFlag{Name: "mount",
						Usage: "`DIRECTORY` of the machine that nodes have besides /usr, /dev and the like; may be repeated"},
					&cli.StringSliceFlag{Name: "gates",
						Usage: "`LIST` of parts of Kubernetes to enable that are off by default: gang"},
					kubernetesFlag(),
				},
				Action: withCluster(up),
			},
			{
				Name:   "down",
				Usage:  "stop the cluster and remove all of it",
				Action: withCluster(func(ctx context.Context, c *cluster.Cluster, _ *cli.Command) error { return c.Down(ctx) }),
			},
			{
				Name:  "check",
				Usage: "print why this machine cannot run a cluster, a line for each reason; nothing is changed",
				Action: func(context.Context, *cli.Command) error {
					for _, why := range cluster.Obstacles() {
						fmt.Println(why)
					}
					return nil
				},
			},
			{
				Name:   "status",
				Usage:  "show whether the cluster and its nodes run; fails where one does not",
				Action: withCluster(status),
			},
			nodeCommand(),
			imageCommand(),
			{
				Name:   "programs",
				Usage:  "build what a cluster runs, where that has not been done yet, and print where each part lies",
				Flags:  []cli.Flag{kubernetesFlag()},
				Action: withCluster(programs),
			},
			{
				Name:            "kubectl",
				Usage:           "run kubectl on the cluster",
				ArgsUsage:       "ARGUMENT…",
				SkipFlagParsing: true,
				Action:          withCluster(kubectl),
			},
		},
	}
}

func kubernetesFlag() cli.Flag {
	return &cli.StringFlag{Name: "kubernetes", Value: build.Newest, Usage: "`VERSION` of Kubernetes: 1.36 or 1.37"}
}

func nodeCommand() *cli.Command {
	on := func(name, usage string, f func(*cluster.Cluster, context.Context, string) error) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, ArgsUsage: "NAME",
			Action: withCluster(func(ctx context.Context, c *cluster.Cluster, cmd *cli.Command) error {
				if cmd.NArg() != 1 {
					return fmt.Errorf("node %s: want the name of one node, got %q", name, cmd.Args().Slice())
				}
				return f(c, ctx, cmd.Args().First())
			}),
		}
	}
	return &cli.Command{
		Name:  "node",
		Usage: "add and remove nodes, break them and bring them back",
		Commands: []*cli.Command{
			{
				Name: "add", Usage: "add a node and wait until it is Ready; the others stay as they are",
				ArgsUsage: "NAME[=MACHINE[:MODE]][+stock-timers]",
				Flags: []cli.Flag{
					&cli.StringSliceFlag{Name: "image",
						Usage: "OCI `ARCHIVE` that the node has before its first pod; may be repeated"},
				},
				Action: withCluster(addNode),
			},
			on("remove", "take the node away, as a cluster that is scaled in does", (*cluster.Cluster).RemoveNode),
			on("kill", "end all that runs on the node at once, as a loss of power does", (*cluster.Cluster).KillNode),
			on("start", "start a killed node and wait until it is Ready", (*cluster.Cluster).StartNode),
			{
				Name:      "fault",
				Usage:     "break a simulated GPU while the node runs, or heal it; or replace the node's NVIDIA driver",
				ArgsUsage: "NAME GPU lost|hang|xid=N|recovery=N|ecc=N|heal, or NAME driver-upgrade=VERSION",
				Action: withCluster(func(ctx context.Context, c *cluster.Cluster, cmd *cli.Command) error {
					if cmd.NArg() < 2 {
						return fmt.Errorf("node fault: want a node and what is to happen there, got %q", cmd.Args().Slice())
					}
					return c.Fault(ctx, cmd.Args().First(), cmd.Args().Tail()...)
				}),
			},
			on("restart-kubelet", "kill the node's kubelet and wait until its successor reports",
				(*cluster.Cluster).RestartKubelet),
		},
	}
}

func addNode(ctx context.Context, c *cluster.Cluster, cmd *cli.Command) error {
	nodes, err := cluster.ParseNodes(cmd.Args().First())
	if err != nil {
		return err
	}
	if cmd.NArg() != 1 || len(nodes) != 1 {
		return fmt.Errorf("node add: want one node, such as n2=t4x1:share, got %q", cmd.Args().Slice())
	}
	return c.AddNode(ctx, nodes[0], cmd.StringSlice("image"))
}

func withCluster(f func(context.Context, *cluster.Cluster, *cli.Command) error) cli.ActionFunc {
	return func(ctx context.Context, cmd *cli.Command) error {
		c, err := newCluster(cmd.String("dir"), cmd.String("checkout"), cmd.String("programs"))
		if err != nil {
			return err
		}
		return f(ctx, c, cmd)
	}
}

func newCluster(dir, checkout, programs string) (*cluster.Cluster, error) {
	var err error
	if programs == "" {
		if checkout, err = findCheckout(checkout); err != nil {
			return nil, err
		}
	} else if programs, err = filepath.Abs(programs); err != nil {
		return nil, fmt.Errorf("the cluster's programs: %w", err)
	}
	if dir == "" {
		dir = filepath.Join(checkout, ".cluster")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("the cluster's directory: %w", err)
	}
	cache, err := build.DefaultCache()
	if err != nil {
		return nil, err
	}
	progress := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	return &cluster.Cluster{
		Dir:      dir,
		Checkout: checkout,
		Builder: &build.Builder{Sources: filepath.Join(checkout, "tests", "cluster", "components"), Cache: cache,
			Built: programs, Progress: progress},
		Progress: progress,
	}, nil
}

// findCheckout is the root of the repository: the one given, or that around the
// working directory, or that around this program.
func findCheckout(given string) (string, error) {
	starts := []string{given}
	if given == "" {
		working, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("find the repository: %w", err)
		}
		executable, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find the repository: %w", err)
		}
		starts = []string{working, filepath.Dir(executable)}
	}
	for _, start := range starts {
		absolute, err := filepath.Abs(start)
		if err != nil {
			return "", fmt.Errorf("find the repository: %w", err)
		}
		for dir := absolute; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "tests", "cluster", "components")); err == nil {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("found no checkout of the repository around %s: name its root with --checkout",
		strings.Join(starts, " or "))
}

func up(ctx context.Context, c *cluster.Cluster, cmd *cli.Command) error {
	nodes, err := cluster.ParseNodes(cmd.String("nodes"))
	if err != nil {
		return err
	}
	return c.Up(ctx, cluster.Wanted{
		Nodes: nodes, Simulate: !cmd.Bool("no-simulate"), Images: cmd.StringSlice("image"), Mounts: cmd.StringSlice("mount"),
		Gates: cmd.StringSlice("gates"), Kubernetes: cmd.String("kubernetes"),
	})
}

func programs(ctx context.Context, c *cluster.Cluster, cmd *cli.Command) error {
	components, err := build.Components(cmd.String("kubernetes"))
	if err != nil {
		return err
	}
	dirs, err := c.Builder.Ensure(ctx, components)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(dirs)) {
		fmt.Println(name, dirs[name])
	}
	return nil
}

func status(ctx context.Context, c *cluster.Cluster, _ *cli.Command) error {
	report, err := c.Status(ctx)
	if err != nil {
		return err
	}
	fmt.Print(report)
	if !report.Healthy() {
		return errors.New("the cluster is not whole: `up` repairs it")
	}
	return nil
}

// kubectl becomes kubectl, so that its signals, terminal and exit code are its own.
func kubectl(_ context.Context, c *cluster.Cluster, cmd *cli.Command) error {
	program, err := c.Program("kubernetes", "kubectl")
	if err != nil {
		return err
	}
	if err := os.Setenv("KUBECONFIG", c.Kubeconfig()); err != nil {
		return fmt.Errorf("run kubectl: %w", err)
	}
	if err := syscall.Exec(program, append([]string{"kubectl"}, cmd.Args().Slice()...), os.Environ()); err != nil {
		return fmt.Errorf("run kubectl at %s: %w", program, err)
	}
	return nil
}
