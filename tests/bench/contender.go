// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v3"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/driver"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// claimCount is how many claims there are for each driver.
const claimCount = 100

// answerTimeout bounds each step that only a defect makes slow.
const answerTimeout = 30 * time.Second

// contender is a driver that is compared, with claims allocated from it.
type contender struct {
	driver.Driver
	// node is a Node without a kubelet, on which the driver believes to be.
	node   string
	claims []*drapb.Claim
}

func (b *bench) makeContenders(ctx context.Context, c *cli.Command) error {
	machine, err := sim.Load(c.String("machine"))
	if err != nil {
		return err
	}
	root := filepath.Join(b.dir, "root")
	library, err := os.ReadFile(c.String("nvml"))
	if err != nil {
		return fmt.Errorf("read the NVML library: %w", err)
	}
	err = machine.ForNode(socketNode).WriteRoot(root, sim.Part{Name: sim.NVMLLibrary, Content: library})
	if err != nil {
		return err
	}
	common := []string{"--kubeconfig", c.String("kubeconfig"), "--node-name"}
	b.gpushare = &contender{node: socketNode, Driver: driver.Driver{
		Name: v1alpha1.DriverName, Program: c.String("plugin"), Dir: filepath.Join(b.dir, "gpushare"),
		Args: append([]string{
			"--driver-root", root, "--sysfs-root", filepath.Join(root, sim.SysDir), "--cdi-hook", c.String("hook"),
			"--mps-check", "", "--memory-limit-hook", "",
		}, append(common, socketNode)...),
	}}
	b.trivial = &contender{node: socketNode, Driver: driver.Driver{
		Name: trivialDriver, Program: c.String("trivial"), Dir: filepath.Join(b.dir, "trivial"),
		Args: append(common, socketNode),
	}}
	if b.gpushare.claims, err = b.makeClaims(ctx, "gpushare", claimCount, claimSpec("share."+v1alpha1.DriverName,
		shareRequest()), shareOfGPU); err != nil {
		return err
	}
	b.trivial.claims, err = b.makeClaims(ctx, "trivial", claimCount, claimSpec(trivialDriver, nil), trivialDevice)
	if err != nil || c.String("nvidia") == "" {
		return err
	}
	b.nvidia = &contender{node: nvidiaNode, Driver: driver.Driver{
		Name: nvidiaDriver, Program: c.String("nvidia"), Dir: filepath.Join(b.dir, "nvidia"),
		Flags: driver.Flags{Plugins: "--kubelet-plugins-directory-path",
			Registrar: "--kubelet-registrar-directory-path", CDI: "--cdi-root"},
		Args: append([]string{
			"--nvidia-driver-root", root, "--container-driver-root", root, "--image-name", "none",
			"--nvidia-cdi-hook-path", c.String("hook"),
		}, append(common, nvidiaNode)...),
	}}
	// It gives out whole GPUs, one to a claim.
	b.nvidia.claims, err = b.makeClaims(ctx, "nvidia", newGPUs, claimSpec(nvidiaDriver, nil), nvidiaDevice)
	return err
}

// contenders are the drivers that are compared: this one first, then the trivial one.
func (b *bench) contenders() []*contender {
	all := []*contender{b.gpushare, b.trivial}
	if b.nvidia != nil {
		all = append(all, b.nvidia)
	}
	return all
}

// served is a contender that runs and answers.
type served struct {
	*contender
	process *driver.Process
	socket  *driver.Socket
}

// serve starts the contender and waits until it has answered once: a first
// call also sets up connections.
func (c *contender) serve(ctx context.Context) (*served, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	process, err := c.Start()
	if err != nil {
		return nil, err
	}
	socket, err := process.Connect(ctx)
	if err != nil {
		process.Kill()
		return nil, err
	}
	s := &served{contender: c, process: process, socket: socket}
	if err := s.prepareAndBack(ctx, c.claims[0]); err != nil {
		s.kill()
		return nil, fmt.Errorf("%w: see %s", err, c.Log())
	}
	return s, nil
}

func (s *served) prepareAndBack(ctx context.Context, claim *drapb.Claim) error {
	if _, err := s.socket.Prepare(ctx, claim); err != nil {
		return err
	}
	_, err := s.socket.Unprepare(ctx, claim)
	return err
}

// kill ends the process at once.
func (s *served) kill() {
	s.process.Kill()
	_ = s.socket.Close()
}

// serveAll starts all contenders, in the order of contenders. The returned function ends them.
func (b *bench) serveAll(ctx context.Context) (all []*served, stop func(), err error) {
	stop = func() {
		for _, s := range all {
			s.kill()
		}
	}
	for _, c := range b.contenders() {
		s, err := c.serve(ctx)
		if err != nil {
			stop()
			return nil, nil, err
		}
		all = append(all, s)
	}
	return all, stop, nil
}
