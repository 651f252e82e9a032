package harness

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// devicePlugin offers devices that are nothing but an ID.
type devicePlugin struct {
	deviceplugin.UnimplementedDevicePluginServer
	devices []*deviceplugin.Device
}

func (*devicePlugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

func (p *devicePlugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	if err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate gives a container nothing; that it has the devices, the kubelet knows.
func (*devicePlugin) Allocate(_ context.Context, r *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	answer := &deviceplugin.AllocateResponse{}
	for range r.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &deviceplugin.ContainerAllocateResponse{})
	}
	return answer, nil
}

// DevicePlugin has a device plugin serve so many devices of a resource on a node,
// until the returned function is called or the test ends.
func (c *Cluster) DevicePlugin(t *testing.T, node, resource string, devices int) (stop func()) {
	t.Helper()
	var ids []string
	for i := range devices {
		ids = append(ids, fmt.Sprint(i))
	}
	return c.DevicePluginOf(t, node, resource, ids...)
}

// DevicePluginOf is DevicePlugin for devices with these IDs.
func (c *Cluster) DevicePluginOf(t *testing.T, node, resource string, ids ...string) (stop func()) {
	t.Helper()
	plugin := &devicePlugin{}
	for _, id := range ids {
		plugin.devices = append(plugin.devices, &deviceplugin.Device{ID: id, Health: deviceplugin.Healthy})
	}
	endpoint := "e2e-" + strings.ReplaceAll(resource, "/", "-") + ".sock"
	socket := c.Socket(t, node, deviceplugin.DevicePluginPath, endpoint)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatalf("listen as a device plugin of node %s: %v", node, err)
	}
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, plugin)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	stop = func() {
		server.Stop()
		if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
			t.Errorf("remove the device plugin's socket: %v", err)
		}
	}
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("serve as a device plugin of node %s: %v", node, err)
		}
	})
	connection, err := grpc.NewClient("unix:"+c.Socket(t, node, deviceplugin.KubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("connect with the kubelet of node %s: %v", node, err)
	}
	defer connection.Close()
	_, err = deviceplugin.NewRegistrationClient(connection).Register(t.Context(), &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: endpoint, ResourceName: resource,
	})
	if err != nil {
		t.Fatalf("register a device plugin for %s with the kubelet of node %s: %v", resource, node, err)
	}
	return stop
}
