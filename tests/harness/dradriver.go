// SPDX-License-Identifier: Apache-2.0

//go:build !small

package harness

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// DRADriver has another DRA driver publish GPUs of a node by their UUIDs, as NVIDIA's does, and
// give them to pods, until the returned function is called or the test ends.
func (c *Cluster) DRADriver(t *testing.T, node, name string, uuids ...string) (stop func()) {
	t.Helper()
	dir := filepath.Join(kubeletplugin.KubeletPluginsDir, name)
	expect.NoError(t, os.MkdirAll(c.NodeFile(node, dir), 0o750))
	listen := func(_ context.Context, path string) (net.Listener, error) {
		return net.Listen("unix", c.Socket(t, node, path))
	}
	ctx := context.WithoutCancel(t.Context())
	helper, err := kubeletplugin.Start(ctx, draDriver{},
		kubeletplugin.DriverName(name), kubeletplugin.KubeClient(c.Client), kubeletplugin.NodeName(node),
		kubeletplugin.PluginDataDirectoryPath(dir), kubeletplugin.PluginListener(listen),
		kubeletplugin.RegistrarListener(listen), kubeletplugin.HealthService(false))
	expect.NoErrorf(t, err, "start a DRA driver on node %s", node)
	stop = sync.OnceFunc(func() {
		helper.Stop()
		// The kubelet does so half a minute later.
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		if err := c.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
			FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node + "," +
				resourceapi.ResourceSliceSelectorDriver + "=" + name}); err != nil {
			t.Errorf("delete what the DRA driver published: %v", err)
		}
	})
	t.Cleanup(stop)
	var devices []resourceapi.Device
	for i, uuid := range uuids {
		devices = append(devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: ptr.To(uuid)}}})
	}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		node: {Slices: []resourceslice.Slice{{Devices: devices}}}}}); err != nil {
		t.Fatalf("publish as a DRA driver of node %s: %v", node, err)
	}
	return stop
}

// draDriver gives containers nothing but what the kubelet says that they have.
type draDriver struct{}

// PrepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (draDriver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (
	map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var devices []kubeletplugin.Device
		for _, r := range claim.Status.Allocation.Devices.Results {
			devices = append(devices, kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool,
				DeviceName: r.Device})
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices}
	}
	return results, nil
}

// UnprepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (draDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (
	map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = nil
	}
	return results, nil
}

// HandleError implements [kubeletplugin.DRAPlugin].
func (draDriver) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
}

// WatchHealthStatus implements [kubeletplugin.DRAPlugin].
func (draDriver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
