// SPDX-License-Identifier: Apache-2.0

// Package repository holds the files by which GitHub and others know the repository to the repository.
package repository

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rhysd/actionlint"
	"go.yaml.in/yaml/v4"
)

const root = "../../.."

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// files are those that a pattern of paths below the root matches; there are some.
func files(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("%s: no such file (%v)", pattern, err)
	}
	for i, path := range found {
		found[i] = strings.TrimPrefix(path, root+"/")
	}
	return found
}

func TestWorkflowsAreCorrect(t *testing.T) {
	linter, err := actionlint.NewLinter(io.Discard, &actionlint.LinterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files(t, ".github/workflows/*.yml") {
		wrong, err := linter.Lint(file, []byte(read(t, file)), nil)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, w := range wrong {
			t.Error(w)
		}
	}
}

// used is an action of others that a workflow runs; pinned is one that cannot change, with the version that it is.
var (
	used   = regexp.MustCompile(`(?m)^\s*(?:- )?uses: *(.*)$`)
	pinned = regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
)

func TestActionsArePinned(t *testing.T) {
	versions := map[string]string{}
	for _, file := range files(t, ".github/workflows/*.yml") {
		for _, found := range used.FindAllStringSubmatch(read(t, file), -1) {
			if !pinned.MatchString(found[1]) {
				t.Errorf("%s uses %s: name a commit, and its version in a comment", file, found[1])
			}
			action, version, _ := strings.Cut(found[1], "@")
			name := strings.Join(strings.Split(action, "/")[:2], "/")
			if other, is := versions[name]; is && other != version {
				t.Errorf("%s uses %s of %s, and elsewhere of %s", file, action, version, other)
			}
			versions[name] = version
		}
	}
	if len(versions) == 0 {
		t.Error("the workflows use no action")
	}
}

// A module that has its own go.mod is updated by Dependabot.
func TestAllModulesAreUpdated(t *testing.T) {
	var config struct {
		Updates []struct {
			Ecosystem   string `yaml:"package-ecosystem"`
			Directories []string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, ".github/dependabot.yml")), &config); err != nil {
		t.Fatal(err)
	}
	var updated, there []string
	for _, u := range config.Updates {
		if u.Ecosystem == "gomod" {
			updated = append(updated, u.Directories...)
		}
	}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case entry.Name() == "go.mod":
			there = append(there, "/"+strings.Trim(strings.TrimPrefix(filepath.Dir(path), root), "/"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(updated)
	slices.Sort(there)
	if diff := cmp.Diff(there, updated); diff != "" {
		t.Errorf("modules, and those of .github/dependabot.yml (-there +updated):\n%s", diff)
	}
}

// own is a link to a file of the repository.
var own = regexp.MustCompile(`https://github\.com/gpushare/dra-driver-gpushare/blob/main/([\w./-]+)(?:#([\w-]+))?`)

// Links of files for machines lead to what is there.
func TestLinksLeadToFiles(t *testing.T) {
	links := 0
	for _, file := range slices.Concat(files(t, ".github/*/*.yml"), files(t, "*.yml"),
		files(t, "deployments/helm/*/Chart.yaml")) {
		for _, found := range own.FindAllStringSubmatch(read(t, file), -1) {
			links++
			page, err := os.ReadFile(filepath.Join(root, found[1]))
			if err != nil {
				t.Errorf("%s links to %s, which is not there", file, found[1])
				continue
			}
			heading := strings.ReplaceAll(found[2], "-", " ")
			if heading != "" && !strings.Contains(strings.ToLower(string(page)), "# "+heading+"\n") {
				t.Errorf("%s links to %s, which has no heading %q", file, found[1], heading)
			}
		}
	}
	if links < 10 {
		t.Errorf("the files have %d links", links)
	}
}
