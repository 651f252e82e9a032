// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// cut is a node with two GPUs that are cut, and two that are not. Its instances are those of the machine file: the
// mock that unit tests read GPUs by has none.
func cut(t *testing.T) (simulated, BaseOptions) {
	t.Helper()
	s := simulate(t, "migx4")
	add := func(at int, uuid string, gi int, leftOut string) {
		s.machine.Partitioned[at].Instances = append(s.machine.Partitioned[at].Instances,
			gpu.Instance{InstanceID: gpu.InstanceID{GI: gi}, UUID: uuid, LeftOut: leftOut})
	}
	add(0, "MIG-3g", 2, "")
	add(0, "MIG-2g", 5, "")
	add(0, "MIG-1g", 13, "")
	add(1, "MIG-other", 1, "")
	o := s.options()
	o.ProcFS = filepath.Join(s.root, sim.ProcDir)
	return s, o
}

// numbers lists device nodes as the runtime makes them.
func numbers(edits specs.ContainerEdits) map[string][2]int64 {
	all := map[string][2]int64{}
	for _, n := range edits.DeviceNodes {
		all[n.Path] = [2]int64{n.Major, n.Minor}
	}
	return all
}

// A container gets the GPU's node and the two capabilities of its instance: nothing of a neighbour's, none that
// would let it change or watch the GPU's partitions, no DRM node.
func TestInstanceEdits(t *testing.T) {
	s, o := cut(t)
	base, err := NewBase(t.Context(), s.machine, o)
	expect.NoError(t, err)
	const caps = "/dev/nvidia-caps/nvidia-cap"
	for uuid, want := range map[string]map[string][2]int64{
		"MIG-3g": {"/dev/nvidia0": {}, caps + "21": {62, 3 + 9*2}, caps + "22": {62, 3 + 9*2 + 1}},
		"MIG-2g": {"/dev/nvidia0": {}, caps + "48": {62, 3 + 9*5}, caps + "49": {62, 3 + 9*5 + 1}},
		"MIG-1g": {"/dev/nvidia0": {}, caps + "120": {62, 3 + 9*13}, caps + "121": {62, 3 + 9*13 + 1}},
		// Minor numbers are those of the GPU's minor number, 1.
		"MIG-other": {"/dev/nvidia1": {}, caps + "147": {62, 3 + 135 + 9}, caps + "148": {62, 3 + 135 + 9 + 1}},
	} {
		edits, err := base.GPU(uuid)
		expect.NoErrorf(t, err, "%s", uuid)
		expect.Equal(t, want, numbers(edits), "device nodes of %s", uuid)
		for _, n := range edits.DeviceNodes[1:] {
			if n.Type != "c" || n.HostPath != "" || n.FileMode == nil || *n.FileMode != 0o444 || n.Permissions != "rw" {
				t.Errorf("%s: capability %+v", uuid, n)
			}
		}
		if n := edits.DeviceNodes[0]; !strings.HasPrefix(n.HostPath, hostRoot) || n.Type != "" {
			t.Errorf("%s: the GPU's node %+v", uuid, n)
		}
		edits.DeviceNodes = nil
		expect.Equal(t, specs.ContainerEdits{}, edits, "%s has besides", uuid)
		expect.NoErrorf(t, base.Check(uuid), "%s", uuid)
		_, err = Spec(base.Common(), []specs.Device{{Name: "d", ContainerEdits: specs.ContainerEdits{}}})
		expect.NoError(t, err)
	}
	for _, g := range s.machine.Partitioned {
		if _, err := base.GPU(g.UUID); err == nil {
			t.Errorf("GPU %d is in MIG mode and can be had as a whole", g.Index)
		}
	}
}

// What would give a container a GPU of which it can use nothing is an error that says what is missing.
func TestInstanceThatCannotBeUsed(t *testing.T) {
	const gi = "driver/nvidia/capabilities/gpu0/mig/gi2"
	for name, tc := range map[string]struct {
		damage func(t *testing.T, proc string, m *gpu.Machine)
		uuid   string
		says   []string
	}{
		"no capability of the GPU instance": {func(t *testing.T, proc string, _ *gpu.Machine) {
			remove(t, filepath.Join(proc, gi, "access"))
		}, "MIG-3g", []string{"MIG device MIG-3g (GPU 0, GPU instance 2, compute instance 0)", gi + "/access",
			"nvidia-smi mig -i 0000:07:00.0 -lgi"}},
		"no capability of the compute instance": {func(t *testing.T, proc string, _ *gpu.Machine) {
			remove(t, filepath.Join(proc, gi, "ci0/access"))
		}, "MIG-3g", []string{gi + "/ci0/access"}},
		"no minor number": {func(t *testing.T, proc string, _ *gpu.Machine) {
			write(t, filepath.Join(proc, gi, "access"), "DeviceFileMinor: many\n")
		}, "MIG-3g", []string{gi + "/access", "has no minor number"}},
		"no major number": {func(t *testing.T, proc string, _ *gpu.Machine) {
			write(t, filepath.Join(proc, "devices"), "Character devices:\n195 nvidia\n234 nvidia-caps-imex-channels\n")
		}, "MIG-3g", []string{"has no nvidia-caps"}},
		"no list of devices": {func(t *testing.T, proc string, _ *gpu.Machine) { remove(t, filepath.Join(proc, "devices")) },
			"MIG-3g", []string{"the kernel's list of devices"}},
		"one that is left out": {func(_ *testing.T, _ string, m *gpu.Machine) {
			m.Partitioned[0].Instances[0].LeftOut = "it has several compute instances"
		}, "MIG-3g", []string{"MIG-3g is unknown"}},
		"one that was created again": {func(_ *testing.T, _ string, m *gpu.Machine) {
			m.Partitioned[0].Instances[0].UUID = "MIG-again"
		}, "MIG-3g", []string{"MIG-3g is unknown"}},
		"no node of the GPU": {func(t *testing.T, proc string, _ *gpu.Machine) {
			remove(t, filepath.Join(proc, "../dev/nvidia0"))
		}, "MIG-3g", []string{"device node /run/nvidia/driver/dev/nvidia0: is missing", "nvidia-modprobe -u -c 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, o := cut(t)
			tc.damage(t, o.ProcFS, s.machine)
			base, err := NewBase(t.Context(), s.machine, o)
			expect.NoError(t, err)
			expect.Error(t, base.Check(tc.uuid), tc.says...)
			if err := base.Check("MIG-other"); err != nil && !strings.HasPrefix(name, "no major") &&
				!strings.HasPrefix(name, "no list") {
				t.Errorf("an instance of another GPU: %v", err)
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	expect.NoError(t, os.Remove(path))
}

func write(t *testing.T, path, content string) {
	t.Helper()
	expect.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

// What the kernel module shows may be anything, one day.
func FuzzCapability(f *testing.F) {
	for _, seed := range []string{"DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n", "",
		"DeviceFileMinor:-1", "DeviceFileMinor: 99999999999\n", "DeviceFileMode: -1\nDeviceFileMinor: 3"} {
		f.Add(seed)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content string) {
		path := filepath.Join(dir, "access")
		write(t, path, content)
		node, err := capability(path, 62)
		if err == nil && (node.Minor <= 0 || node.Major != 62 || node.Type != "c") {
			t.Errorf("%q gives %+v", content, node)
		}
	})
}
