// SPDX-License-Identifier: Apache-2.0

//go:build !small

package harness

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpushare/dra-driver-gpushare/tests/standins/deviceplugin"
)

// DevicePlugin has a device plugin serve so many devices of a resource on a node, other than
// what the node shows, until the returned function is called or the test ends. The kubelet has
// forgotten it then: as long as it has not, the driver takes it for one without healthy devices.
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
	kubelet := c.Socket(t, node, v1beta1.KubeletSocket)
	var plugin *deviceplugin.Plugin
	// A kubelet that was just started may not listen yet.
	Eventually(t, "the kubelet of node "+node+" to register the device plugin", func(ctx context.Context) (err error) {
		plugin, err = deviceplugin.Start(ctx, kubelet, socket, resource, ids...)
		return err
	})
	stop = sync.OnceFunc(func() {
		if err := plugin.Stop(); err != nil {
			t.Errorf("node %s: %v", node, err)
		}
		c.forgetDevicePlugin(t, node, resource, len(ids))
	})
	t.Cleanup(stop)
	return stop
}

// forgetDevicePlugin has the kubelet forget a device plugin that has ended: for five minutes
// more it would show what the plugin had, none of it allocatable, in the node's status.
func (c *Cluster) forgetDevicePlugin(t *testing.T, node, resource string, had int) {
	// Commands to the cluster wait for each other.
	const patience = 5 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := c.tool(ctx, "node", "restart-kubelet", node); err != nil {
		t.Error(err)
		return
	}
	if err := Poll(ctx, Timeout, func(ctx context.Context) error {
		n, err := c.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if capacity := n.Status.Capacity[corev1.ResourceName(resource)]; capacity.Value() == int64(had) {
			return fmt.Errorf("its status shows %d %s", had, resource)
		}
		// A kubelet that has just started does not know its pods yet.
		_, err = c.PluginLog(ctx, node, metav1.Now())
		return err
	}); err != nil {
		t.Errorf("waited for node %s to forget the device plugin of %s: %v", node, resource, err)
	}
}
