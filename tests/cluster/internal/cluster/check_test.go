// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUsableCgroups(t *testing.T) {
	const all = "cpuset cpu io memory pids"
	crowded := map[string]string{"cgroup.controllers": all, "cgroup.type": "domain\n", "cgroup.procs": "1\n",
		"cgroup.subtree_control": "cpu"}
	for name, test := range map[string]struct {
		v1    []string          // mount options of trees of version 1
		v2    string            // those of one of version 2
		files map[string]string // of that
		want  string            // empty: none
	}{
		"v2": {v2: "rw,nosuid",
			files: map[string]string{"cgroup.controllers": all, "cgroup.procs": "1\n2\n"}},
		"v1, with a v2 tree beside it":      {v1: []string{"rw,memory", "rw,cpuset", "rw,cpu,cpuacct"}, v2: "rw"},
		"v1 without what the kubelet needs": {v1: []string{"rw,cpu,cpuacct"}, want: "v1 without cpuset, memory"},
		"none of the kubelet's in trees v1": {v1: []string{"rw,freezer"}, want: "v1 without cpu, cpuacct, cpuset, memory"},
		"v2 without what the kubelet needs": {v2: "rw", files: map[string]string{"cgroup.controllers": "cpu memory"},
			want: "v2 without the controllers cpuset, pids"},
		"a container without privileges":     {v2: "ro,nosuid", want: "mounted read-only"},
		"a container's group with processes": {v2: "rw", files: crowded, want: "processes sit in this container's own"},
		"one that hands down what is needed already": {v2: "rw", files: map[string]string{"cgroup.controllers": all,
			"cgroup.type": "domain\n", "cgroup.procs": "1\n", "cgroup.subtree_control": all}},
		"one without processes": {v2: "rw", files: map[string]string{"cgroup.controllers": all, "cgroup.type": "domain\n",
			"cgroup.procs": "\n", "cgroup.subtree_control": ""}},
	} {
		dir := t.TempDir()
		writeAll(t, dir, test.files)
		var mounted []hierarchy
		for _, options := range test.v1 {
			mounted = append(mounted, hierarchy{path: "/sys/fs/cgroup/" + options, options: options})
		}
		if test.v2 != "" {
			mounted = append(mounted, hierarchy{path: dir, unified: true, options: test.v2})
		}
		err := usableCgroups(mounted)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func writeAll(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// What nobody else needs is handed down no longer. A plain file keeps the last write only, which is enough to see it.
func TestHandDownAsBefore(t *testing.T) {
	dir := t.TempDir()
	writeAll(t, dir, map[string]string{"more": "cpu memory", "same": "cpu"})
	more, same := filepath.Join(dir, "more"), filepath.Join(dir, "same")
	if err := handDownAsBefore(map[string][]string{more: {"cpu"}, same: {"cpu"}}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{more: "-memory", same: "cpu"} {
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s: %q (%v), want %q", file, got, err, want)
		}
	}
}
