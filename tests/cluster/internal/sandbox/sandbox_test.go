// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
)

// TestMain lets the test program be the first process of the sandboxes it starts,
// as the real one is.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == InitArgument {
		if err := Init(slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
}

// eventually polls until condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := proc.Poll(ctx, 10*time.Millisecond, condition); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// startSandbox starts spec and ends it with the test.
func startSandbox(t *testing.T, spec Spec) (first proc.Process) {
	t.Helper()
	err := Start(t.Context(), spec, filepath.Join(t.TempDir(), "init.log"), func(p proc.Process) error {
		first = p
		return nil
	})
	t.Cleanup(func() { _ = first.Kill(context.Background()) })
	if err != nil {
		t.Fatal(err)
	}
	return first
}

func shell(t *testing.T, script string) Service {
	t.Helper()
	return Service{
		Args: []string{"/bin/sh", "-c", script},
		Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		Log:  filepath.Join(t.TempDir(), "service.log"),
	}
}

func TestServiceIsStartedAgain(t *testing.T) {
	needRoot(t)
	service := shell(t, "exec sleep 600")
	first := startSandbox(t, Spec{Name: "test", Services: []Service{service}})
	var earlier proc.Process
	eventually(t, "start of the service", func() (found bool) {
		earlier, found = first.Child("sleep")
		return found
	})
	if err := earlier.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another start of the service", func() bool {
		later, found := first.Child("sleep")
		return found && later != earlier
	})
}

func TestServiceHasItsWeight(t *testing.T) {
	needRoot(t)
	heavy, common := shell(t, "exec sleep 600"), shell(t, "exec tail -f /dev/null")
	heavy.Nice = -5
	first := startSandbox(t, Spec{Name: "test", Services: []Service{heavy, common}})
	// The tests may run at another priority than the usual one.
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The bare system call answers 20 less the nice value.
	for name, want := range map[string]int{"sleep": 25, "tail": own} {
		var service proc.Process
		eventually(t, "start of "+name, func() (found bool) {
			service, found = first.Child(name)
			return found
		})
		eventually(t, fmt.Sprintf("weight %d of %s", want, name), func() bool {
			priority, err := unix.Getpriority(unix.PRIO_PROCESS, service.PID)
			return err == nil && priority == want
		})
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", service.PID))
		if name == "sleep" && !errors.Is(err, fs.ErrNotExist) && !strings.HasSuffix(string(group), " nice -5\n") {
			t.Errorf("the session of %s has the weight %q (%v), want nice -5", name, group, err)
		}
	}
}

func TestServiceWaits(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	condition, effect := filepath.Join(dir, "condition"), filepath.Join(dir, "effect")
	service := shell(t, "touch "+effect+"; exec sleep 600")
	service.After = []string{"file:" + condition}
	early := shell(t, "exec sleep 600")
	first := startSandbox(t, Spec{Name: "test", Services: []Service{service, early}})
	eventually(t, "start of the service without a condition", func() bool {
		_, found := first.Child("sleep")
		return found
	})
	if _, err := os.Stat(effect); err == nil {
		t.Fatal("started before its condition was met")
	}
	if err := os.WriteFile(condition, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, "start of the service with a condition", func() bool {
		_, err := os.Stat(effect)
		return err == nil
	})
}

// TestKillEndsEverything has a process that left its parent and its session, which
// no signal to a group would reach.
func TestKillEndsEverything(t *testing.T) {
	needRoot(t)
	marker := fmt.Sprintf("%d.125", 100000+os.Getpid())
	service := shell(t, "setsid sleep "+marker+" & exec sleep 600")
	first := startSandbox(t, Spec{Name: "test", Services: []Service{service}})
	eventually(t, "start of the detached process", func() bool { return running(t, marker) })
	if err := first.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if running(t, marker) {
		t.Error("a detached process outlived its sandbox")
	}
}

func TestNothingRunsThatIsNotOnRecord(t *testing.T) {
	needRoot(t)
	effect := filepath.Join(t.TempDir(), "effect")
	var first proc.Process
	err := Start(t.Context(), Spec{Name: "test", Services: []Service{shell(t, "touch "+effect)}},
		filepath.Join(t.TempDir(), "init.log"), func(p proc.Process) error {
			first = p
			return errors.New("disk full")
		})
	if err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("got error %v, want the recorder's", err)
	}
	eventually(t, "end of the first process", func() bool { return !first.Alive() })
	if _, err := os.Stat(effect); err == nil {
		t.Error("a service ran")
	}
}

func TestSetupFailureIsReported(t *testing.T) {
	needRoot(t)
	spec := Spec{Name: "test", Root: t.TempDir(), Binds: []Bind{{Source: "/nowhere", Target: "/"}}}
	var first proc.Process
	err := Start(t.Context(), spec, filepath.Join(t.TempDir(), "init.log"), func(p proc.Process) error {
		first = p
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("got error %v, want one that names what could not be mounted", err)
	}
	if first.Alive() {
		t.Error("the first process lives on")
	}
}

// TestRootIsItsOwn looks from inside at all that a sandbox with a root promises.
func TestRootIsItsOwn(t *testing.T) {
	needRoot(t)
	setting := "/proc/sys/kernel/panic"
	before, err := os.ReadFile(setting)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	spec := Spec{Name: "inner", Root: root, Shadows: []string{setting, "/proc/sys/none/such"}}
	for _, dir := range []string{"usr", "bin", "lib", "lib64", "dev", "proc", "var"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat("/" + dir); err == nil && dir != "proc" && dir != "var" {
			spec.Binds = append(spec.Binds, Bind{Source: "/" + dir, Target: "/" + dir, ReadOnly: dir == "usr"})
		}
	}
	spec.Services = []Service{shell(t, `
		echo 77 >`+setting+`
		{ uname -n; cat `+setting+
		`; ls -d /proc/1/root/var /etc /usr/probe; touch /usr/probe && echo writable; cat /proc/1/cmdline; } >/var/out.new 2>&1
		mv /var/out.new /var/out
		exec sleep 600`)}
	startSandbox(t, spec)
	var out string
	eventually(t, "the view from inside", func() bool {
		content, err := os.ReadFile(filepath.Join(root, "var/out"))
		out = string(content)
		return err == nil
	})
	for what, want := range map[string]string{
		"its own host name":     "inner\n",
		"its own setting":       "77\n",
		"its own first process": "gpushare-inner",
		"nothing else of /":     "'/etc': No such file",
		"read-only programs":    "Read-only file system",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s (%q) in\n%s", what, want, out)
		}
	}
	after, err := os.ReadFile(setting)
	if err != nil || string(after) != string(before) {
		t.Errorf("the machine's setting became %q from %q, %v", after, before, err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), root) {
		t.Errorf("the sandbox's mounts show on the machine, %v", err)
	}
}

// running reports whether any process has the argument.
func running(t *testing.T, argument string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(content), "sleep\x00"+argument) {
			return true
		}
	}
	return false
}
