// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin is a device plugin whose devices are nothing but an ID: what
// tests have in place of those that hand out cards.
package deviceplugin

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type server struct {
	v1beta1.UnimplementedDevicePluginServer
	devices []*v1beta1.Device
}

// New returns a gRPC server with a device plugin that has healthy devices with these IDs.
func New(ids ...string) *grpc.Server {
	s := &server{}
	for _, id := range ids {
		s.devices = append(s.devices, &v1beta1.Device{ID: id, Health: v1beta1.Healthy})
	}
	out := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(out, s)
	return out
}

// Register tells a kubelet, by its registration socket, that a resource is served by
// the socket endpoint, which lies beside it.
func Register(ctx context.Context, kubelet, endpoint, resource string) error {
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
