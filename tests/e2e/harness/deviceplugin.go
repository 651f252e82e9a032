// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpushare/dra-driver-gpushare/tests/deviceplugin"
)

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
	endpoint := "e2e-" + strings.ReplaceAll(resource, "/", "-") + ".sock"
	socket := c.Socket(t, node, v1beta1.DevicePluginPath, endpoint)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatalf("listen as a device plugin of node %s: %v", node, err)
	}
	server := deviceplugin.New(ids...)
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
	if err := deviceplugin.Register(t.Context(), c.Socket(t, node, v1beta1.KubeletSocket), endpoint,
		resource); err != nil {
		t.Fatalf("node %s: %v", node, err)
	}
	return stop
}
