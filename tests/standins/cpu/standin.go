// SPDX-License-Identifier: Apache-2.0

// Package cpu stands in for dra-driver-cpu of kubernetes-sigs in tests: it publishes
// the CPUs of a node in the shapes of two of that driver's versions, and prepares claims for
// them. Containers get the variable by which the driver tells its
// plugin of the container runtime which CPUs they have; nobody pins them here.
package cpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// DriverName is the driver's, and its DeviceClass's.
const DriverName = "dra.cpu"

const (
	capacity = DriverName + "/cpu"
	// machine is the device of all CPUs. A scheduler of its own has to name CPUs of it in the claim.
	machine = "cpudevmachine"
	kind    = "dra.k8s.io/cpu"
	// variable begins the name of the variable of a claim's containers; the claim's UID
	// follows.
	variable = "DRA_CPUSET_"
)

// Variable is the name of the variable in the containers that have CPUs of a claim. Its
// value is the devices' names.
func Variable(claim types.UID) string { return variable + string(claim) }

// Node is where the driver is to be.
type Node struct {
	Name string
	// CPUs are the numbers of CPUs by NUMA node, Shape and Layout how they are published.
	CPUs   map[int64]int64
	Shape  Shape
	Layout Layout
	// CDIDir is the directory of CDI specs, as seen from here.
	CDIDir string
	// Registrar and Plugin are the driver's sockets as seen from here, Data is where the
	// kubelet finds the latter.
	Registrar, Plugin, Data string
}

// Start runs the driver on a node until stop is called.
func Start(ctx context.Context, client kubernetes.Interface, n Node) (stop func(), err error) {
	listen := func(socket string) func(context.Context, string) (net.Listener, error) {
		return func(ctx context.Context, _ string) (net.Listener, error) {
			if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			return new(net.ListenConfig).Listen(ctx, "unix", socket)
		}
	}
	helper, err := kubeletplugin.Start(ctx, driver{n.CDIDir},
		kubeletplugin.DriverName(DriverName), kubeletplugin.KubeClient(client), kubeletplugin.NodeName(n.Name),
		kubeletplugin.PluginDataDirectoryPath(n.Data), kubeletplugin.PluginListener(listen(n.Plugin)),
		kubeletplugin.RegistrarListener(listen(n.Registrar)), kubeletplugin.HealthService(false))
	if err != nil {
		return nil, fmt.Errorf("run %s on node %s: %w", DriverName, n.Name, err)
	}
	if err := helper.PublishResources(ctx, published(n)); err != nil {
		helper.Stop()
		return nil, fmt.Errorf("publish the CPUs of node %s: %w", n.Name, err)
	}
	return helper.Stop, nil
}

func published(n Node) resourceslice.DriverResources {
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		n.Name: {Slices: []resourceslice.Slice{{Devices: Devices(n.Shape, n.Layout, n.CPUs)}}}}}
}

// driver keeps the CDI specs of claims in a directory.
type driver struct{ dir string }

var _ kubeletplugin.DRAPlugin = driver{}

// PrepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (d driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (
	map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	var devices []kubeletplugin.Device
	value, name := "", "claim-"+string(claim.UID)
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != DriverName {
			continue
		}
		if result.Device == machine {
			return nil, fmt.Errorf("request %s is targeted by 0 configurations, must be targeted by exactly 1", result.Request)
		}
		// The driver refuses what is no positive whole number.
		amount, asked := result.ConsumedCapacity[capacity]
		if n := amount.Value(); !asked || n < 1 || amount.CmpInt64(n) != 0 {
			return nil, fmt.Errorf("%s of device %s is %s", capacity, result.Device, amount.String())
		}
		if value != "" {
			value += ","
		}
		value += result.Device
		devices = append(devices, kubeletplugin.Device{Requests: []string{result.Request}, PoolName: result.Pool,
			DeviceName: result.Device, CDIDeviceIDs: []string{kind + "=" + name}, ShareID: result.ShareID})
	}
	spec := specs.Spec{Version: "0.6.0", Kind: kind, Devices: []specs.Device{{Name: name,
		ContainerEdits: specs.ContainerEdits{Env: []string{Variable(claim.UID) + "=" + value}}}}}
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return devices, os.WriteFile(d.path(claim.UID), data, 0o644)
}

// UnprepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (d driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (
	map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(d.path(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (d driver) path(claim types.UID) string {
	return filepath.Join(d.dir, DriverName+"-"+string(claim)+".json")
}

// HandleError implements [kubeletplugin.DRAPlugin].
func (driver) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
}

// WatchHealthStatus implements [kubeletplugin.DRAPlugin].
func (driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
