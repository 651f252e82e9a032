// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	terminals "github.com/gpushare/dra-driver-gpushare/tests/harness/terminal"
)

// counted is a terminal that counts the bytes that are written to it.
type counted struct {
	*terminals.Screen
	bytes int
}

func newCounted(columns, rows int) *counted {
	return &counted{Screen: terminals.NewScreen(columns, rows)}
}

func (c *counted) Write(data []byte) (int, error) {
	c.bytes += len(data)
	return c.Screen.Write(data)
}

func TestScreenShowsTheLastTextAndWritesWhatDiffers(t *testing.T) {
	e, rows := newCounted(20, 5), 5
	s := &screen{out: e, size: func() (int, int) { return 20, rows }}
	for _, step := range []struct {
		text, want string
		// most is how many bytes may be written.
		most int
	}{
		{"one\ntwo\nthree\n", "one\ntwo\nthree", 100},
		{"one\ntwo\nthree\n", "one\ntwo\nthree", 0},
		{"one\n2\nthree\n", "one\n2\nthree", 12},
		{"one\n", "one", 12},
		{strings.Repeat("x", 30) + "\nb\n", strings.Repeat("x", 20) + "\nb", 60},
		{"1\n2\n3\n4\n5\n", "1\n2\n3\n4\n5", 80},
		// What has no room is written over the last column.
		{"1\n2\n3\n4\n5\n6\n7\n", "1\n2\n3\n4\n… and 3 lines more:r", 140},
	} {
		before := e.bytes
		expect.NoError(t, s.draw(step.text))
		expect.Equal(t, step.want, e.Text(), "after %q the terminal shows", step.text)
		if wrote := e.bytes - before; wrote > step.most {
			t.Errorf("for %q it wrote %d bytes, at most %d are right", step.text, wrote, step.most)
		}
	}
	rows = 7
	e.Resize(20, rows)
	if err := s.draw("1\n2\n3\n4\n5\n6\n7\n"); err != nil || e.Text() != "1\n2\n3\n4\n5\n6\n7" {
		t.Errorf("when it is larger it shows\n%s\n%v", e.Text(), err)
	}
	if err := s.end(); err != nil || e.HasProgram() {
		t.Errorf("it keeps the terminal, %v", err)
	}
}

// A watch in a terminal changes what has changed, leaves the last table there, and shows what
// the table lacks.
func TestWatchInATerminal(t *testing.T) {
	e := newCounted(80, 24)
	p, _, errOut := printing(t, true)
	p.now = func() time.Time { return time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC) }
	p.screen.out, p.streams.Out = e, e
	for i, want := range []string{"3/15", "3/15", "4/15"} {
		in := oneGPU(int64(i / 2))
		in.Notes = []string{"You may not."}
		expect.NoError(t, p.printAgain(in))
		text := e.Text()
		if !strings.HasPrefix(text, "As of 2026-11-22 10:00:00") || !strings.Contains(text, want) ||
			!strings.HasSuffix(text, "You may not.") {
			t.Errorf("it shows\n%s", text)
		}
	}
	e.Resize(40, 20)
	p.screen.size = func() (int, int) { return 40, 20 }
	if err := p.resized(); err != nil || !strings.Contains(e.Text(), "4/15") {
		t.Errorf("in another size it shows\n%s\n%v", e.Text(), err)
	}
	if err := p.end(); err != nil || e.HasProgram() || !strings.Contains(e.Text(), "4/15") ||
		strings.Contains(e.Text(), "3/15") || errOut.Len() > 0 {
		t.Errorf("it leaves %q, beside it %q, %v", e.Text(), errOut, err)
	}
}

// A real one, as far as the machine has any.
func TestTerminalOf(t *testing.T) {
	user, tty, err := terminals.Open(100, 30)
	if err != nil {
		testneeds.Skipf(t, "open a pseudo terminal: %v", err)
	}
	defer user.Close()
	defer tty.Close()
	for name, test := range map[string]struct {
		environment map[string]string
		columns     int
		colors      bool
	}{
		"as it is":       {nil, 100, true},
		"no colours":     {map[string]string{"NO_COLOR": "1"}, 100, false},
		"a dumb one":     {map[string]string{"TERM": "dumb"}, 100, false},
		"another width":  {map[string]string{"COLUMNS": "60"}, 60, true},
		"a wrong width":  {map[string]string{"COLUMNS": "many"}, 100, true},
		"empty NO_COLOR": {map[string]string{"NO_COLOR": ""}, 100, true},
	} {
		t.Run(name, func(t *testing.T) {
			to := terminalOf(tty, func(key string) string { return test.environment[key] })
			columns, rows := to.size()
			if !to.is || to.colors != test.colors || columns != test.columns || rows != 30 {
				t.Errorf("%+v of %d columns and %d rows", to, columns, rows)
			}
		})
	}
	file, err := os.Create(t.TempDir() + "/file")
	expect.NoError(t, err)
	defer file.Close()
	if to := terminalOf(file, func(string) string { return "" }); to.is {
		t.Error("a file is taken for a terminal")
	}
}
