// SPDX-License-Identifier: Apache-2.0

package text

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestQuote(t *testing.T) {
	for value, want := range map[string]string{
		"":                       `""`,
		"3":                      `"3"`,
		"a\nb\x1b[2J\x00":        `"a\nb\x1b[2J\x00"`,
		strings.Repeat("x", 64):  `"` + strings.Repeat("x", 64) + `"`,
		strings.Repeat("x", 250): `"` + strings.Repeat("x", 64) + `"… (250 bytes)`,
		// The character at the end would be cut in two.
		strings.Repeat("x", 63) + "€": `"` + strings.Repeat("x", 63) + `"… (66 bytes)`,
	} {
		expect.Equal(t, want, Quote(value), "%q", value)
	}
}

func TestBound(t *testing.T) {
	for _, test := range []struct {
		text string
		most int
		want string
	}{
		{"", 10, ""},
		{"a text", 6, "a text"},
		{"two\nlines\tof it", 100, "two lines of it"},
		{`says "x\y"`, 100, `says "x\y"`},
		{"\x1b[31mred", 100, `\x1b[31mred`},
		{strings.Repeat("x", 1000), 30, strings.Repeat("x", 9) + "… (991 bytes more)"},
		{strings.Repeat("€", 1000), 40, strings.Repeat("€", 6) + "… (2982 bytes more)"},
	} {
		expect.Equal(t, test.want, Bound(test.text, test.most), "%q within %d", test.text, test.most)
	}
}

func TestList(t *testing.T) {
	for want, names := range map[string][]string{
		"": nil, "a": {"a"}, "a, b": {"a", "b"}, "a, b and 1 more": {"a", "b", "c"}, "a, b and 2 more": {"a", "b", "c", "d"},
	} {
		expect.Equal(t, want, List(names, 2), "%q", names)
	}
}

func FuzzBound(f *testing.F) {
	for _, text := range []string{"", "a\x00b", "€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€", strings.Repeat("\x1b", 100)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const most = 64
		got := Bound(text, most)
		if len(got) > most || !utf8.ValidString(got) || strings.ContainsFunc(got, hidden) {
			t.Errorf("%q: %q", text, got)
		}
	})
}

// What others wrote neither moves the cursor, nor changes a title, nor writes backwards.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"gpu-0 █░ 8 GiB\n\tzwei – 二\n":    "gpu-0 █░ 8 GiB\n\tzwei – 二\n",
		"\x1b[2J\x1b]0;title\a":           `\u001b[2J\u001b]0;title\u0007`,
		"one\rtwo\bx\x7f":                 `one\u000dtwo\u0008x\u007f`,
		"\u009b2J of C1, \u202egnp.exe":   `\u009b2J of C1, \u202egnp.exe`,
		"no character: \x9b2J\xff":        `no character: \x9b2J\xff`,
		`{"says": "\u001b[2J"}` + "\n":    `{"says": "\u001b[2J"}` + "\n",
		"a replacement character: \ufffd": "a replacement character: \ufffd",
	} {
		expect.Equal(t, want, Printable(text), "%q", text)
		var out strings.Builder
		if n, err := (Writer{&out}).Write([]byte(text)); n != len(text) || err != nil || out.String() != want {
			t.Errorf("%q: wrote %d bytes, %v: %q, want %q", text, n, err, &out, want)
		}
	}
}

func TestYAML(t *testing.T) {
	for text, want := range map[string]string{
		"plain":             "says: plain\n",
		"\x1b[2J\u009b\x7f": `says: "\e[2J\x9B\x7F"` + "\n",
		"\u202e":            `says: \u202e` + "\n",
	} {
		got, err := YAML(map[string]string{"says": text})
		if err != nil || string(got) != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}
