// Command gpu-kubelet-plugin publishes a node's NVIDIA cards through Dynamic
// Resource Allocation and prepares the claims that are allocated from them.
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
		fmt.Fprintln(os.Stderr, "gpu-kubelet-plugin:", err)
		os.Exit(1)
	}
}
