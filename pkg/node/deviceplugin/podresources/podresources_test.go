// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
)

// kubelet lists pod ns/p.
type kubelet struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
}

func (kubelet) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse,
	error) {
	return &podresourcesv1.ListPodResourcesResponse{PodResources: []*podresourcesv1.PodResources{{
		Namespace: "ns", Name: "p", Containers: []*podresourcesv1.ContainerResources{
			{Name: "a", Devices: []*podresourcesv1.ContainerDevices{
				// The kubelet lists devices of one resource NUMA node by NUMA node.
				{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-1"}},
				{ResourceName: "example.com/nic", DeviceIds: []string{"nic-0"}},
				{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-2"}},
			}},
			{Name: "b", DynamicResources: []*podresourcesv1.DynamicResource{{ClaimName: "c", ClaimNamespace: "ns",
				ClaimResources: []*podresourcesv1.ClaimResource{
					{DriverName: "gpu.nvidia.com", PoolName: "n1", DeviceName: "gpu-0"},
					{DriverName: "gpu.aliyun.com", PoolName: "n1/gpu", DeviceName: "gpu-1"},
				}}}},
			{Name: "c", Devices: []*podresourcesv1.ContainerDevices{
				{ResourceName: "aliyun.com/gpu-mem", DeviceIds: []string{"GPU-1-_-0", "GPU-2-_-7"}},
				{ResourceName: "aliyun.com/gpu"},
			}},
		},
	}}}, nil
}

// serve has the kubelet serve at the socket, until stopped.
func serve(t *testing.T, served podresourcesv1.PodResourcesListerServer) (socket string, stop func()) {
	t.Helper()
	// A socket's path has 107 bytes at most; that of a temporary directory may have more.
	dir, err := os.Open(t.TempDir())
	expect.NoError(t, err)
	socket = fmt.Sprintf("/proc/self/fd/%d/kubelet.sock", dir.Fd())
	listener, err := net.Listen("unix", socket)
	expect.NoError(t, err)
	server := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(server, served)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	return socket, func() {
		server.Stop()
		expect.Error(t, errors.Join(<-ended, dir.Close()))
	}
}

func TestDevicesOfContainers(t *testing.T) {
	socket, stop := serve(t, kubelet{})
	defer stop()
	client := Client{Socket: socket, Own: cache.ObjectName{Namespace: "ns", Name: "p"}}
	got, err := client.Devices(t.Context())
	expect.NoError(t, err)
	want := map[deviceplugin.Container]deviceplugin.Devices{
		{Namespace: "ns", Pod: "p", Name: "a"}: {Resources: []corev1.ResourceName{"nvidia.com/gpu"},
			IDs: []string{"GPU-1", "GPU-2"}},
		{Namespace: "ns", Pod: "p", Name: "b"}: {},
		{Namespace: "ns", Pod: "p", Name: "c"}: {Resources: []corev1.ResourceName{"aliyun.com/gpu-mem"}},
	}
	expect.Equal(t, want, got, "devices")
	claimed, err := client.Claimed(t.Context())
	expect.NoError(t, err)
	wantClaimed := []Claimed{{"gpu.nvidia.com", "n1", "gpu-0", "ns/p"}, {"gpu.aliyun.com", "n1/gpu", "gpu-1", "ns/p"}}
	expect.Equal(t, wantClaimed, claimed, "devices of DRA drivers")
}

// A kubelet that has just been started lists no pods of the API server's yet: nobody may take it for
// one that gave them nothing.
func TestKubeletThatDoesNotKnowThePodsYet(t *testing.T) {
	socket, stop := serve(t, kubelet{})
	defer stop()
	for _, own := range []cache.ObjectName{{Namespace: "ns", Name: "other"}, {Namespace: "other", Name: "p"}} {
		client := Client{Socket: socket, Own: own}
		_, devicesErr := client.Devices(t.Context())
		_, claimedErr := client.Claimed(t.Context())
		for _, err := range []error{devicesErr, claimedErr} {
			expect.Error(t, err, own.String())
		}
	}
	if _, err := (Client{Socket: socket}).Devices(t.Context()); err != nil {
		t.Errorf("outside of a pod: %v", err)
	}
}

func TestKubeletThatDoesNotAnswer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	_, err := (Client{Socket: socket}).Devices(t.Context())
	expect.Error(t, err, socket)
}
