// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
)

// CheckReady reports whether the instance that was given this ReadyFile serves: the
// kubelet has registered it. It is for a probe in the instance's container.
func CheckReady(readyFile string) error {
	_, err := os.Stat(readyFile)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the kubelet has not registered this plugin yet (there is no %s): its log says what it waits for",
			readyFile)
	}
	return err
}

// CheckHealthy asks the instance with this configuration over its sockets, as the kubelet
// does. What it does not answer only another process repairs.
func CheckHealthy(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeout(ctx, aliveLimit)
	defer cancel()
	registrar, dra := cfg.registrarSocket(), cfg.draSocket()
	err := ask(registrar, func(c *grpc.ClientConn) error {
		_, err := registerapi.NewRegistrationClient(c).GetInfo(ctx, &registerapi.InfoRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("ask for the plugin's name at %s: %w", registrar, err)
	}
	err = ask(dra, func(c *grpc.ClientConn) error {
		_, err := drapb.NewDRAPluginClient(c).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("ask for no claims to be prepared at %s: %w", dra, err)
	}
	return nil
}

func ask(socket string, call func(*grpc.ClientConn) error) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	return errors.Join(call(conn), conn.Close())
}

func makeReadyFile(path string) error {
	if path == "" {
		return nil
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("tell by the ready file that the plugin serves: %w", err)
	}
	return nil
}

// removeReadyFile removes what an earlier process left.
func removeReadyFile(path string) error {
	if path == "" {
		return nil
	}
	if err := atomicfile.Remove(path); err != nil {
		return fmt.Errorf("remove an old ready file: %w", err)
	}
	return nil
}
