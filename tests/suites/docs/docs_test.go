// SPDX-License-Identifier: Apache-2.0

// Package docs holds the documents to each other and to the code: links lead
// somewhere, settings and messages that a page names are those of the programs.
package docs

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// checkout is the root of the repository.
const checkout = "../../.."

// files are those of the checkout that a pattern selects, by their path below it.
func files(t *testing.T, pattern string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(checkout, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && (name == "my-cluster" || len(name) > 2 && name[0] == '.') {
			return fs.SkipDir
		}
		if match, _ := filepath.Match(pattern, name); !match || entry.IsDir() {
			return nil
		}
		content, err := os.ReadFile(path)
		relative, _ := filepath.Rel(checkout, path)
		out[relative] = string(content)
		return err
	})
	expect.NoError(t, err)
	if len(out) == 0 {
		t.Fatalf("no file %s below %s", pattern, checkout)
	}
	return out
}

// prose is a document's lines outside of its blocks of code, by their numbers.
func prose(document string) map[int]string {
	out := map[int]string{}
	code := false
	for i, line := range strings.Split(document, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		} else if !code {
			out[i+1] = line
		}
	}
	return out
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	scheme  = regexp.MustCompile(`^[a-z]+:`)
	heading = regexp.MustCompile(`^#+ +(.*)$`)
	target  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchors are the fragments by which GitHub finds a document's headings, in their order.
func anchors(document string) []string {
	var out []string
	lines := prose(document)
	for _, number := range slices.Sorted(maps.Keys(lines)) {
		line := lines[number]
		if found := heading.FindStringSubmatch(line); found != nil {
			text := strings.ToLower(strings.TrimSpace(target.ReplaceAllString(found[1], "$1")))
			out = append(out, strings.ReplaceAll(dropped.ReplaceAllString(text, ""), " ", "-"))
		}
	}
	return out
}

func TestLinks(t *testing.T) {
	documents := files(t, "*.md")
	for path, content := range documents {
		for number, line := range prose(content) {
			for _, found := range link.FindAllStringSubmatch(line, -1) {
				if scheme.MatchString(found[1]) {
					continue
				}
				file, fragment, _ := strings.Cut(found[1], "#")
				to := path
				if file != "" {
					to = filepath.Join(filepath.Dir(path), file)
				}
				if _, err := os.Stat(filepath.Join(checkout, to)); err != nil {
					t.Errorf("%s:%d: link to %s: %v", path, number, found[1], err)
				} else if fragment != "" && !slices.Contains(anchors(documents[to]), fragment) {
					t.Errorf("%s:%d: link to %s: no such heading", path, number, found[1])
				}
			}
		}
	}
}

// mention is how comments and messages name a document.
var mention = regexp.MustCompile(`\bdocs/[\w/-]+\.md\b`)

func TestMentionedDocuments(t *testing.T) {
	for _, pattern := range []string{"*.go", "*.sh", "*.yaml", "Makefile"} {
		for path, content := range files(t, pattern) {
			for _, document := range mention.FindAllString(content, -1) {
				if _, err := os.Stat(filepath.Join(checkout, document)); err != nil {
					t.Errorf("%s names %s: %v", path, document, err)
				}
			}
		}
	}
}

func TestWidth(t *testing.T) {
	documents := files(t, "*.md")
	for path, content := range documents {
		for number, line := range prose(content) {
			if n := len([]rune(line)); n >= 120 && !strings.HasPrefix(line, "|") {
				t.Errorf("%s:%d has %d columns, of 119 at most outside of tables", path, number, n)
			}
		}
	}
	if n := strings.Count(documents["README.md"], "\n"); n >= 150 {
		t.Errorf("README.md has %d lines, of 149 at most", n)
	}
}

// foreign are parts of messages that are not of this driver, or are put together of
// several of its texts.
var foreign = []string{
	"waiting for resource claim", "CEL runtime error", "resource pool", "is currently", "Insufficient nvidia.com/gpu",
	`cannot get resource "resourceclaims"`, "is not registered", "is not allowed to use ResourceClaim",
	"endpoint not found in cache for a registered resource: nvidia.com/gpu",
	"must have at most 256 items", "exclude: NODES", "its share could not be limited by mps", "no-gpu-has-3GiB-to-run",
}

// Each message by which a user finds a row of docs/troubleshooting.md is one that the
// programs, their tests or the policies have, as far as it is not left out by "…".
func TestQuotedMessages(t *testing.T) {
	var texts strings.Builder
	for _, pattern := range []string{"*.go", "*.yaml"} {
		for path, content := range files(t, pattern) {
			if !strings.HasPrefix(path, "tests/") {
				texts.WriteString(content)
			}
		}
	}
	// A text that goes on in the next line of the source is one text.
	joined := regexp.MustCompile("\" \\+\\s*\"|` \\+\\s*`").ReplaceAllString(texts.String(), "")
	source := strings.ReplaceAll(strings.Join(strings.Fields(joined), " "), `\"`, `"`)
	code := regexp.MustCompile("`([^`]+)`")
	quoted := 0
	for number, line := range prose(files(t, "troubleshooting.md")["docs/troubleshooting.md"]) {
		if !strings.HasPrefix(line, "| `") || strings.HasPrefix(line, "| `GPU") {
			continue
		}
		for _, message := range code.FindAllStringSubmatch(strings.Split(line, "|")[1], -1) {
			for part := range strings.SplitSeq(message[1], "…") {
				part = strings.Trim(part, " :;,.")
				if len(part) < 4 || slices.Contains(foreign, part) {
					continue
				}
				quoted++
				if !strings.Contains(source, part) {
					t.Errorf("docs/troubleshooting.md:%d quotes %q, which no program says", number, part)
				}
			}
		}
	}
	if quoted < 20 {
		t.Errorf("only %d messages are quoted: the tables of docs/troubleshooting.md are not found", quoted)
	}
}

// Each fault of docs/reliability.md is one of docs/internals/reliability.md, in the same order, which
// names tests that show what becomes of it. All of these are there.
func TestReliabilityIsShownByTests(t *testing.T) {
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	there := map[string]bool{}
	for _, content := range files(t, "*_test.go") {
		for _, found := range function.FindAllStringSubmatch(content, -1) {
			there[found[1]] = true
		}
	}
	const evidence = "docs/internals/reliability.md"
	pages := files(t, "reliability.md")
	name := regexp.MustCompile("`(Test\\w+)")
	shown := rows(pages[evidence])
	for _, cells := range shown {
		named := name.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(named) == 0 {
			t.Errorf("%s names no test for %q", evidence, cells[0])
		}
		for _, found := range named {
			if !there[found[1]] {
				t.Errorf("%s names %s for %q, which is no test", evidence, found[1], cells[0])
			}
		}
	}
	first := func(rows [][]string) (out []string) {
		for _, cells := range rows {
			out = append(out, cells[0])
		}
		return out
	}
	faults := first(rows(pages["docs/reliability.md"]))
	if diff := expect.Diff(faults, first(shown)); diff != nil || len(faults) < 15 {
		t.Errorf("the faults of docs/reliability.md are wanted in %s %v", evidence, diff)
	}
}

// rows are the cells of a document's tables, without their heads.
func rows(document string) [][]string {
	var out [][]string
	lines := prose(document)
	for _, number := range slices.Sorted(maps.Keys(lines)) {
		line := lines[number]
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(lines[number+1], "|---") {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		out = append(out, cells)
	}
	return out
}

// No node has an image of localhost but those of `make cluster`: a page that has such a manifest applied says where it
// runs, one that leads to it that it takes the reader's image.
func TestManifestsOfPagesRunOnAnyCluster(t *testing.T) {
	manifest := regexp.MustCompile(`demo/[\w/-]+\.yaml`)
	local, own := regexp.MustCompile("`make cluster`"), regexp.MustCompile(`your (own )?images?\b`)
	manifests := files(t, "*.yaml")
	for path, content := range files(t, "*.md") {
		if translation(path) == "" {
			continue
		}
		for _, part := range parts(content) {
			for line := range strings.Lines(part) {
				for _, name := range manifest.FindAllString(line, -1) {
					applied := strings.Contains(line, " apply ")
					if strings.Contains(manifests[name], "image: localhost/") && !local.MatchString(part) &&
						(applied || !own.MatchString(part)) {
						t.Errorf("%s names %s, whose image only nodes of `make cluster` have: %s", path, name, line)
					}
				}
			}
		}
	}
}

// parts are a document's parts from one heading to the next.
func parts(document string) []string {
	out := []string{""}
	lines := prose(document)
	for i, line := range strings.Split(document, "\n") {
		if heading.MatchString(lines[i+1]) {
			out = append(out, "")
		}
		out[len(out)-1] += line + "\n"
	}
	return out
}
