// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin is a device plugin whose devices are nothing but an ID: what
// tests have in place of those that hand out GPUs.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type server struct {
	v1beta1.UnimplementedDevicePluginServer
	devices []*v1beta1.Device
}

// Plugin is a device plugin that a kubelet knows.
type Plugin struct {
	server *grpc.Server
	served chan error
}

// Start serves healthy devices with these IDs at a socket, and tells a kubelet, by its registration socket in the
// same directory, that they are the resource's. A kubelet that starts meanwhile removes the sockets that it finds
// there before it listens; of a Start that failed nothing is left, and another one listens again.
func Start(ctx context.Context, kubelet, socket, resource string, ids ...string) (*Plugin, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen as a device plugin for %s: %w", resource, err)
	}
	devices := &server{}
	for _, id := range ids {
		devices.devices = append(devices.devices, &v1beta1.Device{ID: id, Health: v1beta1.Healthy})
	}
	p := &Plugin{server: grpc.NewServer(), served: make(chan error, 1)}
	v1beta1.RegisterDevicePluginServer(p.server, devices)
	go func() { p.served <- p.server.Serve(listener) }()
	if err := register(ctx, kubelet, filepath.Base(socket), resource); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// Stop ends the plugin and removes its socket. A plugin ends once.
func (p *Plugin) Stop() error {
	p.server.Stop()
	if err := <-p.served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve as a device plugin: %w", err)
	}
	return nil
}

func register(ctx context.Context, kubelet, endpoint, resource string) error {
	connection, err := grpc.NewClient("unix:"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect with the kubelet at %s: %w", kubelet, err)
	}
	defer connection.Close()
	_, err = v1beta1.NewRegistrationClient(connection).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: endpoint, ResourceName: resource,
	})
	if err != nil {
		return fmt.Errorf("register a device plugin for %s with the kubelet at %s: %w", resource, kubelet, err)
	}
	return nil
}

func (*server) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (s *server) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: s.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate gives a container nothing; that it has the devices, the kubelet knows.
func (*server) Allocate(_ context.Context, r *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	answer := &v1beta1.AllocateResponse{}
	for range r.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &v1beta1.ContainerAllocateResponse{})
	}
	return answer, nil
}
