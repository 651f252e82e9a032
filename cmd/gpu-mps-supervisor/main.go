// Command gpu-mps-supervisor keeps one MPS control daemon running for each of
// the node's cards, apart from the plugin, so that an upgrade of the plugin ends
// no client.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := command().Run(ctx, os.Args)
	stop()
	klog.Flush()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu-mps-supervisor:", err)
		os.Exit(1)
	}
}
