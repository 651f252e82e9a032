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
	socket := filepath.Join(v1beta1.DevicePluginPath, "standin.sock")
	// A predecessor that was killed leaves it.
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	plugin, err := deviceplugin.Start(ctx, v1beta1.KubeletSocket, socket, arguments[0], ids...)
	if err != nil {
		return err
	}
	<-ctx.Done()
	return plugin.Stop()
}
