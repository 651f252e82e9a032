// SPDX-License-Identifier: Apache-2.0

package build

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

var tools = toolchain{Version: "go1.26.8", OS: "linux", Arch: "amd64"}

func sources(main string) fstest.MapFS {
	return fstest.MapFS{"go.mod": {Data: []byte("module m\n")}, "main.go": {Data: []byte(main)}}
}

func TestKeySaysWhatAComponentIsBuiltFrom(t *testing.T) {
	keyOf := func(c Component, files fstest.MapFS, tools toolchain) string {
		t.Helper()
		k, err := key(c, files, tools)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	base := Component{Name: "c", Packages: []string{"."}}
	original := keyOf(base, sources("package main"), tools)
	if again := keyOf(base, sources("package main"), tools); again != original {
		t.Errorf("the same sources in another place have key %s instead of %s", again, original)
	}
	tagged, linked, cgo := base, base, base
	tagged.Tags = []string{"seccomp"}
	linked.Links = map[string]string{"a": "c"}
	cgo.Cgo = true
	renamed := sources("package main")
	renamed["other.go"] = renamed["main.go"]
	delete(renamed, "main.go")
	newer := tools
	newer.Version = "go1.27.0"
	for name, other := range map[string]string{
		"another source":    keyOf(base, sources("package main // changed"), tools),
		"another file name": keyOf(base, renamed, tools),
		"another toolchain": keyOf(base, sources("package main"), newer),
		"another tag":       keyOf(tagged, sources("package main"), tools),
		"another link":      keyOf(linked, sources("package main"), tools),
		"cgo":               keyOf(cgo, sources("package main"), tools),
	} {
		if other == original {
			t.Errorf("%s gives the same key", name)
		}
	}
}

func TestKubernetesVersion(t *testing.T) {
	components, err := Components("")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(flags(components[0], "v1.37.1"), " ")
	for _, want := range []string{"gitVersion=v1.37.1", "gitMajor=1", "gitMinor=37"} {
		if !strings.Contains(got, want) {
			t.Errorf("flags %s lack %s", got, want)
		}
	}
}

// An older Kubernetes lies under the same name in a cluster, and has sources and a key of its own.
func TestKubernetesOfEachVersion(t *testing.T) {
	keys := map[string]string{}
	for version := range kubernetes() {
		components, err := Components(version)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join("../../components", components[0].directory())
		keyed, err := key(components[0], os.DirFS(dir), tools)
		if err != nil {
			t.Fatal(err)
		}
		if other, taken := keys[keyed]; taken {
			t.Errorf("%s and %s have the same key", version, other)
		}
		keys[keyed] = version
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if want := "k8s.io/kubernetes v" + version + "."; components[0].Name != "kubernetes" ||
			!strings.Contains(string(mod), want) {
			t.Errorf("%s is component %s of a module that requires no %s", version, components[0].Name, want)
		}
	}
	if _, err := Components("1.2"); err == nil || !strings.Contains(err.Error(), "1.36, 1.37") {
		t.Errorf("a version that nobody builds: %v", err)
	}
}

// newBuilder has a component named hello with the given main package.
func newBuilder(t *testing.T, main string) (*Builder, []Component) {
	t.Helper()
	dir := t.TempDir()
	component := filepath.Join(dir, "components", "hello")
	if err := os.MkdirAll(component, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"go.mod": "module example.test/hello\n\ngo 1.26\n", "main.go": main} {
		if err := os.WriteFile(filepath.Join(component, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b := &Builder{Sources: filepath.Dir(component), Cache: filepath.Join(dir, "cache"), Progress: t.Logf}
	return b, []Component{{Name: "hello", Packages: []string{"."}, Links: map[string]string{"hi": "hello"}}}
}

const hello = "package main\n\nfunc main() { println(\"hello\") }\n"

func TestEnsureBuildsOnce(t *testing.T) {
	b, components := newBuilder(t, hello)
	var mutex sync.Mutex
	var told []string
	b.Progress = func(format string, args ...any) {
		mutex.Lock()
		defer mutex.Unlock()
		told = append(told, fmt.Sprintf(format, args...))
	}
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			if _, err := b.Ensure(t.Context(), components); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if done := strings.Count(strings.Join(told, "\n"), "done in"); done != 1 {
		t.Errorf("built %d times: %q", done, told)
	}

	told = nil
	dirs, err := b.Ensure(t.Context(), components)
	if err != nil {
		t.Fatal(err)
	}
	if len(told) != 0 {
		t.Errorf("went to work on what is built: %q", told)
	}
	out, err := exec.Command(filepath.Join(dirs["hello"], "hi")).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "hello" {
		t.Errorf("the program under its other name prints %q, %v", out, err)
	}
}

// A program is named after its module: a link to another name would be found to lead nowhere only
// by whoever starts it.
func TestLinkToNoProgramIsNoComponent(t *testing.T) {
	b, components := newBuilder(t, hello)
	components[0].Links = map[string]string{"hi": "hallo"}
	if _, err := b.Ensure(t.Context(), components); err == nil || !strings.Contains(err.Error(), "program hallo") {
		t.Errorf("a link to a program that is not there: %v", err)
	}
}

func TestEnsureGoesOnAfterAKilledBuild(t *testing.T) {
	b, components := newBuilder(t, hello)
	if err := os.MkdirAll(filepath.Join(b.Cache, "hello.partial", "junk"), 0o755); err != nil {
		t.Fatal(err)
	}
	dirs, err := b.Ensure(t.Context(), components)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dirs["hello"], "junk")); err == nil {
		t.Error("what a killed build left is in the component")
	}
}

func TestFailedBuildSaysWhatAndWhere(t *testing.T) {
	b, components := newBuilder(t, "package main\n\nfunc main() { undefinedThing() }\n")
	_, err := b.Ensure(t.Context(), components)
	var failed *Failed
	if !errors.As(err, &failed) {
		t.Fatalf("got %v, want a failed build", err)
	}
	if !strings.Contains(err.Error(), "hello") {
		t.Errorf("error %q does not name the component", err)
	}
	log, err := os.ReadFile(failed.LogPath())
	if err != nil || !strings.Contains(string(log), "undefinedThing") {
		t.Errorf("log holds %q, %v", log, err)
	}
}

func TestBuiltElsewhere(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Neither Go nor sources: nothing of it may be looked at.
	t.Setenv("PATH", "")
	b := &Builder{Built: dir, Cache: filepath.Join(t.TempDir(), "cache"), Sources: "/nonexistent"}
	got, err := b.Ensure(t.Context(), []Component{{Name: "one"}, {Name: "two"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		if got[name] != filepath.Join(dir, name) {
			t.Errorf("component %s is in %q", name, got[name])
		}
	}
	if _, err := b.Ensure(t.Context(), []Component{{Name: "three"}}); err == nil || !strings.Contains(err.Error(),
		"three") {
		t.Errorf("a component that is not there: %v", err)
	}
}
