// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// kubelet asks whoever registers for the devices, as the kubelet does before it answers.
type kubelet struct {
	v1beta1.UnimplementedRegistrationServer
	dir      string
	starting bool
	devices  []string
}

func (k *kubelet) Register(ctx context.Context, r *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	socket := filepath.Join(k.dir, r.Endpoint)
	if k.starting {
		k.starting = false
		if err := os.Remove(socket); err != nil {
			return nil, err
		}
	}
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	stream, err := v1beta1.NewDevicePluginClient(connection).ListAndWatch(ctx, &v1beta1.Empty{})
	if err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	for _, d := range answer.Devices {
		k.devices = append(k.devices, d.ID)
	}
	return &v1beta1.Empty{}, nil
}

// A kubelet that removed the socket as it started gets another one.
func TestStartAgain(t *testing.T) {
	dir := t.TempDir()
	k := &kubelet{dir: dir, starting: true}
	socket := filepath.Join(dir, "kubelet.sock")
	listener, err := net.Listen("unix", socket)
	expect.NoError(t, err)
	server := grpc.NewServer()
	v1beta1.RegisterRegistrationServer(server, k)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	start := func() (*Plugin, error) {
		return Start(t.Context(), socket, filepath.Join(dir, "p.sock"), "example.com/gpu", "0", "1")
	}
	if plugin, err := start(); err == nil || plugin != nil || !strings.Contains(err.Error(), "example.com/gpu") {
		t.Fatalf("without a socket: %v, %v; want an error that names the resource", plugin, err)
	}
	plugin, err := start()
	expect.NoError(t, err)
	if got := strings.Join(k.devices, " "); got != "0 1" {
		t.Errorf("the kubelet knows devices %q, want 0 1", got)
	}
	if err := plugin.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "p.sock")); !os.IsNotExist(err) {
		t.Errorf("after its end the socket: %v, want none", err)
	}
}
