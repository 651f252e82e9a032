// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	nvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
)

const (
	pod       = "3d6b2a1c-8f70-4c1e-9b4d-0a1b2c3d4e5f"
	id        = "f3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	container = "/kubepods/burstable/pod" + pod + "/" + id
)

// driver615 stands in for the driver: it applies what is set, unless it is deaf.
type driver615 struct {
	limits map[string]uint64
	deaf   bool
	closed int
	// likely is where a GPU was looked for last.
	likely int
}

func (d *driver615) GPU(_ string, likely int) (memlimit.GPU, error) {
	d.likely = likely
	return d, nil
}

func (d *driver615) Close() error { d.closed++; return nil }

func (d *driver615) PCIAddress() (string, error) { return "0000:02:00.0", nil }

func (d *driver615) Set(dir string, hard uint64) error {
	if !d.deaf {
		d.limits[dir] = hard
	}
	return nil
}

func (d *driver615) Get(dir string) (nvml.Limit, error) {
	hard, is := d.limits[dir]
	if !is {
		hard = nvml.NoLimit
	}
	return nvml.Limit{Hard: hard}, nil
}

// host is a node with a container that is being created.
type host struct {
	*driver615
	hook
	t      *testing.T
	root   string
	ledger string
	// cgroup is what the kernel says of the container's process, env its environment.
	cgroup string
	env    []string
	// hooks are its hooks' arguments, without the program.
	hooks  [][]string
	opened []string
	stderr strings.Builder
}

func newHost(t *testing.T) *host {
	h := &host{driver615: &driver615{limits: map[string]uint64{}}, t: t, root: t.TempDir(),
		ledger: filepath.Join(t.TempDir(), "memory-limits"), cgroup: "0::" + container + "\n"}
	h.hook = hook{proc: t.TempDir(), open: func(path string) (library, error) {
		h.opened = append(h.opened, path)
		return h.driver615, nil
	}}
	for path, content := range map[string]string{
		"dmem.capacity": "nvidia/00000000:02:00.0/vidmem 16106127360\n", container + "/cgroup.procs": "4711\n"} {
		write(t, filepath.Join(h.root, path), content)
	}
	return h
}

func write(t *testing.T, path, content string) {
	t.Helper()
	expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	expect.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

// args are those of a share of 3 GiB of 15.
func (h *host) args(share string, flags ...string) []string {
	return append(append([]string{"set", "--library", "/driver/libnvidia-ml.so.1", "--cgroup-root", h.root,
		"--kubelet-root",
		"/kubepods", "--ledger", h.ledger, "--claim", "c1", "--share", share, "--containers", "4"}, flags...),
		"GPU-a=3072/15360@2")
}

// creates has the hook run as a runtime does.
func (h *host) creates(args []string) error {
	h.t.Helper()
	bundle := h.t.TempDir()
	var hooks []map[string]any
	for _, other := range append(h.hooks, args) {
		hooks = append(hooks, map[string]any{"args": append([]string{"gpu-memory-limit"}, other...)})
	}
	config, err := json.Marshal(map[string]any{"hooks": map[string]any{"createRuntime": hooks},
		"process": map[string]any{"env": h.env}})
	expect.NoError(h.t, err)
	write(h.t, filepath.Join(bundle, "config.json"), string(config))
	if h.cgroup != "" {
		write(h.t, filepath.Join(h.proc, "4711", "cgroup"), h.cgroup)
	}
	state := fmt.Sprintf(`{"ociVersion":"1.2.0","id":%q,"status":"creating","pid":4711,"bundle":%q}`, id, bundle)
	return h.run(append([]string{"/plugins/gpu-memory-limit"}, args...), strings.NewReader(state), &h.stderr)
}

func TestContainerIsLimited(t *testing.T) {
	h := newHost(t)
	expect.NoError(t, h.creates(h.args("s1")))
	for _, group := range []string{container, filepath.Dir(container)} {
		expect.Equal(t, 3<<30, h.limits[filepath.Join(h.root, group)], "bytes of %s", group)
	}
	expect.Equal(t, 2, h.likely, "the GPU was looked for at first")
	if len(h.opened) != 1 || h.opened[0] != "/driver/libnvidia-ml.so.1" || h.closed != 1 {
		t.Errorf("libraries %q, closed %d times", h.opened, h.closed)
	}
}

// CDI specs of earlier versions do not say where the GPU is.
func TestSpecOfAnEarlierVersion(t *testing.T) {
	h := newHost(t)
	args := h.args("s1")
	args[len(args)-1] = "GPU-a=3072/15360"
	expect.NoError(t, h.creates(args))
	expect.Equal(t, 3<<30, h.limits[filepath.Join(h.root, container)], "bytes")
}

// What an image or a pod says in NVIDIA's variables, which NVIDIA's own hook uses, means nothing here: neither in
// the container's environment nor in the hook's.
func TestVariablesOfTheContainerMeanNothing(t *testing.T) {
	for _, name := range []string{"NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"} {
		for _, value := range []string{"99999", "1", "max", "-1"} {
			h := newHost(t)
			h.env = []string{name + "=" + value}
			t.Setenv(name, value)
			expect.NoError(t, h.creates(h.args("s1")))
			expect.Equal(t, 3<<30, h.limits[filepath.Join(h.root, container)], "%s=%s: bytes", name, value)
		}
	}
}

func TestContainerIsNotStarted(t *testing.T) {
	const because = "because nothing would hold it to its share of GPU-a"
	for name, tc := range map[string]struct {
		change func(*host) []string
		want   []string
	}{
		"the root's group": {func(h *host) []string { h.cgroup = "0::/\n"; return h.args("s1") },
			[]string{because, "is not below the kubelet's control group"}},
		"another's group": {func(h *host) []string {
			h.cgroup = strings.ReplaceAll(h.cgroup, id, strings.Repeat("a", 64))
			return h.args("s1")
		}, []string{because, "is not that of the container"}},
		"its process is gone": {func(h *host) []string { h.cgroup = ""; return h.args("s1") }, []string{because, "4711"}},
		"nothing is applied": {func(h *host) []string { h.deaf = true; return h.args("s1") },
			[]string{because, "was set and reads unlimited, not 3072 MiB", "docs/kernel-limits.md"}},
		"an older driver": {func(h *host) []string {
			h.open = func(string) (library, error) { return nil, nvml.ErrUnsupported }
			return h.args("s1")
		}, []string{because, "no memory limits by control group"}},
		"two shares": {func(h *host) []string { h.hooks = [][]string{h.args("s2")}; return h.args("s1") },
			[]string{"not started", "two shares"}},
		"a hook that is not understood": {func(h *host) []string {
			h.hooks = [][]string{{"set", "--more"}}
			return h.args("s1")
		}, []string{"two shares"}},
		"no GPU": {func(h *host) []string { args := h.args("s1"); return args[:len(args)-1] },
			[]string{"not complete"}},
		"no amount": {func(h *host) []string { return append(h.args("s1"), "GPU-b") }, []string{"UUID=MIB/MEMORY"}},
		"no limit": {func(h *host) []string { return append(h.args("s1"), "GPU-b=0/15360") },
			[]string{"UUID=MIB/MEMORY"}},
		"no index": {func(h *host) []string { return append(h.args("s1"), "GPU-b=3072/15360@-1") },
			[]string{"UUID=MIB/MEMORY@INDEX"}},
		"no ledger":  {func(h *host) []string { return h.args("s1", "--ledger", "") }, []string{"not complete"}},
		"no command": {func(*host) []string { return []string{"get"} }, []string{"neither set nor probe"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			expect.Error(t, h.creates(tc.change(h)), tc.want...)
		})
	}
}

// The driver wants control groups of version 2 where it looks for them itself.
func TestVersionOfControlGroups(t *testing.T) {
	h := newHost(t)
	h.checkRoot = func(root string) error {
		expect.Equal(t, "/sys/fs/cgroup", root, "looked at")
		return errors.New("no control groups of version 2")
	}
	expect.NoErrorf(t, h.creates(h.args("s1")), "elsewhere, as an administrator says")
	args := h.args("s1")
	args[4] = "/sys/fs/cgroup/"
	expect.Error(t, h.creates(args), "version 2")
}

// A container whose limits are switched off starts without a driver that has any, and beside a
// share that has.
func TestContainerWithoutLimitsStarts(t *testing.T) {
	h := newHost(t)
	h.hooks = [][]string{h.args("s2")}
	expect.NoError(t, h.creates(h.args("s1", "--lifted")))
	h.open = func(string) (library, error) { return nil, nvml.ErrUnsupported }
	expect.NoError(t, h.creates(h.args("s1", "--lifted")))
	expect.Says(t, h.stderr.String(), "starts, though")
}

func TestProbe(t *testing.T) {
	h := newHost(t)
	expect.NoError(t, h.run([]string{"x", "probe", "--library", "/lib"}, nil, nil))
	expect.Equal(t, 1, h.closed, "times closed")
	h.open = func(string) (library, error) { return nil, nvml.ErrUnsupported }
	expect.ErrorIs(t, h.run([]string{"x", "probe", "--library", "/lib"}, nil, nil), nvml.ErrUnsupported)
}
