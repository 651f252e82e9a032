// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"strings"
	"testing"
)

// What is shown does not depend on where writes end.
func TestScreenShows(t *testing.T) {
	for name, test := range map[string]struct{ written, want string }{
		"lines":                     {"one\ntwo\r\n", "one\ntwo"},
		"a long line":               {"123456789012\nx", "1234567890\n12\nx"},
		"a full line":               {"1234567890\nx", "1234567890\nx"},
		"over a line":               {"one\rt", "tne"},
		"other characters":          {"3/15 ██░░\n", "3/15 ██░░"},
		"colours":                   {"\x1b[1mNAME\x1b[0m x\n", "NAME x"},
		"its own screen":            {"before\x1b[?1049h\x1b[2;1Htwo", "\ntwo"},
		"its own screen, left":      {"before\x1b[?1049h\x1b[2;1Htwo\x1b[?1049l\nafter", "before\nafter"},
		"the rest of a line":        {"\x1b[?1049hone\x1b[1;1Ht\x1b[K", "t"},
		"the rest of the screen":    {"\x1b[?1049hone\x1b[2;1Htwo\x1b[3;1Hthree\x1b[2;1H\x1b[J", "one"},
		"everything":                {"\x1b[?1049hone\x1b[2J\x1b[Htwo", "two"},
		"a long line there":         {"\x1b[?1049h\x1b[?7l123456789012", "1234567892"},
		"a line behind what is not": {"\x1b[?1049h\x1b[1;3Hx", "  x"},
	} {
		t.Run(name, func(t *testing.T) {
			for size := 1; size <= len(test.written); size++ {
				s := NewScreen(10, 3)
				for start := 0; start < len(test.written); start += size {
					if _, err := s.Write([]byte(test.written[start:min(start+size, len(test.written))])); err != nil {
						t.Fatal(err)
					}
				}
				if got := s.Text(); got != test.want {
					t.Fatalf("of %d bytes at a time it shows %q, want %q", size, got, test.want)
				}
			}
		})
	}
}

func TestScreenKeepsStyles(t *testing.T) {
	s := NewScreen(10, 3)
	if _, err := s.Write([]byte("a\x1b[1;31mb\x1b[32mc\x1b[md\x1b[36me\x1b[0mf")); err != nil {
		t.Fatal(err)
	}
	want := []Style{{}, {true, 1}, {true, 2}, {}, {false, 6}, {}}
	for i, cell := range s.Lines()[0] {
		if cell.Style != want[i] {
			t.Errorf("%c has the style %+v, want %+v", cell.Rune, cell.Style, want[i])
		}
	}
}

// What it does not know, or what makes no sense, is an error: a picture of it would be wrong.
func TestScreenRefuses(t *testing.T) {
	for _, written := range []string{"\x1b[4m", "\x1b[90m", "\x1b[2;1H", "\x1b[2J", "\x1b[?1049h\x1b[4;1H",
		"\x1b[?1049h\x1b[1;xH", "\x1b[?1049h\n", "\x1b[?1049h\x1b[1J", "\x1b[?2004h", "\x1bM", "\a", "\t", "\xff"} {
		if _, err := NewScreen(10, 3).Write([]byte(written)); err == nil || !strings.Contains(err.Error(), "a terminal") {
			t.Errorf("of %q it says %v", written, err)
		}
	}
}

func TestScreenOfAnotherSize(t *testing.T) {
	s := NewScreen(10, 2)
	if _, err := s.Write([]byte("\x1b[?1049h\x1b[2;1Htwo")); err != nil {
		t.Fatal(err)
	}
	s.Resize(5, 3)
	if _, err := s.Write([]byte("\x1b[3;1Hthree")); err != nil || s.Text() != "\ntwo\nthree" {
		t.Errorf("with a row more it shows %q, %v", s.Text(), err)
	}
	s.Resize(5, 2)
	if got := s.Text(); got != "\ntwo" {
		t.Errorf("with a row less it shows %q", got)
	}
}
