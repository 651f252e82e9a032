// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/build"
)

// TestRuncHandsControllersDown starts a container that asks for no limit, on control groups of version 2 alone. Each
// of the groups above it hands all controllers down, so that the container's own has their files: a controller that
// nobody asked for, such as dmem, reaches it without anybody's doing. A createRuntime hook finds the container's
// process there. No kernel of this project's machines has dmem: what the tree has is logged.
func TestRuncHandsControllersDown(t *testing.T) {
	mounted, err := mountedHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(mounted, func(h hierarchy) bool { return h.unified })
	if i < 0 {
		t.Skip("this machine has no control groups of version 2")
	}
	controllers, err := os.ReadFile(filepath.Join(mounted[i].path, "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	if len(strings.Fields(string(controllers))) == 0 {
		t.Skipf("the control groups of version 2 in %s have no controllers", mounted[i].path)
	}
	programs := built(t, "runc", "images")
	runc := filepath.Join(programs["runc"], "runc")
	dir := t.TempDir()
	content, err := os.ReadFile(filepath.Join(programs["images"], "pause"))
	if err == nil {
		err = errors.Join(os.Mkdir(filepath.Join(dir, "rootfs"), 0o755),
			os.WriteFile(filepath.Join(dir, "rootfs", "pause"), content, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	hook := filepath.Join(dir, "hook")
	bundle(t, runc, dir, `cat /proc/"$(sed 's/.*"pid":\([0-9]*\).*/\1/')"/cgroup >`+hook)

	// The tree takes the place of all that is there, as on a machine that has no other.
	out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-eu", "-c", `
mount --make-rprivate /
mkdir "$2/tree"
mount --bind "$3" "$2/tree"
umount --lazy --recursive /sys/fs/cgroup
mount --move "$2/tree" /sys/fs/cgroup
end() {
	"$1" --root "$2/state" delete --force "gpushare-$4" || true
	cd /sys/fs/cgroup && rmdir "gpushare-$4/pods/pod" "gpushare-$4/pods" "gpushare-$4"
}
trap 'end "$@"' EXIT
"$1" --root "$2/state" run --detach --bundle "$2" "gpushare-$4" </dev/null >"$2/log" 2>&1 || { cat "$2/log"; exit 1; }
cd "/sys/fs/cgroup/gpushare-$4"
cat cgroup.subtree_control pods/cgroup.subtree_control pods/pod/cgroup.subtree_control pods/pod/container/cgroup.controllers
`, "sh", runc, dir, mounted[i].path, filepath.Base(dir)+filepath.Base(filepath.Dir(dir))).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := strings.Repeat(string(controllers), 4)
	if string(out) != want {
		t.Errorf("the groups above the container hand down, and it has:\n%swant all of %s", out, controllers)
	}
	seen, err := os.ReadFile(hook)
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(seen)), "/pods/pod/container") {
		t.Errorf("the hook finds the container's process in %s (%v)", seen, err)
	}
	t.Logf("of the tree in %s runc hands down %s", mounted[i].path, controllers)
}

// built are the directories of components of a cluster.
func built(t *testing.T, names ...string) map[string]string {
	t.Helper()
	sources, err := filepath.Abs("../../components")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := build.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	all, err := build.Components("")
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(c build.Component) bool { return !slices.Contains(names, c.Name) })
	builder := build.Builder{Sources: sources, Cache: cache, Progress: t.Logf}
	dirs, err := builder.Ensure(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// bundle writes a container that asks for nothing, with a hook.
func bundle(t *testing.T, runc, dir, hook string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), runc, "spec", "--bundle", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path := filepath.Join(dir, "config.json")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(content, &config); err != nil {
		t.Fatal(err)
	}
	process, linux := config["process"].(map[string]any), config["linux"].(map[string]any)
	process["terminal"], process["args"] = false, []string{"/pause"}
	name := filepath.Base(dir) + filepath.Base(filepath.Dir(dir))
	linux["cgroupsPath"], linux["resources"] = "/gpushare-"+name+"/pods/pod/container", map[string]any{}
	config["hooks"] = map[string]any{"createRuntime": []any{map[string]any{"path": "/bin/sh",
		"args": []string{"sh", "-c", hook}, "env": []string{"PATH=/usr/bin:/bin"}}}}
	if content, err = json.Marshal(config); err == nil {
		err = os.WriteFile(path, content, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
