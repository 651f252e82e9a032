// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
)

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

func TestDevicesOfContainers(t *testing.T) {
	// A socket's path has 107 bytes at most; that of a temporary directory may have more.
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	socket := fmt.Sprintf("/proc/self/fd/%d/kubelet.sock", dir.Fd())
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(server, kubelet{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	got, err := Client(socket).Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[deviceplugin.Container]deviceplugin.Devices{
		{Namespace: "ns", Pod: "p", Name: "a"}: {Resources: []corev1.ResourceName{"nvidia.com/gpu"},
			IDs: []string{"GPU-1", "GPU-2"}},
		{Namespace: "ns", Pod: "p", Name: "b"}: {},
		{Namespace: "ns", Pod: "p", Name: "c"}: {Resources: []corev1.ResourceName{"aliyun.com/gpu-mem"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	claimed, err := Client(socket).Claimed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantClaimed := []Claimed{{"gpu.nvidia.com", "n1", "gpu-0", "ns/p"}, {"gpu.aliyun.com", "n1/gpu", "gpu-1", "ns/p"}}
	if diff := cmp.Diff(wantClaimed, claimed); diff != "" {
		t.Errorf("devices of DRA drivers (-want +got):\n%s", diff)
	}
	server.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestKubeletThatDoesNotAnswer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	if _, err := Client(socket).Devices(t.Context()); err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("error %v: it has to name the socket", err)
	}
}
