// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"errors"
	"strings"
	"testing"
)

// good is a machine that can be used.
func good() Facts {
	return Facts{
		Dir: "/bundle", FreeMiB: 9000, NeededMiB: 3000,
		Cgroups: Cgroups{V2: "/sys/fs/cgroup", Controllers: []string{"cpuset", "cpu", "io", "memory", "pids"}},
		GPUs:    []GPU{{Index: 0, Name: "NVIDIA H200"}},
	}
}

func TestProblems(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Facts)
		want   string // empty: none
	}{
		{"a good machine", func(*Facts) {}, ""},
		{"control groups v1", func(f *Facts) {
			f.Cgroups = Cgroups{V1: []string{"cpu", "cpuacct", "cpuset", "memory",
				"freezer"}}
		}, ""},
		{"one GPU of two cannot be used", func(f *Facts) { f.LeftOut = []string{"GPU 1: MIG mode"} }, ""},
		{"no root", func(f *Facts) { *f = Facts{UID: 1000} },
			"uid 1000 may not make namespaces, mounts and control groups: run it as root"},
		{"no driver", func(f *Facts) { f.Driver, f.GPUs = errors.New("no NVIDIA driver: no libnvidia-ml.so.1"), nil },
			"no NVIDIA driver"},
		{"no GPU", func(f *Facts) { f.GPUs = nil }, "the NVIDIA driver lists no GPU"},
		{"no GPU that can be used", func(f *Facts) { f.GPUs, f.LeftOut = nil, []string{"GPU 0: MIG mode"} },
			"no GPU can be used: GPU 0: MIG mode"},
		{
			"a GPU in use", func(f *Facts) { f.GPUs[0].Processes = []Process{{4711, "python3", 2048}} },
			"GPU 0 (NVIDIA H200) is in use by process 4711 python3 with 2048 MiB: wait until they end, or end them",
		},
		{"a GPU that must not be cut", func(f *Facts) { f.Cut = errors.New("--may-change-mig: GPU 0 has no MIG mode") },
			"--may-change-mig: GPU 0 has no MIG mode"},
		{"too little disk", func(f *Facts) { f.FreeMiB = 100 },
			"100 MiB are free in /bundle, a run takes 3000: make room, or name another directory by GPU_BUNDLE_WORK"},
		{"a cluster of an earlier run", func(f *Facts) { f.Earlier = "/bundle/work/c" },
			"is still up in /bundle/work/c: end it with ./run down"},
		{"a node of a cluster", func(f *Facts) { f.Kubelets = []Process{{PID: 900}} },
			"a kubelet runs on this machine (process 900)"},
		{"no namespaces", func(f *Facts) { f.Namespaces = errors.New("operation not permitted") },
			"no namespaces can be made here (operation not permitted)"},
		{"no control groups", func(f *Facts) { f.Cgroups = Cgroups{} }, "no control groups are mounted"},
		{"v1 without what the kubelet needs", func(f *Facts) { f.Cgroups = Cgroups{V1: []string{"cpu", "cpuacct"}} },
			"control groups v1 without cpuset, memory"},
		{"v2 without what the kubelet needs", func(f *Facts) { f.Cgroups.Controllers = []string{"cpu", "memory"} },
			"control groups v2 without the controllers cpuset, pids"},
		{"read-only control groups", func(f *Facts) { f.Cgroups.ReadOnly = true }, "mounted read-only"},
		{"a container's own v2 group with processes", func(f *Facts) { f.Cgroups.Crowded = true },
			"processes sit in this container's own control group /sys/fs/cgroup"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := good()
			tt.change(&f)
			problems := Problems(f)
			if tt.want == "" {
				if len(problems) > 0 {
					t.Errorf("refused: %q", problems)
				}
				return
			}
			if len(problems) != 1 || !strings.Contains(problems[0], tt.want) || strings.Contains(problems[0], "\n") {
				t.Errorf("%q, want one line with %q", problems, tt.want)
			}
		})
	}
}

func TestAllProblemsAreSaidAtOnce(t *testing.T) {
	f := good()
	f.FreeMiB, f.Driver, f.Cgroups = 1, errors.New("no NVIDIA driver"), Cgroups{}
	if problems := Problems(f); len(problems) != 3 {
		t.Errorf("%q, want three lines", problems)
	}
}
