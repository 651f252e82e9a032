// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

const machines = "../../../demo/machines"

// What a plan takes a machine file for is what the driver reads of such a machine.
func TestMachinesAreThoseThatTheDriverReads(t *testing.T) {
	files, err := filepath.Glob(machines + "/*.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d machine files, %v", len(files), err)
	}
	for _, file := range files {
		if filepath.Base(file) == "broken.yaml" {
			continue // a plan leaves out all GPUs with a fault
		}
		spec, err := sim.Load(file)
		expect.NoError(t, err)
		want, err := nvml.Read(t.Context(), spec.NVML(), nvml.Options{SysFS: t.TempDir()})
		expect.NoError(t, err)
		data, err := os.ReadFile(file)
		expect.NoError(t, err)
		var f machineFile
		expect.NoError(t, yaml.Unmarshal(data, &f))
		got, err := f.machine("n")
		if len(want.GPUs) == 0 {
			if err == nil || !strings.Contains(err.Error(), "those in MIG mode that are not cut, are left out") {
				t.Errorf("%s: all GPUs are in MIG mode, and a plan says %v", file, err)
			}
			continue
		}
		expect.NoError(t, err)
		// The node's sysfs has the rest, and UUIDs are the node's. Of MIG instances a machine file says little.
		for _, m := range []*gpu.Machine{want, got} {
			m.Partitioned = nil
			for i := range m.GPUs {
				g := &m.GPUs[i]
				g.UUID, g.NUMANode, g.PCIeRoot, g.SMCount, g.MIG = "", nil, "", 0, gpu.MIGMode{}
			}
		}
		expect.Equal(t, want, got, "%s", file)
	}
}

// The devices say what isolates them as the driver's do.
func TestIsolationIsTheDrivers(t *testing.T) {
	registry := isolation.NewRegistry(isolation.Config{CGPUProc: t.TempDir() + "/absent"})
	for label, m := range map[string]mode.Mode{"share": mode.Share, "cgpu": mode.CGPU, "core_mem": mode.CoreMem,
		"mps":     mode.MPS,
		"default": mode.Exclusive, "topology": mode.Topology} {
		backend, err := registry.For(m)
		expect.NoError(t, err)
		in, err := Machines([]string{"n1=" + machines + "/t4x1.yaml:" + label})
		expect.NoError(t, err)
		d := in.Slices[0].Spec.Devices[0]
		level, name := *d.Attributes["isolationLevel"].StringValue, *d.Attributes["isolation"].StringValue
		want := mode.IsolationNamed(backend.Name())
		if name != want.Name || level != string(want.Level) {
			t.Errorf("%s: isolation %s (%s), want %s (%s)", label, name, level, want.Name, want.Level)
		}
		slots := d.Capacity["slots"]
		if m.Shared() && want.Shares > 0 && slots.Value.Value() != want.Shares {
			t.Errorf("%s: %s slots, want %d", label, slots.Value.String(), want.Shares)
		}
	}
}

func TestPlansOnMachines(t *testing.T) {
	const asks = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 8, template: {spec: " +
		"{containers: " +
		"[{name: c, resources: {limits: {LIMITS}}}]}}}\n"
	for limits, test := range map[string]struct {
		machines []string
		fits     int
	}{
		"aliyun.com/gpu-mem: 8":   {[]string{"n1=v100x4.yaml:share", "n2=t4x1.yaml:share"}, 5},
		"aliyun.com/gpu-mem: 6":   {[]string{"n1=v100x4.yaml:share:spread"}, 8},
		"aliyun.com/gpu: 4":       {[]string{"n1=dgx1.yaml:topology"}, 2},
		"nvidia.com/gpu: 1":       {[]string{"n1=t4x1.yaml", "n2=a10x4.yaml:dynamic"}, 5},
		"aliyun.com/gpu-mem: 140": {[]string{"n1=h200x8.yaml:mps"}, 8},
		"aliyun.com/gpu-mem: 7, aliyun.com/gpu-core.percentage: 50": {[]string{"n1=t4x1.yaml:core_mem"}, 2},
	} {
		var specs []string
		for _, m := range test.machines {
			specs = append(specs, strings.Replace(m, "=", "="+machines+"/", 1))
		}
		in, err := Machines(specs)
		expect.NoError(t, err)
		r := Reader{Namespace: "a"}
		expect.NoError(t, r.Read("m.yaml", strings.NewReader(strings.Replace(asks, "LIMITS", limits, 1))))
		in.Manifests = r.Manifests()
		made, err := plan.Of(t.Context(), in)
		expect.NoError(t, err)
		expect.Equal(t, test.fits, made.Fits, "pods that fit with %s on %v: %+v", limits, test.machines, made.Pods)
	}
}

func TestBadMachines(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.yaml")
	expect.NoError(t, os.WriteFile(none, []byte("kind: SimulatedMachine\ncards: [{model: x}]\n"), 0o600))
	const good = "n1=" + machines + "/t4x1.yaml"
	for spec, want := range map[string]string{
		"n1":                        "write NAME=FILE[:MODE[:PLACEMENT]]",
		good + ":share:spread:more": "write NAME=FILE[:MODE[:PLACEMENT]]",
		"N_1=x.yaml":                `the name of the node "N_1"`,
		"n1=absent.yaml":            "read the machine file: open absent.yaml",
		"n1=../../../README.md":     "read the machine file ../../../README.md: ",
		"n1=../../../demo/demo.sh":  "read the machine file ../../../demo/demo.sh: ",
		"n1=" + none:                `GPU 0: the file has no model "x"`,
		good + ":shared":            `ack.node.gpu.schedule="shared" is not a known value`,
		good + ":share:even":        `ack.node.gpu.placement="even" is not a known value`,
		good + "," + good:           "there is a node n1 already",
	} {
		_, err := Machines(strings.Split(spec, ","))
		if err == nil || !strings.HasPrefix(err.Error(), "machine ") || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %s", spec, err, want)
		}
	}
}

// Instances of a machine file are planned where they are, with the memory in their names.
func TestMachinesWithInstances(t *testing.T) {
	in, err := Machines([]string{"n1=" + machines + "/migx4.yaml:mig"})
	expect.NoError(t, err)
	r := Reader{Namespace: "team"}
	expect.NoError(t, r.Read("m.yaml", strings.NewReader("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"+
		"spec: {containers: [{name: c, resources: {limits: {nvidia.com/mig-1g.10gb.me: 1}}}]}\n")))
	in.Manifests = r.Manifests()
	made, err := plan.Of(t.Context(), in)
	if err != nil || made.Fits != 1 || made.Pods[0].Devices[0] != "gpu-1-mig-1g-10gb-me-1" || len(made.Notes) != 1 {
		t.Errorf("%v, %+v", err, made)
	}
}
