// SPDX-License-Identifier: Apache-2.0

// Package text bounds what is said in Events, errors and logs of what others wrote, and keeps
// it from acting on the terminal that shows it.
package text

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
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

// Printable returns a text, of one line or more, in which nothing is left that a terminal acts
// on: control characters but for the ends of lines and tabs, what changes the direction of
// writing, and bytes that are no characters are escaped. In JSON it escapes as JSON does.
func Printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, acts) {
		return text
	}
	var out strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, text[0])
		case acts(r):
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
		text = text[size:]
	}
	return out.String()
}

func acts(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}

// JSON writes an object as JSON, indented.
func JSON(out io.Writer, object any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(object)
}

// YAML is an object in YAML that is Printable. The library takes no control characters but
// those that JSON has escaped.
func YAML(object any) ([]byte, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	data, err = yaml.JSONToYAML([]byte(Printable(string(data))))
	return []byte(Printable(string(data))), err
}

// Writer writes what is Printable of each text that is written.
type Writer struct{ Out io.Writer }

func (w Writer) Write(text []byte) (int, error) {
	if _, err := io.WriteString(w.Out, Printable(string(text))); err != nil {
		return 0, err
	}
	return len(text), nil
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
