// Package program is what the driver's programs have in common around their
// work: their start and end, the flags that say where the cards are, logging,
// and the connection to the API server.
package program

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/urfave/cli/v3"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/source"
)

// Main runs the command until it ends, or until the process is asked to, and
// returns the process' exit status. An error is written to standard error.
func Main(command *cli.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := command.Run(ctx, os.Args)
	stop()
	klog.Flush()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", command.Name, err)
		return 1
	}
	return 0
}

// CardFlags are the flags of every program that reads the node's cards. They
// have one name everywhere, so that one ConfigMap serves all programs.
func CardFlags() []cli.Flag {
	env := cli.EnvVars
	return []cli.Flag{
		&cli.StringFlag{Name: "node-name", Sources: env("NODE_NAME"), Required: true, Usage: "name of this node's Node object"},
		&cli.StringFlag{Name: "host-root", Sources: env("HOST_ROOT"), Value: "/", Usage: "where this process sees the host's root directory"},
		&cli.StringFlag{Name: "driver-root", Sources: env("NVIDIA_DRIVER_ROOT"), Value: "/", Usage: "directory that the NVIDIA driver is installed in, on the host"},
		&cli.StringFlag{Name: "nvml-library", Sources: env("NVIDIA_NVML_LIBRARY"), Usage: "path of libnvidia-ml.so.1 on the host; by default it is looked for in the driver root"},
		&cli.StringSliceFlag{Name: "library-search-path", Sources: env("NVIDIA_LIBRARY_SEARCH_PATHS"), Usage: "further directory, below the driver root, with the driver's libraries (repeatable, or comma-separated)"},
		&cli.DurationFlag{Name: "nvml-timeout", Sources: env("NVML_TIMEOUT"), Usage: "how long a single NVML call may take; 0 for the default"},
		&cli.StringFlag{Name: "simulated-machine", Sources: env("GPU_SIMULATED_MACHINE"), Usage: "simulate the cards of this machine file, on the host, instead of reading real ones; for demonstrations and tests"},
		&cli.IntFlag{Name: "v", Sources: env("LOG_VERBOSITY"), Value: 2, Usage: "log verbosity"},
	}
}

// CardSource is what CardFlags say.
func CardSource(c *cli.Command) source.Options {
	return source.Options{
		HostRoot:         c.String("host-root"),
		DriverRoot:       c.String("driver-root"),
		LibraryPath:      c.String("nvml-library"),
		CallTimeout:      c.Duration("nvml-timeout"),
		SimulatedMachine: c.String("simulated-machine"),
		NodeName:         c.String("node-name"),
	}
}

// SetUpLogging sets how much is logged.
func SetUpLogging(verbosity int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	return flags.Set("v", strconv.Itoa(verbosity))
}

// ClientConfig says how to reach the API server: as the kubeconfig file does,
// or, without one, with the pod's service account. Outside of a pod that is
// rest.ErrNotInCluster.
func ClientConfig(kubeconfig, userAgent string) (*rest.Config, error) {
	load := rest.InClusterConfig
	if kubeconfig != "" {
		load = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", kubeconfig) }
	}
	config, err := load()
	if err != nil {
		return nil, fmt.Errorf("configure the API client: %w", err)
	}
	config.UserAgent = userAgent
	return config, nil
}
