// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps/control"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// readyLimit is how long supervisor and daemon may take to be ready.
const readyLimit = 30 * time.Second

// mpsNode is this machine with the MPS supervisor, and its first GPU, which
// claims are prepared for.
type mpsNode struct {
	node
	// t is the test that all others are a part of.
	t   *testing.T
	gpu gpu.GPU
	dir mps.Dir
	// driverRoot is never empty.
	driverRoot  string
	control     string // below driverRoot
	supervisor  string
	probe       string
	libraryPath string // LD_LIBRARY_PATH
	cdiDir      string
	preparer    *prepare.Preparer
	claims      int
}

// openMPSNode builds what the tests run, or skips the test where something for
// it is missing. The supervisor does not run yet.
func openMPSNode(t *testing.T) *mpsNode {
	t.Helper()
	n := openNode(t)
	if os.Geteuid() != 0 {
		skip(t, "CUDA programs are run as other users and with mounts of their own: run as root")
	}
	m := &mpsNode{
		node: n, t: t, gpu: n.machine.GPUs[0], driverRoot: cmp.Or(n.driverRoot, "/"),
		control: cmp.Or(os.Getenv("GPUSHARE_MPS_CONTROL"), control.DefaultPath),
		cdiDir:  t.TempDir(),
	}
	if _, err := os.Stat(filepath.Join(m.driverRoot, m.control)); err != nil {
		skip(t, fmt.Sprintf("the driver has no MPS control program: %v: set GPUSHARE_MPS_CONTROL", err))
	}
	work := m.workDir(t)
	m.build(t, work)
	m.dir = mps.Dir(filepath.Join(work, "mps"))
	backends := isolation.NewRegistry(isolation.Config{CoreMem: isolation.NameMPS, MPSDir: string(m.dir)})
	m.preparer = n.preparer(t, cdi.Dir(m.cdiDir), backends)
	return m
}

// workDir is a directory that programs of all users find, unlike t.TempDir, and
// whose path leaves room for a socket's: it may have 107 bytes. The supervisor
// mounts it in the driver root.
func (m *mpsNode) workDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "gpu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, d := range []string{dir, filepath.Join(m.driverRoot, dir)} {
			if err := os.RemoveAll(d); err != nil {
				t.Error(err)
			}
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (m *mpsNode) build(t *testing.T, dir string) {
	t.Helper()
	m.probe = filepath.Join(dir, "cudaprobe")
	compile(t, "gcc", "-std=gnu11", "-O2", "-o", m.probe, "testdata/cudaprobe.c", "-ldl")
	var libraries []string
	for _, directory := range m.libraries {
		libraries = append(libraries, filepath.Join(m.driverRoot, directory))
	}
	if m.simulated {
		compile(t, "gcc", "-std=gnu11", "-O2", "-fPIC", "-shared", "-o", filepath.Join(dir, "libcuda.so.1"),
			"testdata/cudastandin.c")
		libraries = []string{dir}
	}
	m.libraryPath = strings.Join(slices.Concat(libraries, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))), ":")
	if m.supervisor = os.Getenv("GPUSHARE_SUPERVISOR"); m.supervisor == "" {
		m.supervisor = filepath.Join(dir, "gpu-mps-supervisor")
		compile(t, "go", "build", "-buildvcs=false", "-o", m.supervisor, "../../../cmd/gpu-mps-supervisor")
	}
}

func compile(t *testing.T, compiler string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(compiler)
	if err != nil {
		skip(t, fmt.Sprintf("no compiler for what the test runs: %v", err))
	}
	if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", path, strings.Join(args, " "), err, out)
	}
}

// supervise runs the supervisor, at the longest until the test ends, and
// returns when the GPU has its daemon.
func (m *mpsNode) supervise(t *testing.T) (end func(os.Signal)) {
	t.Helper()
	// As the plugin says it of a node whose mode is MPS'.
	m.use(t, mps.Use{Reserved: true})
	args := []string{"--node-name=here", "--driver-root=" + m.driverRoot, "--mps-dir=" + string(m.dir), "--mps-control=" +
		m.control}
	if m.simulated {
		args = append(args, "--sysfs-root="+filepath.Join(m.driverRoot, sim.SysDir))
	}
	if library := os.Getenv("GPUSHARE_NVML_LIBRARY"); library != "" {
		args = append(args, "--nvml-library="+library)
	}
	for _, directory := range m.libraries {
		args = append(args, "--library-search-path="+directory)
	}
	cmd := exec.Command(m.supervisor, args...)
	cmd.Env = []string{"LD_LIBRARY_PATH=" + m.libraryPath}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		// How it ended is in its output.
		_ = cmd.Wait()
		close(ended)
	}()
	end = func(signal os.Signal) {
		_ = cmd.Process.Signal(signal) // it may have ended
		<-ended
	}
	t.Cleanup(func() {
		if end(syscall.SIGTERM); t.Failed() {
			t.Logf("the supervisor said:\n%s", output.String())
		}
	})
	m.awaitDaemon(t)
	return end
}

// use says what the GPU is used for.
func (m *mpsNode) use(t *testing.T, u mps.Use) {
	t.Helper()
	if err := m.dir.SetUse(m.gpu.UUID, u); err != nil {
		t.Fatal(err)
	}
}

// awaitDaemon waits until the GPU's clients are limited.
func (m *mpsNode) awaitDaemon(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(readyLimit); ; time.Sleep(10 * time.Millisecond) {
		err := m.dir.Check(m.gpu.UUID)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the GPU has no MPS after %s: %v", readyLimit, err)
		}
	}
}

// share is a prepared claim for a part of the GPU, and the container that
// uses it.
type share struct {
	claim     *resourceapi.ResourceClaim
	container *oci.Spec
	// capMiB is what the container was granted.
	capMiB int64
}

// prepare prepares a claim, until the test ends at the longest.
func (m *mpsNode) prepare(t *testing.T, in mode.Mode, units, cores int64) (share, error) {
	t.Helper()
	m.claims++
	c := claimOf(m.claims, m.gpu.Index, in, units, cores)
	prepared, err := m.preparer.Prepare(t.Context(), c)
	if err != nil {
		return share{}, err
	}
	s := share{claim: c, container: containerWith(t, m.cdiDir, prepared.Devices[0].CDIDeviceIDs),
		capMiB: (m.gpu.MemoryMiB - m.gpu.ReservedMiB) * units / m.gpu.MemoryUnits()}
	t.Cleanup(func() { m.release(t, s) })
	t.Logf("%s of %d units and %d %%: env %s, mounts %v", in, units, cores, s.container.Process.Env, m.pipes(s))
	return s, nil
}

// grant is prepare where it has to succeed.
func (m *mpsNode) grant(t *testing.T, in mode.Mode, units, cores int64) share {
	t.Helper()
	s, err := m.prepare(t, in, units, cores)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// release may be repeated. It is also called when the test's context has ended.
func (m *mpsNode) release(t *testing.T, s share) {
	t.Helper()
	if err := m.preparer.Unprepare(context.WithoutCancel(t.Context()), s.claim.UID); err != nil {
		t.Error(err)
	}
}

// pipes are the mounts that the container has of the supervisor's directory.
// All others bring the driver's files, which a program on this machine finds
// without them.
func (m *mpsNode) pipes(s share) []oci.Mount {
	return slices.DeleteFunc(slices.Clone(s.container.Mounts), func(mount oci.Mount) bool {
		return !strings.HasPrefix(mount.Source, string(m.dir)+"/")
	})
}

// start starts a CUDA program in the stead of the share's container: with its
// environment and its MPS pipes, on this machine's file system.
func (m *mpsNode) start(t *testing.T, s share, uid uint32, args ...string) *program {
	t.Helper()
	return startProgram(t, m.pipes(s), uid, m.environ(s), m.probe, args...)
}

// environ is the environment of the share's container, but for some variables, with what a
// program needs on this machine.
func (m *mpsNode) environ(s share, unset ...string) []string {
	env := slices.DeleteFunc(slices.Clone(s.container.Process.Env), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(unset, name)
	})
	env = append(env, "LD_LIBRARY_PATH="+m.libraryPath)
	if m.simulated {
		env = append(env, "SIMULATED_STATE="+filepath.Join(m.driverRoot, sim.StateDir, m.gpu.UUID))
	}
	return env
}

// run runs such a program to its end, as root.
func (m *mpsNode) run(t *testing.T, s share, args ...string) string {
	t.Helper()
	p := m.start(t, s, 0, args...)
	p.goOn()
	return p.answer()
}
