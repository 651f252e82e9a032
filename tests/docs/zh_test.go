// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const translations = "docs/zh"

// section is what of a document does not depend on its language.
type section struct {
	// Level is that of its heading.
	Level int
	// Code has its blocks whole, Items how its list items are indented, Rows how many cells
	// each row of its tables has.
	Code  []string
	Items []int
	Rows  []int
	// Links are where it leads to, in alphabetical order: sentences have their own.
	Links []string
}

var (
	item  = regexp.MustCompile(`^( *)(?:-|\d+\.) `)
	fence = regexp.MustCompile("^ *```")
)

// sections reads a document. Links to pages and to their translations are the same.
func sections(path, document string) []section {
	all := []section{{}}
	links := map[string]bool{}
	code := ""
	inCode := false
	for line := range strings.Lines(document) {
		last := &all[len(all)-1]
		switch {
		case fence.MatchString(line):
			if inCode {
				last.Code = append(last.Code, code)
			}
			inCode, code = !inCode, ""
			continue
		case inCode:
			code += line
			continue
		}
		if heading.MatchString(strings.TrimSpace(line)) {
			last.Links = slices.Sorted(maps.Keys(links))
			links = map[string]bool{}
			all = append(all, section{Level: len(line) - len(strings.TrimLeft(line, "#"))})
			last = &all[len(all)-1]
		}
		if found := item.FindStringSubmatch(line); found != nil {
			last.Items = append(last.Items, len(found[1]))
		}
		if strings.HasPrefix(line, "|") {
			last.Rows = append(last.Rows, strings.Count(line, "|"))
		}
		for _, found := range link.FindAllStringSubmatch(line, -1) {
			links[leadsTo(path, found[1])] = true
		}
	}
	all[len(all)-1].Links = slices.Sorted(maps.Keys(links))
	return all
}

// leadsTo is the page that a link leads to, in English. Fragments are in the page's language.
func leadsTo(from, to string) string {
	if scheme.MatchString(to) {
		return to
	}
	file, _, _ := strings.Cut(to, "#")
	if file == "" {
		return original(from)
	}
	return original(filepath.Join(filepath.Dir(from), file))
}

// original is the page that another one is the translation of, or itself.
func original(path string) string {
	name, is := strings.CutPrefix(path, translations+"/")
	switch {
	case !is:
		return path
	case name == "README.md":
		return name
	}
	return filepath.Join("docs", name)
}

// Whoever changes a page changes its translation: headings, lists, tables, commands and links
// are the same. Of the words the test knows nothing.
func TestTranslationsHaveTheSameStructure(t *testing.T) {
	documents := files(t, "*.md")
	found := 0
	for path, content := range documents {
		if !strings.HasPrefix(path, translations+"/") {
			continue
		}
		found++
		of := original(path)
		english, is := documents[of]
		if !is {
			t.Errorf("%s is the translation of %s, which there is not", path, of)
			continue
		}
		if diff := cmp.Diff(sections(of, english), sections(path, content)); diff != "" {
			t.Errorf("%s has not the structure of %s (-English +translation):\n%s", path, of, diff)
		}
	}
	if found == 0 {
		t.Errorf("there is no page below %s", translations)
	}
}
