// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

var (
	mention = regexp.MustCompile("`[^`]*`" + `|docs/([\w/-]+\.md)(#[\w-]+)?`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
	// literal is what stands in a text as it would be typed: variables, paths, flags, labels
	// and files.
	literal = regexp.MustCompile("`[^`]*`" + `|docs/[\w/-]+\.md(?:#[\w-]+)?|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\*?|` +
		`(?:--|/)[a-z][\w/.-]*[\w*]|\b[\w.]+/[\w./-]*[\w*]|\b[\w-]+\.so\b(?:\.\d+)*|\bstatus\.devices\b`)
)

// documents are the pages, by their paths in the checkout.
type documents map[string]string

// linked makes links of the pages that a text mentions, for one of the pages: a page in Chinese
// leads to those in Chinese. On the page itself they are called as what they lead to is headed,
// elsewhere as the page. Of what leads nowhere the tests of links tell.
func (all documents) linked(text, from string) string {
	return mention.ReplaceAllStringFunc(text, func(found string) string {
		to := mention.FindStringSubmatch(found)
		if to[1] == "" {
			return found
		}
		file, fragment := "docs/"+to[1], to[2]
		at := slices.IndexFunc(headings(all[file]), func(text string) bool { return "#"+anchor(text) == fragment })
		if there := path.Join(translations, to[1]); path.Dir(from) == translations && all[there] != "" {
			file = there
		}
		headed := "below"
		if there := headings(all[file]); at >= 0 && at < len(there) {
			headed, fragment = there[at], "#"+anchor(there[at])
		}
		if file == from && fragment != "" {
			return "[" + headed + "](" + fragment + ")"
		}
		relative, err := filepath.Rel(path.Dir(from), file)
		if err != nil {
			relative = file
		}
		return "[" + to[1] + "](" + relative + fragment + ")"
	})
}

// headings are those of a page, in its order, which both languages share.
func headings(page string) []string {
	var out []string
	for _, found := range heading.FindAllStringSubmatch(page, -1) {
		out = append(out, strings.TrimSpace(found[1]))
	}
	return out
}

// anchor is the fragment that leads to a heading, as GitHub makes it.
func anchor(heading string) string {
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// plain is a text without marks, as a flag's usage, as it stands in a table: what would be
// typed is code.
func plain(text string) string {
	return literal.ReplaceAllStringFunc(upper(text), func(found string) string {
		if strings.HasPrefix(found, "docs/") || found[0] == '`' {
			return found
		}
		return code(found)
	})
}

// upper begins a text as a sentence begins, unless its first word is a name.
func upper(text string) string {
	first, _, _ := strings.Cut(text, " ")
	if strings.ContainsAny(first, "-./_") && !strings.HasPrefix(first, "comma-") ||
		strings.ContainsFunc(first, unicode.IsUpper) || strings.ContainsAny(first, ":`") {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// code is a text as it would be typed, or nothing.
func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}
