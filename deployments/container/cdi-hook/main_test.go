// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// asHook makes this test's program behave as gpu-cdi-hook: what the toolkit starts
// again of itself has to be the program.
const asHook = "GPU_CDI_HOOK_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asHook) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// bundle is a container that is being created: its state, as a runtime hands it to hooks,
// and its root, which is a mount in the namespace of the hook alone.
type bundle struct{ dir, state string }

func newBundle(t *testing.T) bundle {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"root":{"path":"rootfs"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	return bundle{dir: dir, state: fmt.Sprintf(`{"ociVersion":"1.2.0","id":"test","status":"creating","bundle":%q}`, dir)}
}

// hook runs the program in a mount namespace of its own, in which the container's root
// is mounted, and returns what the shell command "then" prints there.
func (b bundle) hook(t *testing.T, then string, arguments ...string) (string, error) {
	t.Helper()
	const script = `mount -t tmpfs tmpfs "$0/rootfs" && mkdir -p "$0/rootfs/etc" "$0/rootfs/usr/lib" "$0/rootfs/proc" "$0/rootfs/sys" && cd "$0/rootfs" &&
		program=$1 then=$2 && shift 2 && "$program" "$@" >&2 && sh -c "$then"`
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("sh", append([]string{"-c", script, b.dir, program, then}, arguments...)...)
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	command.Env = append(os.Environ(), asHook+"=1")
	command.Stdin = strings.NewReader(b.state)
	var out, problems bytes.Buffer
	command.Stdout, command.Stderr = &out, &problems
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, problems.String())
	}
	return out.String(), nil
}

// TestHooksInOneProcess: each hook finds the container, in the order of the arguments,
// the one that starts another process included.
func TestHooksInOneProcess(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("it mounts the root of a container: only root can")
	}
	out, err := newBundle(t).hook(t, "readlink usr/lib/libcuda.so usr/lib/libother.so; ls etc/ld.so.cache; cat "+
		"etc/ld.so.conf.d/00-nvcr-*",
		"create-symlinks", "--link", "libcuda.so.1::/usr/lib/libcuda.so",
		then, "update-ldcache", "--folder", "/usr/lib/of-the-driver",
		then, "disable-device-node-modification",
		then, "create-symlinks", "--link", "libother.so.1::/usr/lib/libother.so")
	if err != nil {
		t.Fatal(err)
	}
	if want := "libcuda.so.1\nlibother.so.1\netc/ld.so.cache\n/usr/lib/of-the-driver\n"; out != want {
		t.Errorf("the container has\n%swant\n%s", out, want)
	}
}

// TestHookThatFails: the runtime learns of it, and in which hook, and no later one runs.
func TestHookThatFails(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("it mounts the root of a container: only root can")
	}
	b := newBundle(t)
	_, err := b.hook(t, "true", "create-symlinks", "--link", "no-separator", then, "create-symlinks", "--link",
		"a::/usr/lib/b")
	if err == nil || !strings.Contains(err.Error(), "no-separator") || !strings.Contains(err.Error(), "create-symlinks") {
		t.Errorf("got %v, want an error that names the hook and its argument", err)
	}
}

// TestUnknownHook: a container does not start without what a spec wants for it.
func TestUnknownHook(t *testing.T) {
	for _, arguments := range [][]string{{"no-such-hook"}, {}, {then}} {
		if err := run(t.Context(), "gpu-cdi-hook", arguments); err == nil || !strings.Contains(err.Error(), "no such hook") {
			t.Errorf("arguments %q: got %v, want an error", arguments, err)
		}
	}
}

func TestSplit(t *testing.T) {
	got := split([]string{"a", "--x", then, "b", then, "c", "1"})
	want := [][]string{{"a", "--x"}, {"b"}, {"c", "1"}}
	if !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %q, want %q", got, want)
	}
}
