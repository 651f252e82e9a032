// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

const (
	hostRoot = "/run/nvidia/driver"
	hookPath = "/var/lib/plugin/nvidia-cdi-hook"
	// libraries is where a simulated driver has its libraries.
	libraries = "/" + sim.LibraryDir
)

// simulated is a node with a simulated machine.
type simulated struct {
	root    string
	machine *gpu.Machine
	gpus    []gpu.GPU
}

func (s simulated) options() BaseOptions {
	return BaseOptions{DriverRoot: s.root, HostDriverRoot: hostRoot, HostHookPath: hookPath}
}

func simulate(t *testing.T, machine string, faults ...sim.Fault) simulated {
	t.Helper()
	testneeds.DeviceNodes(t)
	spec, err := sim.Load(filepath.Join("..", "demo", "machines", machine+".yaml"))
	expect.NoError(t, err)
	for i, fault := range faults {
		spec.GPUs[i].Fault = fault
	}
	// A driver root has no symbolic links on its way (pkg/gpu/source).
	dir, err := filepath.EvalSymlinks(t.TempDir())
	expect.NoError(t, err)
	root := filepath.Join(dir, "driver")
	expect.NoError(t, spec.WriteRoot(root))
	m, err := gpunvml.Read(t.Context(), spec.NVML(), gpunvml.Options{SysFS: filepath.Join(root, sim.SysDir)})
	expect.NoError(t, err)
	return simulated{root: root, machine: m, gpus: m.GPUs}
}

func (s simulated) base(t *testing.T) *Base {
	t.Helper()
	b, err := NewBase(t.Context(), s.machine, s.options())
	expect.NoError(t, err)
	return b
}

// nodes lists device nodes as "host path → container path".
func nodes(edits specs.ContainerEdits) []string {
	var all []string
	for _, n := range edits.DeviceNodes {
		all = append(all, n.HostPath+" → "+n.Path)
	}
	return all
}

func hooks(edits specs.ContainerEdits) []string {
	var all []string
	for _, h := range edits.Hooks {
		all = append(all, h.HookName+" "+h.Path+" "+h.Args[1])
	}
	return all
}

func TestBaseCommon(t *testing.T) {
	common := simulate(t, "v100x4").base(t).Common()

	want := []string{
		hostRoot + "/dev/nvidia-modeset → /dev/nvidia-modeset",
		hostRoot + "/dev/nvidia-uvm → /dev/nvidia-uvm",
		hostRoot + "/dev/nvidia-uvm-tools → /dev/nvidia-uvm-tools",
		hostRoot + "/dev/nvidiactl → /dev/nvidiactl",
	}
	expect.Equal(t, want, nodes(common), "common nodes")
	mounts := map[string]string{}
	for _, m := range common.Mounts {
		mounts[m.ContainerPath] = m.HostPath
	}
	for _, path := range []string{libraries + "/libcuda.so.570.124.06",
		libraries + "/libnvidia-ml.so.570.124.06", "/usr/bin/nvidia-smi"} {
		expect.Equal(t, hostRoot+path, mounts[path], "%s comes from", path)
	}
	if !slices.Contains(common.Env, "NVIDIA_VISIBLE_DEVICES=void") {
		t.Errorf("env %v lacks NVIDIA_VISIBLE_DEVICES=void", common.Env)
	}
	wantHooks := []string{
		"createContainer " + hookPath + " create-symlinks",
		"createContainer " + hookPath + " enable-cuda-compat",
		"createContainer " + hookPath + " update-ldcache",
		"createContainer " + hookPath + " disable-device-node-modification",
		"createContainer " + hookPath + " update-application-profile",
	}
	expect.Equal(t, wantHooks, hooks(common), "common hooks")
	if links := common.Hooks[0].Args; !slices.Contains(links,
		"libcuda.so.570.124.06::"+libraries+"/libcuda.so.1") {
		t.Errorf("links %v lack libcuda.so.1", links)
	}
}

func TestBaseGPUs(t *testing.T) {
	s := simulate(t, "mixed")
	b := s.base(t)
	for i, g := range s.gpus {
		edits, err := b.GPU(g.UUID)
		expect.NoError(t, err)
		node := "/dev/nvidia" + string(rune('0'+i))
		expect.Equal(t, []string{hostRoot + node + " → " + node}, nodes(edits), "nodes of a GPU")
		if len(edits.Hooks) != 0 || len(edits.Mounts) != 0 || len(edits.Env) != 0 {
			t.Errorf("GPU %d has more than its node: %+v", i, edits)
		}
		for _, n := range edits.DeviceNodes {
			if n.Major != 0 || n.Minor != 0 {
				t.Errorf("%s has numbers %d:%d, which may be others by the time a container starts", n.Path, n.Major, n.Minor)
			}
		}
		expect.NoError(t, b.Check(g.UUID))
	}
	_, err := b.GPU("GPU-other")
	expect.Error(t, err, "GPU-other")
	expect.Error(t, b.Check("GPU-other"), "GPU-other")
}

func TestBaseIsTheSameEveryTime(t *testing.T) {
	s := simulate(t, "dgx1")
	expect.Equal(t, s.base(t).Common(), s.base(t).Common(), "common edits")
}

func TestBaseRoots(t *testing.T) {
	for _, tc := range []struct {
		name      string
		change    func(*BaseOptions)
		node, lib string
	}{
		{"the driver on the host itself", func(o *BaseOptions) { o.HostDriverRoot = "/" }, "/dev/nvidiactl",
			libraries + "/libcuda.so.570.124.06"},
		{"device nodes apart", func(o *BaseOptions) { o.DevRoot, o.HostDevRoot = o.DriverRoot, "/" }, "/dev/nvidiactl",
			hostRoot + libraries + "/libcuda.so.570.124.06"},
		{"one root within the other", func(o *BaseOptions) { o.HostDriverRoot = o.DriverRoot + "/inner" },
			"ROOT/inner/dev/nvidiactl", "ROOT/inner" + libraries + "/libcuda.so.570.124.06"},
		{"the same path", func(o *BaseOptions) { o.HostDriverRoot = o.DriverRoot }, "ROOT/dev/nvidiactl",
			"ROOT" + libraries + "/libcuda.so.570.124.06"},
		{"libraries in a place of their own", func(o *BaseOptions) { moveLibraries(t, o, "/usr/local/nvidia/lib64") },
			hostRoot + "/dev/nvidiactl", hostRoot + "/usr/local/nvidia/lib64/libcuda.so.570.124.06"},
		{"libraries in a place of their own, on the host itself", func(o *BaseOptions) {
			moveLibraries(t, o, "/usr/local/nvidia/lib64")
			o.HostDriverRoot = "/"
		}, "/dev/nvidiactl", "/usr/local/nvidia/lib64/libcuda.so.570.124.06"},
		{"libraries where the node's loader is told to look", func(o *BaseOptions) {
			moveLibraries(t, o, "/usr/local/nvidia/lib64")
			o.LibrarySearchPaths = nil
			writeFile(t, filepath.Join(o.DriverRoot, "etc/ld.so.conf"), "/usr/local/nvidia/lib64\n")
		}, hostRoot + "/dev/nvidiactl", hostRoot + "/usr/local/nvidia/lib64/libcuda.so.570.124.06"},
		{"a search path that this node does not have", func(o *BaseOptions) {
			o.LibrarySearchPaths = []string{"/usr/local/nvidia/lib64"}
		}, hostRoot + "/dev/nvidiactl", hostRoot + libraries + "/libcuda.so.570.124.06"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := simulate(t, "t4x1")
			opts := s.options()
			tc.change(&opts)
			b, err := NewBase(t.Context(), s.machine, opts)
			expect.NoError(t, err)
			node := strings.ReplaceAll(tc.node, "ROOT", s.root)
			if got := nodes(b.Common()); !slices.Contains(got, node+" → /dev/nvidiactl") {
				t.Errorf("nodes %v lack %s", got, node)
			}
			lib := strings.ReplaceAll(tc.lib, "ROOT", s.root)
			if !slices.ContainsFunc(b.Common().Mounts, func(m *specs.Mount) bool { return m.HostPath == lib }) {
				t.Errorf("no mount of %s", lib)
			}
			expect.NoError(t, b.Check(s.gpus[0].UUID))
		})
	}
}

// moveLibraries has the driver's libraries in this directory of the driver root, and says so.
func moveLibraries(t *testing.T, o *BaseOptions, dir string) {
	t.Helper()
	to := filepath.Join(o.DriverRoot, dir)
	expect.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	expect.NoError(t, os.Rename(filepath.Join(o.DriverRoot, sim.LibraryDir), to))
	o.LibrarySearchPaths = []string{dir}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	expect.NoError(t, os.WriteFile(path, []byte(content), 0o644))
}

// The toolkit maps the cache of the root's loader into memory and leaves it there. The edits are made each minute.
func TestBaseLeavesNothingMapped(t *testing.T) {
	const cache = "/etc/ld.so.cache"
	content, err := os.ReadFile(cache)
	if err != nil {
		testneeds.Skipf(t, "this machine's loader has no cache: %v", err)
	}
	s := simulate(t, "t4x1")
	writeFile(t, filepath.Join(s.root, cache), string(content))
	s.base(t)
	maps, err := os.ReadFile("/proc/self/maps")
	expect.NoError(t, err)
	if n := strings.Count(string(maps), filepath.Join(s.root, cache)); n > 0 {
		t.Errorf("%s is mapped %d times", cache, n)
	}
}

func TestBaseWithoutHooks(t *testing.T) {
	s := simulate(t, "t4x1")
	opts := s.options()
	opts.HostHookPath = ""
	b, err := NewBase(t.Context(), s.machine, opts)
	expect.NoError(t, err)
	expect.Equal(t, nil, hooks(b.Common()), "hooks")
}

func TestBaseCheckAndRecovery(t *testing.T) {
	for _, path := range []string{"/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidiactl"} {
		for _, when := range []string{"before", "after"} {
			t.Run(filepath.Base(path)+" missing "+when, func(t *testing.T) {
				s := simulate(t, "v100x4")
				node := filepath.Join(s.root, path)
				aside := node + ".aside"
				var b *Base
				if when == "after" {
					b = s.base(t)
				}
				expect.NoError(t, os.Rename(node, aside))
				if when == "before" {
					b = s.base(t)
				}
				expect.Error(t, b.Check(s.gpus[0].UUID),
					hostRoot+path+": is missing", "nvidia-modprobe -u -c 0", s.gpus[0].UUID)
				if path == "/dev/nvidia0" && b.Check(s.gpus[1].UUID) != nil {
					t.Error("another GPU fails too:", b.Check(s.gpus[1].UUID))
				}
				expect.NoError(t, os.Rename(aside, node))
				expect.NoErrorf(t, b.Check(s.gpus[0].UUID), "after recovery")
				edits, err := b.GPU(s.gpus[0].UUID)
				expect.NoError(t, err)
				if got := nodes(b.Common()); path != "/dev/nvidia0" && !slices.Contains(got, hostRoot+path+" → "+path) {
					t.Errorf("common nodes %v lack %s", got, path)
				}
				expect.Equal(t, []string{hostRoot + "/dev/nvidia0 → /dev/nvidia0"}, nodes(edits), "GPU's nodes")
			})
		}
	}
}

func TestBaseCheckNoDevice(t *testing.T) {
	s := simulate(t, "t4x1")
	b := s.base(t)
	node := filepath.Join(s.root, "dev/nvidia0")
	expect.NoError(t, errors.Join(os.Remove(node), os.WriteFile(node, nil, 0o644)))
	expect.Error(t, b.Check(s.gpus[0].UUID), "no character device")
}

// While a GPU is lost, NVML finds none by its UUID.
func TestBaseBesideALostGPU(t *testing.T) {
	s := simulate(t, "v100x4", sim.Fault{}, sim.Fault{Lost: true})
	if len(s.gpus) != 3 {
		t.Fatalf("%d GPUs were read beside a lost one, want 3", len(s.gpus))
	}
	b := s.base(t)
	for _, g := range s.gpus {
		expect.NoErrorf(t, b.Check(g.UUID), "GPU %d", g.Index)
	}
}

func TestBaseWithoutDriverFiles(t *testing.T) {
	s := simulate(t, "t4x1")
	opts := s.options()
	opts.DriverRoot = t.TempDir()
	_, err := NewBase(t.Context(), s.machine, opts)
	expect.Error(t, err, opts.DriverRoot, "point the driver root")
}
