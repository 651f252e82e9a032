// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const translations = "docs/zh"

// section is what of a part of a document does not depend on its language.
type section struct {
	Heading string
	Blocks  []block
	// Links are where it leads to, in alphabetical order: sentences have their own.
	Links []string
}

// block is a heading, a paragraph, an item of a list, a row of a table or a block of code.
type block struct {
	// Kind says which of them, with its level or how far it is indented.
	Kind string
	// Marks are the code spans and numbers of each cell, in alphabetical order, or the block of code.
	Marks []string
}

var (
	item   = regexp.MustCompile(`^( *)(?:-|\d+\.) `)
	fence  = regexp.MustCompile("^ *```")
	span   = regexp.MustCompile("`[^`]+`")
	number = regexp.MustCompile(`\d+(?:[.-]\d+)*`)
)

// marks are what a translation takes over as it stands.
func marks(text string) []string {
	text = strings.Join(strings.Fields(item.ReplaceAllString(text, "")), " ")
	found := span.FindAllString(text, -1)
	text = span.ReplaceAllString(link.ReplaceAllString(text, "]"), "")
	found = append(found, number.FindAllString(text, -1)...)
	slices.Sort(found)
	return found
}

// texts are the blocks of a document, as they stand in it.
func texts(document string) []string {
	var out []string
	inCode, ended := false, true
	for line := range strings.Lines(document) {
		isFence := fence.MatchString(line)
		alone := heading.MatchString(strings.TrimRight(line, "\n")) || line[0] == '|'
		switch {
		case inCode:
			out[len(out)-1] += line
			inCode, ended = !isFence, isFence
		case strings.TrimSpace(line) == "", strings.HasPrefix(strings.TrimSpace(line), "<!--"):
			ended = true
		case ended, isFence, alone, item.MatchString(line):
			out = append(out, line)
			inCode, ended = isFence, alone
		default:
			out[len(out)-1] += line
		}
	}
	return out
}

// pages are the documents of the checkout, and the anchors of each in their order.
type pages struct {
	documents map[string]string
	anchors   map[string][]string
}

func readPages(t *testing.T) pages {
	out := pages{files(t, "*.md"), map[string][]string{}}
	for name, content := range out.documents {
		out.anchors[name] = anchors(content)
	}
	return out
}

// sections reads a page.
func (p pages) sections(name string) []section {
	all := []section{{}}
	links := map[string]bool{}
	for _, text := range texts(p.documents[name]) {
		last := &all[len(all)-1]
		indent := len(text) - len(strings.TrimLeft(text, " "))
		found := block{Kind: fmt.Sprintf("paragraph, indented by %d", indent), Marks: marks(text)}
		switch {
		case fence.MatchString(text):
			last.Blocks = append(last.Blocks, block{"code", []string{text}})
			continue
		case heading.MatchString(strings.TrimSpace(text)):
			last.Links = slices.Sorted(maps.Keys(links))
			links = map[string]bool{}
			all = append(all, section{Heading: strings.TrimSpace(text)})
			last = &all[len(all)-1]
			found.Kind = fmt.Sprintf("heading of level %d", strings.Index(text, " "))
		case text[0] == '|':
			found = block{Kind: "row"}
			for cell := range strings.SplitSeq(strings.ReplaceAll(strings.TrimSpace(text), `\|`, "¦"), "|") {
				found.Marks = append(found.Marks, strings.Join(marks(cell), " "))
			}
		case item.MatchString(text):
			found.Kind = fmt.Sprintf("list item, indented by %d", indent)
		}
		last.Blocks = append(last.Blocks, found)
		for _, to := range link.FindAllStringSubmatch(text, -1) {
			links[p.leadsTo(name, to[1])] = true
		}
	}
	all[len(all)-1].Links = slices.Sorted(maps.Keys(links))
	return all
}

// leadsTo is the page that a link leads to, in English, and which of its headings.
func (p pages) leadsTo(from, to string) string {
	if scheme.MatchString(to) {
		return to
	}
	_, fragment, _ := strings.Cut(to, "#")
	file := linked(from, to)
	if fragment == "" {
		return original(file)
	}
	return fmt.Sprintf("%s, heading %d", original(file), slices.Index(p.anchors[file], fragment))
}

// linked is the file that a link of a page leads to.
func linked(from, to string) string {
	file, _, _ := strings.Cut(to, "#")
	if file == "" {
		return from
	}
	return path.Join(path.Dir(from), file)
}

// original is the page that another one is the translation of, or itself.
func original(name string) string {
	rest, is := strings.CutPrefix(name, translations+"/")
	switch {
	case !is:
		return name
	case rest == "README.md":
		return rest
	}
	return path.Join("docs", rest)
}

// translation is where the translation of a page for users is to be, "" of other documents.
func translation(name string) string {
	if name == "README.md" || path.Dir(name) == "docs" {
		return path.Join(translations, path.Base(name))
	}
	return ""
}

// Each page for users is there in Chinese, too.
func TestPagesAreTranslated(t *testing.T) {
	documents := files(t, "*.md")
	for name := range documents {
		if strings.HasPrefix(name, translations+"/") {
			if _, is := documents[original(name)]; !is {
				t.Errorf("%s is the translation of %s, which there is not", name, original(name))
			}
			continue
		}
		to := translation(name)
		if _, is := documents[to]; to != "" && !is {
			t.Errorf("%s has no translation: write %s", name, to)
		}
	}
}

// Whoever changes a page changes its translation: headings, paragraphs, lists, tables, commands,
// code, numbers and links are the same. Of the words the test knows nothing.
func TestTranslationsHaveTheSameStructure(t *testing.T) {
	all := readPages(t)
	for name := range all.documents {
		to := translation(name)
		if _, is := all.documents[to]; !is {
			continue
		}
		english, chinese := all.sections(name), all.sections(to)
		for i := range min(len(english), len(chinese)) {
			theirs := chinese[i]
			theirs.Heading = english[i].Heading
			if diff := expect.Diff(english[i], theirs); diff != nil {
				t.Errorf("%[1]s, %[3]q, is not like %[2]s, %[4]q: what you changed in %[1]s, change in %[2]s too, in Chinese.\n"+
					"Code, numbers and links are the same in both, paragraph by paragraph; those of %[1]s are wanted %[5]v",
					name, to, english[i].Heading, chinese[i].Heading, diff)
			}
		}
		if len(english) != len(chinese) {
			t.Errorf("%s has %d headings, %s has %d: what you added or removed in one, add or remove in the other too",
				name, len(english)-1, to, len(chinese)-1)
		}
	}
}

// Both languages lead to each other at the top. A translation leads to other translations.
func TestLinksOfTranslations(t *testing.T) {
	documents := files(t, "*.md")
	for name, english := range documents {
		to := translation(name)
		chinese, is := documents[to]
		if !is {
			continue
		}
		there, _ := filepath.Rel(path.Dir(name), to)
		back, _ := filepath.Rel(path.Dir(to), name)
		if top, _, _ := strings.Cut(english, "\n## "); !strings.Contains(top, "[中文]("+there+")") {
			t.Errorf("%s lacks [中文](%s) at its top", name, there)
		}
		if top, _, _ := strings.Cut(chinese, "\n## "); !strings.Contains(top, "[English]("+back+")") {
			t.Errorf("%s lacks [English](%s) at its top", to, back)
		}
		for line, text := range prose(chinese) {
			for _, found := range link.FindAllStringSubmatch(text, -1) {
				file := linked(to, found[1])
				if _, is := documents[translation(file)]; is && file != name {
					t.Errorf("%s:%d leads to %s, and there is %s", to, line, file, translation(file))
				}
			}
		}
	}
}

// Stars are bold only where Markdown takes them so: not between a Chinese colon and a word.
func TestStarsOfTranslations(t *testing.T) {
	stars := regexp.MustCompile(`\*+`)
	for name, content := range files(t, "*.md") {
		if !strings.HasPrefix(name, translations+"/") {
			continue
		}
		for _, text := range texts(content) {
			if fence.MatchString(text) {
				continue
			}
			open := false
			text = " " + span.ReplaceAllString(text, "``") + " "
			for _, at := range stars.FindAllStringIndex(text, -1) {
				before, _ := utf8.DecodeLastRuneInString(text[:at[0]])
				after, _ := utf8.DecodeRuneInString(text[at[1]:])
				if open {
					before, after = after, before
				}
				if unicode.IsSpace(after) || isPunct(after) && !unicode.IsSpace(before) && !isPunct(before) {
					t.Errorf("%s: the stars before %.60q are shown as stars", name, text[at[1]:])
				}
				open = !open
			}
			if open {
				t.Errorf("%s: a star too many in %.60q", name, text)
			}
		}
	}
}

func isPunct(r rune) bool { return unicode.IsPunct(r) || unicode.IsSymbol(r) }
