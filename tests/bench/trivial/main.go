// SPDX-License-Identifier: Apache-2.0

// Command trivial is the least a DRA driver can be on the kubelet plugin helper:
// it publishes some devices, writes one CDI file for a claim and removes it
// again. It keeps no state, checks nothing and survives nothing. It is the
// floor that the benchmark measures the product against.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v3"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
)

const (
	driverName = "trivial.bench.test"
	// devices is how many devices the driver publishes.
	devices = 8
)

func main() { os.Exit(program.Main(command())) }

func command() *cli.Command {
	return &cli.Command{
		Name:  "trivial",
		Usage: "a DRA driver that does next to nothing",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "node-name", Sources: cli.EnvVars("NODE_NAME"), Required: true},
			&cli.StringFlag{Name: "kubeconfig", Usage: "by default the pod's service account is used"},
			&cli.StringFlag{Name: "plugins-dir", Value: kubeletplugin.KubeletPluginsDir},
			&cli.StringFlag{Name: "registrar-dir", Value: kubeletplugin.KubeletRegistryDir},
			&cli.StringFlag{Name: "cdi-dir", Value: "/var/run/cdi"},
		},
		Action: run,
	}
}

func run(ctx context.Context, c *cli.Command) error {
	config, err := program.ClientConfig(c.String("kubeconfig"), driverName)
	if err != nil {
		return err
	}
	client, err := program.Client(config, 200, 400) // the product's rates, so that only the drivers differ
	if err != nil {
		return err
	}
	pluginDir := filepath.Join(c.String("plugins-dir"), driverName)
	if err := os.MkdirAll(pluginDir, 0o750); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, driver{cdiDir: c.String("cdi-dir")},
		kubeletplugin.DriverName(driverName),
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(c.String("node-name")),
		kubeletplugin.PluginDataDirectoryPath(pluginDir),
		kubeletplugin.RegistrarDirectoryPath(c.String("registrar-dir")),
		kubeletplugin.HealthService(false),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	if err := helper.PublishResources(ctx, resources(c.String("node-name"))); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func resources(node string) resourceslice.DriverResources {
	slice := resourceslice.Slice{}
	for i := range devices {
		slice.Devices = append(slice.Devices, resourceapi.Device{Name: fmt.Sprintf("device-%d", i)})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		node: {Slices: []resourceslice.Slice{slice}},
	}}
}

type driver struct{ cdiDir string }

const kind = driverName + "/claim"

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
	spec := specs.Spec{Version: "0.6.0", Kind: kind}
	var devices []kubeletplugin.Device
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driverName {
			continue
		}
		name := string(claim.UID) + "-" + result.Device
		spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{Env: []string{
			"DEVICE=" + result.Device}}})
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device,
			CDIDeviceIDs: []string{kind + "=" + name},
		})
	}
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

func (d driver) path(uid types.UID) string {
	return filepath.Join(d.cdiDir, driverName+"-"+string(uid)+".json")
}

// HandleError implements [kubeletplugin.DRAPlugin].
func (driver) HandleError(ctx context.Context, err error, msg string) {
	klog.FromContext(ctx).Error(err, msg)
}

// WatchHealthStatus implements [kubeletplugin.DRAPlugin].
func (driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
