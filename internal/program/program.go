// SPDX-License-Identifier: Apache-2.0

// Package program is what the driver's programs have in common around their
// work: their start and end, logging, and the connection to the API server.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/urfave/cli/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/version"
)

// Main runs the command until it ends, or until the process is asked to, and
// returns the process' exit status. An error is written to standard error.
func Main(command *cli.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	command.Version = version.String()
	// Without the library's alias -v, which is the verbosity here.
	cli.VersionFlag = &cli.BoolFlag{Name: "version", Usage: "print the version", Local: true}
	err := command.Run(ctx, os.Args)
	stop()
	klog.Flush()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", command.Name, err)
		return 1
	}
	return 0
}

// LogFlag is the flag of every program that SetUpLogging takes.
func LogFlag() cli.Flag {
	return &cli.IntFlag{Name: "v", Sources: cli.EnvVars("LOG_VERBOSITY"), Value: 2,
		Usage: "log verbosity; 6 shows every gRPC call of the plugin"}
}

// SettingsDirFlag is the flag of the programs that end when their settings change.
func SettingsDirFlag() cli.Flag {
	return &cli.StringFlag{Name: "settings-dir", Sources: cli.EnvVars("SETTINGS_DIR"),
		Usage: "volume with the ConfigMap of the settings: the program restarts when it changes; empty for never"}
}

// SetUpLogging sets how much is logged, and logs the version first.
func SetUpLogging(ctx context.Context, verbosity int) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(verbosity)); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Starting", "program", filepath.Base(os.Args[0]), "version", version.String())
	return nil
}

// ClientConfig says how to reach the API server: as the kubeconfig file does,
// or, without one, with the pod's service account. Outside of a pod that is
// rest.ErrNotInCluster. Client makes a client of it.
func ClientConfig(kubeconfig, userAgent string) (*rest.Config, error) {
	load := rest.InClusterConfig
	if kubeconfig != "" {
		load = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", kubeconfig) }
	}
	config, err := load()
	if errors.Is(err, rest.ErrNotInCluster) {
		err = fmt.Errorf("%w: run as a pod with a service account, or give --kubeconfig", err)
	}
	if err != nil {
		return nil, fmt.Errorf("configure the API client: %w", err)
	}
	config.UserAgent = userAgent
	return config, nil
}

// Client makes a client that sends so many requests per second, and in a burst.
func Client(config *rest.Config, qps float32, burst int) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = qps, burst
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+
		runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the API client: %w", err)
	}
	return client, nil
}

// Metadata makes a client like Client that reads the metadata of objects alone, also where it changes them.
func Metadata(config *rest.Config, qps float32, burst int) (metadata.Interface, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = qps, burst
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the API client for metadata: %w", err)
	}
	return client, nil
}
