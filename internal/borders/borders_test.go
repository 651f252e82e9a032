// SPDX-License-Identifier: Apache-2.0

package borders_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testcache"
)

const module = "github.com/gpushare/dra-driver-gpushare"

// pkg is a package of the module, its paths without the module's.
type pkg struct {
	path string
	// ours are the packages of the module that it imports, others those of other
	// modules; deps all packages, ours or not, that it is linked with.
	ours, others, deps []string
}

// packages lists the module's packages, without those below tests.
func packages(t *testing.T) []pkg {
	t.Helper()
	found, err := listed()
	expect.NoError(t, err)
	if len(found) < 40 {
		t.Fatalf("go list names %d packages only", len(found))
	}
	return found
}

// listed is what the go command says, which all tests ask for.
var listed = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps")
	for _, dir := range []string{"cmd", "pkg", "cdi", "deviceclasses", "internal"} {
		if err := testcache.Reads(filepath.Join(root, dir)); err != nil {
			return nil, err
		}
		cmd.Args = append(cmd.Args, "./"+dir+"/...")
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		return nil, err
	}
	cmd.Dir = root
	var failure strings.Builder
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%q: %w: %s", cmd.Args, err, failure.String())
	}
	var found []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var listed struct {
			ImportPath    string
			Imports, Deps []string
		}
		if err := decoder.Decode(&listed); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("what %q said: %w", cmd.Args, err)
		}
		p := pkg{path: short(listed.ImportPath)}
		for _, path := range listed.Imports {
			if path == short(path) {
				p.others = append(p.others, path)
			} else {
				p.ours = append(p.ours, short(path))
			}
		}
		for _, path := range listed.Deps {
			p.deps = append(p.deps, short(path))
		}
		found = append(found, p)
	}
	return found, nil
})

func short(path string) string { return strings.TrimPrefix(path, module+"/") }

// below reports whether the path is one of these packages or below one of them.
func below(path string, packages ...string) bool {
	return slices.ContainsFunc(packages, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
}

// pure are the packages that know no API server, no file system and no clock.
var pure = []string{
	"pkg/apis/ack", "pkg/apis/gpu/v1alpha1", "pkg/apis/nvidia", "pkg/node/audit", "pkg/claim", "pkg/deviceplugin",
	"pkg/devices",
	"pkg/devices/view", "pkg/explain", "pkg/explain/advice",
	"pkg/gpu", "pkg/held", "pkg/inspect", "pkg/inspect/consumption", "pkg/inspect/defragment",
	"pkg/inspect/fromack", "pkg/inspect/plan",
	"pkg/inspect/published", "pkg/inspect/rightsize", "pkg/inspect/stranded", "pkg/inspect/why",
	"pkg/legacy", "pkg/mode", "pkg/node/otherdrivers", "pkg/placement", "pkg/placement/defragment",
	"pkg/placement/score", "pkg/quota",
	"pkg/scheduling", "pkg/scheduling/moves", "pkg/scheduling/offer", "pkg/text", "pkg/topology", "pkg/usage",
}

// A package that decides can be understood, and tested, without a cluster.
func TestPurePackages(t *testing.T) {
	for _, p := range packages(t) {
		if !slices.Contains(pure, p.path) {
			continue
		}
		for _, path := range p.ours {
			// DeviceClasses are files of the program itself.
			if !slices.Contains(pure, path) && path != "internal/stockallocator" && path != "deviceclasses" {
				t.Errorf("%s is pure and imports %s, which is not", p.path, path)
			}
		}
		for _, path := range p.others {
			if below(path, "k8s.io/client-go", "google.golang.org/grpc", "os", "net", "syscall", "golang.org/x/sys/unix") {
				t.Errorf("%s is pure and imports %s", p.path, path)
			}
		}
	}
}

// rule says that only some packages import another.
type rule struct{ imported, by []string }

func TestWhoImportsWhat(t *testing.T) {
	rules := []rule{
		// The scheduler's allocator is set up in one place.
		{[]string{"internal/stockallocator"}, []string{"pkg/scheduling", "internal/allocatortest"}},
		// NVML is read in one place, and handed on as its interface.
		{[]string{"github.com/NVIDIA/go-nvml/pkg/nvml"}, []string{"pkg/gpu", "cdi", "internal/topologytest"}},
		{[]string{"github.com/NVIDIA/go-nvml/pkg/nvml/mock"}, nil},
		// Simulated GPUs are for demonstrations and tests.
		{[]string{"tests"}, []string{"internal/topologytest"}},
		// Wiring is done by programs, and known by nobody else.
		{[]string{"pkg/node/driver"}, []string{"cmd/gpu-kubelet-plugin"}},
		// What runs on a node, beside the API server and at a desk know nothing of each other.
		{[]string{"pkg/node"}, []string{"cmd/gpu-kubelet-plugin", "cmd/gpu-memory-limit", "cmd/gpu-mps-check",
			"cmd/gpu-mps-supervisor",
			"internal/docs/generate", "internal/preparetest", "internal/program/gpuflags"}},
		{[]string{"pkg/controller"}, []string{"cmd/gpu-compat-controller"}},
		{[]string{"pkg/inspect"}, []string{"cmd/kubectl-inspect-cgpu"}},
		// The tables of docs say which flags programs have.
		{[]string{"cmd"}, []string{"internal/docs/generate"}},
		// Only preparing a claim brings isolation, records and CDI specs together.
		{[]string{"pkg/node/prepare"}, []string{"pkg/node/driver", "pkg/node/inventory", "pkg/node/orphans",
			"pkg/node/publish", "internal/preparetest"}},
		{[]string{"pkg/node/state"},
			[]string{"pkg/node/driver", "pkg/node/orphans", "pkg/node/prepare", "pkg/node/publish",
				"internal/preparetest"}},
		// nvidia-container-toolkit makes base CDI edits, and nothing else.
		{[]string{"github.com/NVIDIA/nvidia-container-toolkit"}, []string{"cdi", "internal/toolkitlog"}},
	}
	for _, p := range packages(t) {
		for _, path := range slices.Concat(p.ours, p.others) {
			for _, r := range rules {
				if below(path, r.imported...) && !below(p.path, r.by...) && !below(p.path, r.imported...) {
					t.Errorf("%s imports %s, which only %q may", p.path, path, r.by)
				}
			}
		}
	}
}

// A controller is read without any other, by itself and its parts: what several need has a package that is none.
func TestControllersKnowNoOther(t *testing.T) {
	const floor = "pkg/controller"
	shared := []string{floor + "/cache", floor + "/manager", floor + "/podstate"}
	for _, p := range packages(t) {
		if p.path == floor || !below(p.path, floor) {
			continue
		}
		for _, path := range p.ours {
			if below(path, floor) && !below(path, shared...) && !below(path, p.path) {
				t.Errorf("%s imports %s: of pkg/controller it may know %q only", p.path, path, shared)
			}
		}
	}
}

// What a node runs has neither the simulation nor any helper of tests in it.
func TestProgramsHaveNothingOfTests(t *testing.T) {
	for _, p := range packages(t) {
		if !below(p.path, "cmd") {
			continue
		}
		for _, path := range p.deps {
			if below(path, "tests", "github.com/NVIDIA/go-nvml/pkg/nvml/mock", "internal/allocatortest",
				"internal/expect", "internal/preparetest", "internal/reporttest", "internal/topologytest", "testing") {
				t.Errorf("%s is linked with %s", p.path, path)
			}
		}
	}
}

// picture is the picture of the imports.
var picture = regexp.MustCompile("(?s)### Borders\n.*?```mermaid\nflowchart TD\n(.*?)```")

func TestPictureShowsTheImports(t *testing.T) {
	page, err := os.ReadFile("../../docs/internals/architecture.md")
	expect.NoError(t, err)
	found := picture.FindSubmatch(page)
	if found == nil {
		t.Fatal("docs/internals/architecture.md has no picture below the heading Borders")
	}
	var drawn []string
	for line := range strings.Lines(string(found[1])) {
		drawn = append(drawn, strings.TrimSpace(line))
	}
	expect.Equal(t, arrows(packages(t)), drawn, "imports between rooms, without those that follow from others")
}

// room is the part of the module that a package belongs to, as the picture shows it:
// packages below another are one room with it. What runs on a node is a floor of rooms.
func room(path string) string {
	depth := 2
	if below(path, "pkg/node") {
		depth = 3
	}
	parts := strings.Split(path, "/")
	return strings.Join(parts[:min(depth, len(parts))], "/")
}

// arrows are the imports between rooms that the picture shows: the least that all
// others follow from.
func arrows(all []pkg) []string {
	imports := map[string]map[string]bool{}
	for _, p := range all {
		for _, path := range p.ours {
			if from, to := room(p.path), room(path); from != to && shown(from) && shown(to) {
				if imports[from] == nil {
					imports[from] = map[string]bool{}
				}
				imports[from][to] = true
			}
		}
	}
	var reach func(from, to string) bool
	reach = func(from, to string) bool {
		if imports[from][to] {
			return true
		}
		for next := range imports[from] {
			if reach(next, to) {
				return true
			}
		}
		return false
	}
	var out []string
	for from, targets := range imports {
		for to := range targets {
			implied := false
			for other := range targets {
				implied = implied || other != to && reach(other, to)
			}
			if !implied {
				out = append(out, fmt.Sprintf("%s --> %s", strings.TrimPrefix(from, "pkg/"), strings.TrimPrefix(to, "pkg/")))
			}
		}
	}
	slices.Sort(out)
	return out
}

// shown reports whether the picture shows a room: programs, names, helpers of tests and
// what has to do with text and files only are left out.
func shown(room string) bool {
	return !below(room, "cmd", "internal", "pkg/apis", "pkg/text", "pkg/report", "pkg/atomicfile")
}
