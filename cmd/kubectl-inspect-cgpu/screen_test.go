// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// emulator is a terminal, as far as a screen uses one: it understands what is written to it.
type emulator struct {
	t       *testing.T
	columns int
	rows    int
	// own is whether a program has a screen of its own, lines what is on it.
	own      bool
	lines    []string
	row, col int
	// written is what is on the screen that is no program's own, bytes how much was written.
	written bytes.Buffer
	bytes   int
}

var sequence = regexp.MustCompile(`^\x1b\[(\??)([0-9;]*)([A-Za-z])`)

func (e *emulator) Write(data []byte) (int, error) {
	e.bytes += len(data)
	for rest := data; len(rest) > 0; {
		if found := sequence.FindSubmatch(rest); found != nil {
			e.obey(string(found[1])+string(found[2]), string(found[3]))
			rest = rest[len(found[0]):]
			continue
		}
		end := bytes.IndexByte(rest[1:], 0x1b) + 1
		if end == 0 {
			end = len(rest)
		}
		if e.own {
			e.put(string(rest[:end]))
		} else {
			e.written.Write(rest[:end])
		}
		rest = rest[end:]
	}
	return len(data), nil
}

func (e *emulator) obey(arguments, command string) {
	switch arguments + command {
	case "?1049h", "?1049l":
		e.own, e.lines, e.row, e.col = command == "h", make([]string, e.rows), 0, 0
	case "?25l", "?25h", "?7l", "?7h":
	case "H":
		e.row, e.col = 0, 0
	case "2J":
		e.lines = make([]string, e.rows)
	case "K":
		e.lines[e.row] = string([]rune(e.lines[e.row])[:e.col])
	case "J":
		e.lines[e.row] = string([]rune(e.lines[e.row])[:e.col])
		for i := e.row + 1; i < e.rows; i++ {
			e.lines[i] = ""
		}
	default:
		row, column, two := strings.Cut(arguments, ";")
		r, err := strconv.Atoi(row)
		if command != "H" || !two || column != "1" || err != nil || r < 1 || r > e.rows {
			e.t.Fatalf("the terminal is told %q %q", arguments, command)
		}
		e.row, e.col = r-1, 0
	}
}

// put writes over what is on a line; what has no room is lost.
func (e *emulator) put(text string) {
	if strings.Contains(text, "\n") {
		e.t.Fatalf("a line is broken: %q", text)
	}
	had, put := []rune(e.lines[e.row]), []rune(text)
	line := append([]rune{}, had[:e.col]...)
	line = append(line, put...)
	if len(had) > len(line) {
		line = append(line, had[len(line):]...)
	}
	e.col += len(put)
	e.lines[e.row] = string(line[:min(len(line), e.columns)])
	e.col = min(e.col, e.columns)
}

func (e *emulator) shows() string { return strings.TrimRight(strings.Join(e.lines, "\n"), "\n") }

func TestScreenShowsTheLastTextAndWritesWhatDiffers(t *testing.T) {
	e := &emulator{t: t, columns: 20, rows: 5}
	s := &screen{out: e, size: func() (int, int) { return e.columns, e.rows }}
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
		{"1\n2\n3\n4\n5\n6\n7\n", "1\n2\n3\n4\n… and 3 lines more: ", 140},
	} {
		before := e.bytes
		if err := s.draw(step.text); err != nil {
			t.Fatal(err)
		}
		if got := e.shows(); got != step.want {
			t.Errorf("after %q the terminal shows\n%s\nwant\n%s", step.text, got, step.want)
		}
		if wrote := e.bytes - before; wrote > step.most {
			t.Errorf("for %q it wrote %d bytes, at most %d are right", step.text, wrote, step.most)
		}
	}
	e.rows = 7
	if err := s.draw("1\n2\n3\n4\n5\n6\n7\n"); err != nil || e.shows() != "1\n2\n3\n4\n5\n6\n7" {
		t.Errorf("when it is larger it shows\n%s\n%v", e.shows(), err)
	}
	if err := s.end(); err != nil || e.own {
		t.Errorf("it keeps the terminal, %v", err)
	}
}

// A watch in a terminal changes what has changed, leaves the last table there, and shows what
// the table lacks.
func TestWatchInATerminal(t *testing.T) {
	e := &emulator{t: t, columns: 80, rows: 24}
	p, _, errOut := printing(t, true)
	p.now = func() time.Time { return time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC) }
	p.screen.out, p.streams.Out = e, e
	for i, want := range []string{"3/15", "3/15", "4/15"} {
		in := oneCard(int64(i / 2))
		in.Notes = []string{"You may not."}
		if err := p.printAgain(in); err != nil {
			t.Fatal(err)
		}
		text := e.shows()
		if !strings.HasPrefix(text, "As of 2026-11-22 10:00:00") || !strings.Contains(text, want) ||
			!strings.HasSuffix(text, "You may not.") {
			t.Errorf("it shows\n%s", text)
		}
	}
	e.columns, e.rows = 40, 20
	p.screen.size = func() (int, int) { return 40, 20 }
	if err := p.resized(); err != nil || !strings.Contains(e.shows(), "4/15") {
		t.Errorf("in another size it shows\n%s\n%v", e.shows(), err)
	}
	if err := p.end(); err != nil || e.own || !strings.Contains(e.written.String(), "4/15") ||
		strings.Contains(e.written.String(), "3/15") || errOut.Len() > 0 {
		t.Errorf("it leaves %q, beside it %q, %v", e.written.String(), errOut, err)
	}
}

// A real one, as far as the machine has any.
func TestTerminalOf(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("open a pseudo terminal: %v", err)
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("open the terminal's other end: %v", err)
	}
	defer tty.Close()
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: 100}); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if to := terminalOf(file, func(string) string { return "" }); to.is {
		t.Error("a file is taken for a terminal")
	}
}
