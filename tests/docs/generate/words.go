// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
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

// linked makes links of the pages that a text mentions. On the page itself they are called as
// what they lead to is headed, elsewhere as the page.
func linked(text, path, page string) string {
	return mention.ReplaceAllStringFunc(text, func(found string) string {
		to := mention.FindStringSubmatch(found)
		if to[1] == "" {
			return found
		}
		if "docs/"+to[1] == path && to[2] != "" {
			return "[" + headed(page, to[2][1:]) + "](" + to[2] + ")"
		}
		return "[" + to[1] + "](" + to[1] + to[2] + ")"
	})
}

// headed is the heading that a fragment leads to. Of one that leads nowhere the tests of links
// tell.
func headed(page, fragment string) string {
	for _, found := range heading.FindAllStringSubmatch(page, -1) {
		text := strings.ToLower(strings.TrimSpace(found[1]))
		if strings.ReplaceAll(dropped.ReplaceAllString(text, ""), " ", "-") == fragment {
			return strings.TrimSpace(found[1])
		}
	}
	return "below"
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
