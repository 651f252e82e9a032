// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/sandbox"
)

func TestHierarchies(t *testing.T) {
	tests := map[string]struct {
		mounts string
		want   []hierarchy
	}{
		"v2 alone": {
			"/dev/sda / ext4 rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n",
			[]hierarchy{{path: "/sys/fs/cgroup", unified: true, options: "rw,nosuid"}},
		},
		"v1 beside v2": {
			"tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified " +
				"cgroup2 rw 0 0\n",
			[]hierarchy{{path: "/sys/fs/cgroup/cpu", options: "rw,cpu"},
				{path: "/sys/fs/cgroup/unified", unified: true, options: "rw"}},
		},
		"none": {"proc /proc proc rw 0 0\n", nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := hierarchies(test.mounts); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestANodeSeesItsOwnGroupOfV1(t *testing.T) {
	v1, v2 := hierarchy{path: "/sys/fs/cgroup/cpu"}, hierarchy{path: "/sys/fs/cgroup/unified", unified: true}
	got := viewOf([]hierarchy{v1, v2}, "n1")
	want := cgroupView{root: "/", binds: []sandbox.Bind{
		{Source: "/sys/fs/cgroup/cpu/n1", Target: "/sys/fs/cgroup/cpu", Instead: true},
		{Source: "/sys/fs/cgroup/unified/n1", Target: "/sys/fs/cgroup/unified", Instead: true},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("v1 beside v2: got %+v, want %+v", got, want)
	}
	got = viewOf([]hierarchy{{path: "/sys/fs/cgroup", unified: true}}, "n1")
	if want := (cgroupView{root: "/n1"}); !reflect.DeepEqual(got, want) {
		t.Errorf("v2 alone: got %+v, want %+v", got, want)
	}
}

func TestInheritCpuset(t *testing.T) {
	parent, group := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(parent, "cpuset.cpus"), []byte("0-1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := inheritCpuset(parent, group); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(group, "cpuset.cpus"))
	if err != nil || string(got) != "0-1\n" {
		t.Errorf("got %q, %v: want the parent's processors", got, err)
	}
	if _, err := os.Stat(filepath.Join(group, "cpuset.mems")); err == nil {
		t.Error("made a file that the parent does not have")
	}
}

func TestEnableControllersLeavesOthersAlone(t *testing.T) {
	parent, group := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(parent, "cgroup.controllers"), []byte("rdma misc memory\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := enableControllers(parent, group); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{parent, group} {
		// A plain file keeps the last write only, which is enough to see it.
		got, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
		if err != nil || string(got) != "+memory" {
			t.Errorf("%s: got %q, %v: want memory enabled", dir, got, err)
		}
	}
}

func TestRemoveTreeOfWhatIsGone(t *testing.T) {
	if err := removeTree(filepath.Join(t.TempDir(), "gone")); err != nil {
		t.Error(err)
	}
}
