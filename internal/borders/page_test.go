// SPDX-License-Identifier: Apache-2.0

package borders_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const root = "../.."

// section is the part of docs/internals/architecture.md from a heading to the next of these.
func section(t *testing.T, heading string, until ...string) string {
	t.Helper()
	page := read(t, "docs/internals/architecture.md")
	_, rest, found := strings.Cut(page, "\n"+heading+"\n")
	if !found {
		t.Fatalf("docs/internals/architecture.md has no heading %q", heading)
	}
	for _, next := range until {
		if part, _, found := strings.Cut(rest, "\n"+next+"\n"); found {
			return part
		}
	}
	t.Fatalf("docs/internals/architecture.md has none of %q after %q", until, heading)
	return ""
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	expect.NoError(t, err)
	return string(content)
}

// item is an entry of the lists of packages, which names one or several before a colon.
var (
	item   = regexp.MustCompile("(?m)^- ((?:`[^`]+`(?:, )?)+):")
	quoted = regexp.MustCompile("`([^`]+)`")
)

// Whoever looks for a package finds it in the lists once. Those below a listed one are its own to name.
func TestPackagesAreListedOnce(t *testing.T) {
	var listed []string
	for _, names := range item.FindAllStringSubmatch(section(t, "## Packages", "### Modules of others"), -1) {
		for _, name := range quoted.FindAllStringSubmatch(names[1], -1) {
			listed = append(listed, name[1])
		}
	}
	slices.Sort(listed)
	if unique := slices.Compact(slices.Clone(listed)); len(unique) != len(listed) {
		t.Errorf("packages are listed twice: %v", expect.Diff(listed, unique))
	}
	for _, p := range packages(t) {
		if !below(p.path, listed...) {
			t.Errorf("%s is not in the lists of packages, nor is one that it is below", p.path)
		}
	}
}

// requirement is a line of go.mod that names a module.
var requirement = regexp.MustCompile(`(?m)^\t(\S+) v\S+( // indirect)?$`)

func TestDirectDependenciesHaveTheirReason(t *testing.T) {
	direct := map[string]bool{}
	for i, block := range strings.Split(read(t, "go.mod"), "require (\n")[1:] {
		for _, line := range requirement.FindAllStringSubmatch(block, -1) {
			indirect := line[2] != ""
			if indirect == (i == 0) {
				t.Errorf("%s: the first block of go.mod is of direct dependencies, the others of indirect ones", line[1])
			}
			if !indirect {
				direct[line[1]] = true
			}
		}
	}
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| .+ \\|$")
	for _, found := range row.FindAllStringSubmatch(section(t, "### Modules of others", "### Borders"), -1) {
		if !direct[found[1]] {
			t.Errorf("%s is listed, and is no direct dependency in go.mod, or is listed twice", found[1])
		}
		delete(direct, found[1])
	}
	for module := range direct {
		t.Errorf("%s has no row below “Modules of others” in docs/internals/architecture.md: why is it there?", module)
	}
}

// A claim's way is drawn with the functions that it leads through, and with the steps of Prepare.
func TestWayOfAClaimLeadsThroughTheCode(t *testing.T) {
	picture := section(t, "## A claim's way", "## Packages")
	code := read(t, "pkg/node/prepare/prepare.go")
	steps := regexp.MustCompile(`error\{(p\.\w+(?:, p\.\w+)*)\}`).FindStringSubmatch(code)
	if steps == nil {
		t.Fatal("pkg/node/prepare/prepare.go has no list of steps any more")
	}
	if drawn := ": " + strings.ReplaceAll(steps[1], "p.", "") + "\n"; !strings.Contains(picture, drawn) {
		t.Errorf("the picture has other steps than prepare.go: want %q", drawn)
	}
	functions := regexp.MustCompile(`\b((?:pkg|cdi)[\w/]*)\.([A-Z]\w*)`).FindAllStringSubmatch(picture, -1)
	if len(functions) < 5 {
		t.Errorf("the picture names %d functions", len(functions))
	}
	for _, f := range functions {
		files, err := filepath.Glob(filepath.Join(root, f[1], "*.go"))
		expect.NoError(t, err)
		declared := regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?` + f[2] + `\(`)
		if !slices.ContainsFunc(files, func(file string) bool {
			content, err := os.ReadFile(file)
			return err == nil && declared.Match(content)
		}) {
			t.Errorf("%s has no function %s", f[1], f[2])
		}
	}
}
