// SPDX-License-Identifier: Apache-2.0

// Command standin is a device plugin in a pod, for a resource with so many devices:
//
//	standin aliyun.com/gpu-mem 60
//
// It ends when it is told to, and with an error when the kubelet cannot be told of it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpushare/dra-driver-gpushare/tests/standins/deviceplugin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "standin:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) != 2 {
		return fmt.Errorf("want a resource and the number of its devices, got %q", arguments)
	}
	count, err := strconv.Atoi(arguments[1])
	if err != nil {
		return fmt.Errorf("the number of devices: %w", err)
	}
	var ids []string
	for i := range count {
		ids = append(ids, strconv.Itoa(i))
	}
	const endpoint = "standin.sock"
	socket := filepath.Join(v1beta1.DevicePluginPath, endpoint)
	// A predecessor that was killed leaves it.
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := deviceplugin.New(ids...)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err := deviceplugin.Register(ctx, v1beta1.KubeletSocket, endpoint, arguments[0]); err != nil {
		return err
	}
	<-ctx.Done()
	server.Stop()
	return <-served
}
