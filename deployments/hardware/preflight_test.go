// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProblems(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*facts)
		want   string // empty: none
	}{
		{"a good machine", func(*facts) {}, ""},
		{"control groups v1", func(f *facts) {
			f.cgroups = cgroups{controllers: []string{"cpu", "cpuacct", "cpuset", "memory", "freezer"}}
		}, ""},
		{"one GPU of two cannot be used", func(f *facts) { f.leftOut = []string{"GPU 1: MIG mode"} }, ""},
		{"no driver", func(f *facts) { f.driver, f.gpus = errors.New("no NVIDIA driver: no libnvidia-ml.so.1"), nil },
			"no NVIDIA driver"},
		{"no GPU", func(f *facts) { f.gpus = nil }, "the NVIDIA driver lists no GPU"},
		{"no GPU that can be used", func(f *facts) { f.gpus, f.leftOut = nil, []string{"GPU 0: MIG mode"} },
			"no GPU can be used: GPU 0: MIG mode"},
		{"a GPU in use", func(f *facts) { f.gpus[0].processes = []string{"process 4711 python3"} },
			"GPU 0 (NVIDIA H200) is in use by process 4711 python3: wait until they end, or end them"},
		{"a GPU that must not be cut", func(f *facts) { f.cut = errors.New("--may-change-mig: GPU 0 has no MIG mode") },
			"--may-change-mig: GPU 0 has no MIG mode"},
		{"a node of a cluster", func(f *facts) { f.kubelets = []string{"900"} },
			"a kubelet runs on this machine (process 900)"},
		{"no namespaces", func(f *facts) { f.namespaces = errors.New("operation not permitted") },
			"no namespaces can be made here (operation not permitted)"},
		{"no control groups", func(f *facts) { f.cgroups = cgroups{} }, "no control groups are mounted"},
		{"v1 without what the kubelet needs", func(f *facts) { f.cgroups = cgroups{controllers: []string{"cpu", "cpuacct"}} },
			"control groups v1 without cpuset, memory"},
		{"v2 without what the kubelet needs", func(f *facts) { f.cgroups.controllers = []string{"cpu", "memory"} },
			"control groups v2 without the controllers cpuset, pids"},
		{"read-only control groups", func(f *facts) { f.cgroups.readOnly = true }, "mounted read-only"},
		{"a container's own v2 group with processes", func(f *facts) { f.cgroups.crowded = true },
			"processes sit in this container's own control group /sys/fs/cgroup"},
	} {
		f := facts{cgroups: cgroups{v2: "/sys/fs/cgroup", controllers: []string{"cpuset", "cpu", "io", "memory", "pids"}},
			gpus: []usedGPU{{name: "GPU 0 (NVIDIA H200)"}}}
		tt.change(&f)
		problems := f.problems()
		if len(problems) != min(len(tt.want), 1) || !strings.Contains(strings.Join(problems, "\n"), tt.want) {
			t.Errorf("%s: %q, want one line with %q", tt.name, problems, tt.want)
		}
	}
	f := facts{driver: errors.New("no NVIDIA driver"), kubelets: []string{"1"}}
	if problems := f.problems(); len(problems) != 3 {
		t.Errorf("%q, want three lines: all problems are said at once", problems)
	}
}

func TestCgroups(t *testing.T) {
	all := "cpuset cpu io memory pids"
	for _, tt := range []struct {
		name, mounts string
		files        map[string]string // of the v2 tree
		want         cgroups
	}{
		{name: "the machine's root, with processes", mounts: "proc /proc proc rw 0 0\ncgroup2 %s cgroup2 rw,nosuid 0 0\n",
			files: map[string]string{"cgroup.procs": "1\n2\n"}, want: cgroups{v2: "x"}},
		{name: "v1, with a v2 tree beside it", want: cgroups{controllers: []string{"memory", "cpu", "cpuacct"}},
			mounts: "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n" +
				"cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup2 %s cgroup2 rw 0 0\n"},
		{name: "a container without privileges", mounts: "cgroup %s cgroup2 ro,nosuid 0 0\n",
			want: cgroups{v2: "x", readOnly: true}},
		{name: "none", mounts: "proc /proc proc rw 0 0\n"},
		{name: "a container's group with processes", mounts: "cgroup2 %s cgroup2 rw 0 0\n", files: map[string]string{
			"cgroup.type": "domain\n", "cgroup.procs": "1\n", "cgroup.subtree_control": "cpu"},
			want: cgroups{v2: "x", crowded: true}},
		{name: "one that hands down what is needed already", mounts: "cgroup2 %s cgroup2 rw 0 0\n", files: map[string]string{
			"cgroup.type": "domain\n", "cgroup.procs": "1\n", "cgroup.subtree_control": all}, want: cgroups{v2: "x"}},
		{name: "one without processes", mounts: "cgroup2 %s cgroup2 rw 0 0\n", files: map[string]string{
			"cgroup.type": "domain\n", "cgroup.procs": "\n", "cgroup.subtree_control": ""}, want: cgroups{v2: "x"}},
	} {
		dir := t.TempDir()
		for name, content := range tt.files {
			write(t, filepath.Join(dir, name), content)
		}
		write(t, filepath.Join(dir, "cgroup.controllers"), all)
		if tt.want.v2 != "" {
			tt.want.v2, tt.want.controllers = dir, strings.Fields(all)
		}
		got, err := readCgroups(strings.ReplaceAll(tt.mounts, "%s", dir))
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(cgroups{})); diff != "" || err != nil {
			t.Errorf("%s: %v: %s", tt.name, err, diff)
		}
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// This process can be found by its name.
func TestNamed(t *testing.T) {
	pid := fmt.Sprint(os.Getpid())
	if found := named(nameOf(pid)); !slices.Contains(found, pid) {
		t.Errorf("%q are called %s, and not this one", found, nameOf(pid))
	}
}
