// Package program is what the driver's programs have in common around their
// work: logging and the connection to the API server.
package program

import (
	"flag"
	"fmt"
	"strconv"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

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
