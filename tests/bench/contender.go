// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v3"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/clientcmd"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/driver"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/report"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// manyClaims is how many claims there are for each driver that gives out shares.
const manyClaims = 100

// answerTimeout bounds each step that only a defect makes slow.
const answerTimeout = 30 * time.Second

const (
	// trivialDriver is the name of the driver in tests/bench/trivial and of its DeviceClass, nvidiaDriver that of
	// NVIDIA's.
	trivialDriver = "trivial.bench.test"
	nvidiaDriver  = "gpu.nvidia.com"
	// socketNode is a Node without a kubelet, on which the drivers run that the benchmark starts itself. NVIDIA's
	// driver has another Node: this driver grants no GPUs that another one publishes on its node, unless a kubelet
	// tells who has them. An older build of this driver has a third.
	socketNode = "bench-socket"
	nvidiaNode = "bench-nvidia"
	beforeNode = "bench-before"
)

// contender is a driver under comparison, with its measurements.
type contender struct {
	driver.Driver
	// name names its directory and its template of claims, column its column in the table.
	name, column string
	// node is a Node without a kubelet, on which the driver believes to be.
	node string
	// installed is the program in its container, empty if the cluster does not have it.
	installed string
	// request is the request of its claims, and device returns what the scheduler writes into a claim for GPU i.
	request resourceapi.DeviceRequest
	device  func(i int) resourceapi.DeviceRequestAllocationResult
	// claims are claimCount claims that are allocated, as the kubelet names them to a driver.
	claimCount int
	claims     []*drapb.Claim
	// process and socket are set while it serves.
	process *driver.Process
	socket  *driver.Socket

	prepare, again, unprepare, burst report.Sample
	sockets, published               report.Sample
	pods                             podTimes
}

// contenders returns the drivers under comparison, with the driver root of a simulated node.
func contenders(c *cli.Command, dir string) ([]*contender, error) {
	machine, err := sim.Load(c.String("machine"))
	if err != nil {
		return nil, err
	}
	root := filepath.Join(dir, "root")
	library, err := os.ReadFile(c.String("nvml"))
	if err != nil {
		return nil, fmt.Errorf("read the NVML library: %w", err)
	}
	err = machine.ForNode(socketNode).WriteRoot(root, sim.Part{Name: sim.NVMLLibrary, Content: library})
	if err != nil {
		return nil, err
	}
	own := func(name, program, node string) *contender {
		return &contender{name: name, column: name, node: node, claimCount: manyClaims,
			request: harness.Share(request, "1Gi"),
			device:  func(i int) resourceapi.DeviceRequestAllocationResult { return shareOf(node, i) },
			Driver: driver.Driver{Name: v1alpha1.DriverName, Program: program,
				Args: []string{"--driver-root", root, "--sysfs-root", filepath.Join(root, sim.SysDir),
					"--cdi-hook", c.String("hook"), "--mps-check", "", "--memory-limit-hook", ""}}}
	}
	ours := own("gpushare", c.String("plugin"), socketNode)
	ours.installed = "/usr/bin/gpu-kubelet-plugin"
	all := []*contender{ours, {name: "trivial", column: "trivial driver", node: socketNode, installed: "/trivial",
		claimCount: manyClaims, request: ofClass(trivialDriver), device: whole(trivialDriver, socketNode, "device-"),
		Driver: driver.Driver{Name: trivialDriver, Program: c.String("trivial")}}}
	if program := c.String("before"); program != "" {
		all = append(all, own("before", program, beforeNode))
	}
	if c.String("nvidia") != "" {
		// It gives out whole GPUs, one to a claim.
		all = append(all, &contender{name: "nvidia", column: "NVIDIA's driver", node: nvidiaNode,
			installed: "/nvidia/gpu-kubelet-plugin", claimCount: gpus, request: ofClass(nvidiaDriver),
			device: whole(nvidiaDriver, nvidiaNode, "gpu-"),
			Driver: driver.Driver{Name: nvidiaDriver, Program: c.String("nvidia"),
				Flags: driver.Flags{Plugins: "--kubelet-plugins-directory-path",
					Registrar: "--kubelet-registrar-directory-path", CDI: "--cdi-root"},
				Args: []string{"--nvidia-driver-root", root, "--container-driver-root", root, "--image-name", "none",
					"--nvidia-cdi-hook-path", c.String("hook")}}})
	}
	for _, d := range all {
		d.Dir = filepath.Join(dir, d.name)
		kubeconfig := c.String("kubeconfig")
		if d.Name == v1alpha1.DriverName {
			kubeconfig = filepath.Join(d.Dir, "kubeconfig")
			if err := asPlugin(c.String("kubeconfig"), kubeconfig, d.node); err != nil {
				return nil, err
			}
		}
		d.Args = append(d.Args, "--kubeconfig", kubeconfig, "--node-name", d.node)
	}
	return all, nil
}

// asPlugin writes a kubeconfig with the identity of a node's plugin: the policies let nobody else publish slices with
// the names of the plugin's slices.
func asPlugin(admin, out, node string) error {
	config, err := clientcmd.LoadFromFile(admin)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate = "system:serviceaccount:kube-system:gpu-kubelet-plugin"
		user.ImpersonateUserExtra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	return clientcmd.WriteToFile(*config, out)
}

// serve starts the contender and waits until it has answered once: a first
// call also sets up connections.
func (c *contender) serve(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if c.process, err = c.Start(); err != nil {
		return err
	}
	if c.socket, err = c.process.Connect(ctx); err != nil {
		return err
	}
	if _, err = c.socket.Prepare(ctx, c.claims[0]); err == nil {
		_, err = c.socket.Unprepare(ctx, c.claims[0])
	}
	if err != nil {
		return fmt.Errorf("%w: see %s", err, c.Log())
	}
	return nil
}

// serveAll starts all contenders, and stops them again if one fails. The returned function stops them.
func (b *bench) serveAll(ctx context.Context) (stop func(), err error) {
	stop = func() {
		for _, c := range b.contenders {
			if c.socket != nil {
				_ = c.socket.Close()
			}
			if c.process != nil {
				c.process.Stop()
			}
			c.process, c.socket = nil, nil
		}
	}
	for _, c := range b.contenders {
		if err := c.serve(ctx); err != nil {
			return stop, err
		}
	}
	return stop, nil
}
