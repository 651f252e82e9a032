// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/driver"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/internal/statefile"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// session is the cluster under test, and this machine, which is a node of it.
type session struct {
	*harness.Cluster
	node, image string
	// setMode labels the node for a mode.
	setMode func(label string)
	driver  *driver.Driver
	lib     nvml.Interface
	machine *gpu.Machine
	// cut is the UUID of the GPU that may be cut into MIG instances; empty for none. Whoever allows it has written down
	// which mode to put back.
	cut string
	// simulated is the driver root of a simulated node; empty for a real one.
	simulated string
	// told is what was seen so far, which file keeps.
	told report.Report
	file statefile.File[report.Report]
}

var here *session

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	// What usually takes seconds, with MPS daemons to start, or a kubelet that tries a claim again. There are minutes for
	// all tests.
	harness.Patience = 100 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if here, err = open(ctx); err != nil {
		fmt.Println("hardware tests:", err)
		return 1
	}
	return m.Run()
}

func open(ctx context.Context) (*session, error) {
	s := &session{simulated: os.Getenv("GPUSHARE_SIMULATED"), file: report.In(os.Getenv("GPUSHARE_REPORT")),
		cut: os.Getenv("GPUSHARE_CUT"), image: cmp.Or(os.Getenv("GPUSHARE_IMAGE"), "localhost/gpu-cuda:latest")}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	var begun bool
	if s.told, begun, err = s.file.Load(); err != nil {
		return nil, err
	}
	if !begun {
		s.told = report.Report{Title: "GPUs of node " + host, Started: time.Now()}
	}
	s.node = cmp.Or(os.Getenv("GPUSHARE_NODE"), host)
	if os.Getenv(harness.ClusterDirEnv) != "" {
		s.Cluster, err = harness.Open(ctx)
	} else {
		s.Cluster, err = harness.OpenIn(ctx, "", os.Getenv("KUBECONFIG"))
	}
	if err != nil {
		return nil, err
	}
	if s.driver, err = driver.Find(cmp.Or(s.simulated, os.Getenv("GPUSHARE_DRIVER_ROOT")),
		filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))); err != nil {
		return nil, err
	}
	if s.lib, err = gpunvml.Open(ctx, s.options()); err != nil {
		return nil, err
	}
	if s.machine, err = s.reader().Read(ctx); err == nil && len(s.machine.GPUs) == 0 {
		err = fmt.Errorf("the driver lists no GPU that can be used, and left out %v", s.machine.Faults)
	}
	return s, err
}

// tell adds a row to the report.
func (s *session) tell(mode string, row report.Row) error {
	s.told.Add(mode, row)
	return s.store()
}

func (s *session) store() error {
	if s.file.Path == "" {
		return nil
	}
	return s.file.Store(s.told)
}

// options are where the driver is.
func (s *session) options() gpunvml.OpenOptions {
	return gpunvml.OpenOptions{LibraryPath: s.driver.NVML, SysFS: filepath.Join(s.root(), sim.SysDir)}
}

// reader reads the GPUs as gpu-kubelet-plugin does.
func (s *session) reader() *gpunvml.Reader {
	return gpunvml.NewReader(s.lib, gpunvml.Options{SysFS: s.options().SysFS})
}

// partitions make and destroy MIG instances, and find the GPUs when they are first used.
func (s *session) partitions() *gpunvml.Partitions {
	return gpunvml.NewPartitions(s.options())
}

// gpu is the GPU that tests of one GPU are about.
func (s *session) gpu() gpu.GPU { return s.machine.GPUs[0] }

// root has proc, dev and sys, in which the kernel module shows what it has.
func (s *session) root() string { return cmp.Or(s.simulated, "/") }

// mps is the directory that plugin and supervisor of the node share.
func (s *session) mps() mps.Dir { return s.MPS(s.node) }

// capMiB is the limit of a share of so many GiB.
func (s *session) capMiB(units int64) int64 {
	return (s.gpu().MemoryMiB - s.gpu().ReservedMiB) * units / s.gpu().MemoryUnits()
}
