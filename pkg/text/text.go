// SPDX-License-Identifier: Apache-2.0

// Package text bounds what is said in Events, errors and logs of what others wrote.
package text

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// mostQuoted is how much of a value Quote shows, in bytes.
const mostQuoted = 64

// Quote returns a value in quotation marks, as Go writes it, with control characters
// escaped. Of a long one it is the beginning, and how long the whole is.
func Quote(value string) string {
	if len(value) <= mostQuoted {
		return strconv.Quote(value)
	}
	return fmt.Sprintf("%s… (%d bytes)", strconv.Quote(cut(value, mostQuoted)), len(value))
}

// Bound returns a text of at most so many bytes, on one line: characters that are not
// printed are escaped, and of a long text it is the beginning, with how much is left
// out.
func Bound(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, text)
	if strings.ContainsFunc(text, hidden) || !utf8.ValidString(text) {
		quoted := strconv.Quote(text)
		// Quotation marks and backslashes are printed: they stay as they are.
		text = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1 : len(quoted)-1])
	}
	if len(text) <= most {
		return text
	}
	// The number has fewer digits than the longest that it could have.
	room := most - len(more(len(text)))
	kept := cut(text, max(room, 0))
	return kept + more(len(text)-len(kept))
}

// List returns names with commas between them: of many the first ones, and how many more there are.
func List(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func more(left int) string { return fmt.Sprintf("… (%d bytes more)", left) }

func hidden(r rune) bool { return !unicode.IsPrint(r) }

// cut returns the beginning of a text, of at most so many bytes, without a part of a
// character at its end.
func cut(text string, most int) string {
	for most > 0 && most < len(text) && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:min(most, len(text))]
}
