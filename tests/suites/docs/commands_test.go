// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/suites/docs/commands"
)

// commandLine begins a line that is to be copied.
var commandLine = regexp.MustCompile(`(?m)^(\$ )?(sudo |kubectl |helm |make |go run )`)

// Each block of commands is run by a test, which takes it from the page, or says why not.
func TestEveryCommandIsRunOrSaysWhyNot(t *testing.T) {
	tests := files(t, "*_test.go")
	onCluster := 0
	skipped := map[string]bool{}
	for path, content := range files(t, "*.md") {
		if strings.HasPrefix(path, translations) || path != "README.md" && !strings.HasPrefix(path, "docs/") {
			continue // the commands of translations are those of the pages, by another test
		}
		for _, b := range commands.Blocks(path, content) {
			if !b.Are() && commandLine.MatchString(b.Text) && b.Language == "" {
				t.Errorf("%s:%d: a block of commands is ```console", path, b.Line)
			}
			switch {
			case !b.Are():
			case b.NotRun != "" && len(strings.Fields(b.NotRun)) < 3:
				t.Errorf("%s:%d: why is it not run? %q", path, b.Line, b.NotRun)
			case b.Test != "":
				runBy(t, b, tests)
			case b.OnCluster():
				onCluster++
				if filepath.Dir(path) == "docs/internals" {
					t.Errorf("%s:%d: tests/suites/pages does not run what is for developers: say who runs it", path, b.Line)
				}
				for _, word := range commands.Choices(withoutComments(b.On())) {
					t.Errorf("%s:%d: tests/suites/docs/commands has no value for %s of\n%s", path, b.Line, word, b.On())
				}
				for line := range strings.Lines(b.Commands()) {
					for _, s := range commands.Skipped {
						if s.Command.MatchString(line) {
							skipped[s.Why] = true
						}
					}
				}
			}
		}
	}
	if onCluster < 40 {
		t.Errorf("only %d blocks are run by tests/suites/pages", onCluster)
	}
	for _, s := range commands.Skipped {
		if !skipped[s.Why] {
			t.Errorf("no page has the command %s, which is skipped", s.Command)
		}
	}
	for path := range commands.Pages {
		if files(t, filepath.Base(path))[path] == "" {
			t.Errorf("tests/suites/docs/commands knows %s, which there is not", path)
		}
	}
}

func withoutComments(text string) string {
	return regexp.MustCompile(`(?m)( |^)#.*$`).ReplaceAllString(text, "")
}

// runBy looks whether the test that is to run a block is there, and reads the page.
func runBy(t *testing.T, b commands.Block, tests map[string]string) {
	t.Helper()
	declared, reads := false, false
	for path, content := range tests {
		if filepath.Dir(path) == b.Dir {
			declared = declared || strings.Contains(content, "func "+b.Test+"(t *testing.T)")
			reads = reads || strings.Contains(content, `"`+b.Path+`"`) || strings.Contains(content, "/"+b.Path+`"`)
		}
	}
	if !declared || !reads {
		t.Errorf("%s:%d is said to be run by %s of %s: that test is there: %t; its package reads the page: %t", b.Path,
			b.Line, b.Test, b.Dir, declared, reads)
	}
}

func TestBlocks(t *testing.T) {
	const page = "# Page\n\n<!-- run by tests/a: TestA -->\n\nText.\n\n```console\n$ one\nprinted\n$ two\n```\n\n" +
		"1. Item\n\n   <!-- not run: needs a real GPU -->\n   ```sh\n   three <<EOF\n     four\n   EOF\n   " +
		"```\n\n```yaml\na: b\n```\n"
	got := commands.Blocks("p.md", page)
	want := []commands.Block{
		{Path: "p.md", Line: 8, Language: "console", Text: "$ one\nprinted\n$ two\n", Dir: "tests/a", Test: "TestA"},
		{Path: "p.md", Line: 17, Language: "sh", Text: "three <<EOF\n  four\nEOF\n", NotRun: "needs a real GPU"},
		{Path: "p.md", Line: 23, Language: "yaml", Text: "a: b\n", Dir: "tests/a", Test: "TestA"},
	}
	expect.Equal(t, want, got, "blocks")
	if got[0].Commands() != "one\ntwo\n" || got[1].Commands() != got[1].Text {
		t.Errorf("commands %q and %q", got[0].Commands(), got[1].Commands())
	}
	if got := []bool{got[0].OnCluster(), got[1].OnCluster(), got[2].Are()}; slices.Contains(got, true) {
		t.Errorf("run on a cluster, or commands: %v", got)
	}
	b := commands.Block{Path: "docs/health.md",
		Text: "kubectl get pod POD; kubectl get --raw POD:8081/x NODE\nnvidia-smi -q\n"}
	if want := "kubectl get pod first; kubectl get --raw $leader:8081/x n3\n"; b.On() != want {
		t.Errorf("%q, want %q", b.On(), want)
	}
}
