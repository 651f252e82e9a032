// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMounted(t *testing.T) {
	for _, tt := range []struct {
		name, mounts string
		want         Cgroups
		v2           string
	}{
		{"v2 alone", "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nsdelegate 0 0\n", Cgroups{},
			"/sys/fs/cgroup"},
		{
			"v1, with a v2 tree beside it",
			"cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n" +
				"cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
			Cgroups{V1: []string{"memory", "cpu", "cpuacct"}}, "/sys/fs/cgroup/unified",
		},
		{"a container without privileges", "cgroup /sys/fs/cgroup cgroup2 ro,nosuid 0 0\n", Cgroups{ReadOnly: true},
			"/sys/fs/cgroup"},
		{"none", "proc /proc proc rw 0 0\n", Cgroups{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, v2 := mounted(tt.mounts)
			if diff := cmp.Diff(tt.want, got); diff != "" || v2 != tt.v2 {
				t.Errorf("v2 tree %q, want %q: %s", v2, tt.v2, diff)
			}
		})
	}
}

func TestCrowded(t *testing.T) {
	all := []string{"cpu", "cpuset", "memory", "pids"}
	for _, tt := range []struct {
		name   string
		files  map[string]string
		handed []string
		want   bool
	}{
		{"the machine's root", map[string]string{"cgroup.procs": "1\n2\n"}, nil, false},
		{"a container's group with processes", map[string]string{"cgroup.type": "domain\n", "cgroup.procs": "1\n"},
			[]string{"cpu"}, true},
		{"one that hands down what is needed already", map[string]string{"cgroup.type": "domain\n",
			"cgroup.procs": "1\n"}, all, false},
		{"one without processes", map[string]string{"cgroup.type": "domain\n", "cgroup.procs": "\n"}, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := crowded(dir, tt.handed); got != tt.want {
				t.Errorf("%t, want %t", got, tt.want)
			}
		})
	}
}

// This machine has control groups, or no test of the cluster could run on it.
func TestThisMachine(t *testing.T) {
	c, err := ReadCgroups()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %+v", c.Version(), c)
	if free, err := FreeMiB(filepath.Join(t.TempDir(), "not", "there")); err != nil || free <= 0 {
		t.Errorf("%d MiB are free: %v", free, err)
	}
}
