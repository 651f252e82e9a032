// SPDX-License-Identifier: Apache-2.0

// Package terminal lets tests run programs in a pseudo terminal, see what one would show of what
// they write, and draw that as a picture.
package terminal

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Cell is a character, and how it is shown.
type Cell struct {
	Rune rune
	Style
}

// Style is how characters are shown.
type Style struct {
	Bold bool
	// Color is 1 (red) to 7 (white), as terminals number them, and 0 for that of other text.
	Color int
}

// Screen shows what is written to it as a terminal does, as far as programs of this driver ask
// for; anything else is an error. It is safe for concurrent use.
type Screen struct {
	mu            sync.Mutex
	columns, rows int
	// rest is the beginning of a character or sequence that has not been written wholly.
	rest  []byte
	style Style
	// wraps says that what has no room on a line goes on in the next.
	wraps bool
	// own is the screen that a program has for itself, if it has one, and history what it wrote
	// outside of that.
	own     *grid
	history grid
	// changed is closed when something has been written.
	changed chan struct{}
}

// grid is lines of text, and where the next character goes.
type grid struct {
	lines    [][]Cell
	row, col int
}

// NewScreen is an empty screen.
func NewScreen(columns, rows int) *Screen {
	return &Screen{columns: columns, rows: rows, wraps: true, history: grid{lines: make([][]Cell, 1)},
		changed: make(chan struct{})}
}

// Resize gives it another size. What is shown stays: a program is expected to draw it again.
func (s *Screen) Resize(columns, rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.columns, s.rows = columns, rows
	if s.own != nil {
		s.own.lines = append(s.own.lines, make([][]Cell, max(0, rows-len(s.own.lines)))...)[:rows]
	}
}

// HasProgram reports whether a program has the screen for itself.
func (s *Screen) HasProgram() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own != nil
}

// Lines are those that are shown, with those that would have scrolled away.
func (s *Screen) Lines() [][]Cell {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines()
}

func (s *Screen) lines() [][]Cell {
	g := s.shown()
	last := len(g.lines)
	for last > 0 && len(g.lines[last-1]) == 0 {
		last--
	}
	lines := make([][]Cell, last)
	for i := range lines {
		lines[i] = append([]Cell{}, g.lines[i]...)
	}
	return lines
}

// Text is what Lines are without colours.
func (s *Screen) Text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text()
}

func (s *Screen) text() string {
	var text strings.Builder
	for i, line := range s.lines() {
		if i > 0 {
			text.WriteByte('\n')
		}
		for _, cell := range line {
			text.WriteRune(cell.Rune)
		}
	}
	return text.String()
}

// WaitFor waits until the screen shows what a condition says; program is whether a program has it
// for itself.
func (s *Screen) WaitFor(ctx context.Context, condition func(text string, program bool) bool) error {
	for {
		s.mu.Lock()
		text, program, changed := s.text(), s.own != nil, s.changed
		s.mu.Unlock()
		if condition(text, program) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w; the terminal shows\n%s", context.Cause(ctx), text)
		}
	}
}

func (s *Screen) shown() *grid {
	if s.own != nil {
		return s.own
	}
	return &s.history
}

var (
	sequence = regexp.MustCompile(`^\x1b\[(\??[0-9;]*)([A-Za-z])`)
	// begun is a sequence without its end.
	begun = regexp.MustCompile(`^\x1b(\[\??[0-9;]*)?$`)
)

// Write shows what a program writes.
func (s *Screen) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := append(s.rest, data...)
	for len(rest) > 0 {
		taken, err := s.take(rest)
		if err != nil {
			return 0, err
		}
		if taken == 0 {
			break
		}
		rest = rest[taken:]
	}
	s.rest = bytes.Clone(rest)
	close(s.changed)
	s.changed = make(chan struct{})
	return len(data), nil
}

// take shows the first character, or obeys the first sequence, and returns how long it is: 0
// where it has not been written wholly.
func (s *Screen) take(text []byte) (int, error) {
	if found := sequence.FindSubmatch(text); found != nil {
		return len(found[0]), s.obey(string(found[1]), string(found[2]))
	}
	if begun.Match(text) || !utf8.FullRune(text) {
		return 0, nil
	}
	r, size := utf8.DecodeRune(text)
	switch {
	case r == '\r':
		s.shown().col = 0
	case r == '\n' && s.own == nil:
		s.newLine()
	case r < ' ' || r == utf8.RuneError && size == 1:
		return 0, fmt.Errorf("a terminal is written %q", text[:min(len(text), 20)])
	default:
		s.put(r)
	}
	return size, nil
}

func (s *Screen) newLine() {
	g := s.shown()
	g.row, g.col = g.row+1, 0
	if g.row == len(g.lines) {
		g.lines = append(g.lines, nil)
	}
}

// put shows a character. On a line that is full the next one has it, or the last column.
func (s *Screen) put(r rune) {
	g := s.shown()
	if g.col >= s.columns {
		if s.wraps && s.own == nil {
			s.newLine()
		} else {
			g.col = s.columns - 1
		}
	}
	line := g.lines[g.row]
	for len(line) <= g.col {
		line = append(line, Cell{Rune: ' '})
	}
	line[g.col] = Cell{r, s.style}
	g.lines[g.row] = line
	g.col++
}

// obey does what a sequence asks for.
func (s *Screen) obey(arguments, command string) error {
	switch arguments + command {
	case "?1049h":
		s.own = &grid{lines: make([][]Cell, s.rows)}
		return nil
	case "?1049l":
		s.own = nil
		return nil
	case "?7h", "?7l":
		s.wraps = command == "h"
		return nil
	case "?25h", "?25l": // whether there is a cursor
		return nil
	}
	switch {
	case command == "m":
		return s.restyle(arguments)
	case s.own == nil:
		return fmt.Errorf("a terminal is told %q %q outside of a program's own screen", arguments, command)
	case command == "H":
		return s.own.move(arguments)
	case arguments+command == "2J":
		s.own.lines = make([][]Cell, s.rows)
	case arguments+command == "K":
		s.own.clear(s.own.row)
	case arguments+command == "J":
		s.own.clear(s.own.row)
		clear(s.own.lines[s.own.row+1:])
	default:
		return fmt.Errorf("a terminal is told %q %q", arguments, command)
	}
	return nil
}

// clear empties a row from the column on.
func (g *grid) clear(row int) { g.lines[row] = g.lines[row][:min(g.col, len(g.lines[row]))] }

// move goes to a row and a column, which count from 1.
func (g *grid) move(arguments string) error {
	if arguments == "" {
		arguments = "1;1"
	}
	first, second, _ := strings.Cut(arguments, ";")
	row, err := strconv.Atoi(first)
	if err != nil || row < 1 || row > len(g.lines) {
		return fmt.Errorf("a terminal of %d rows is told to go to %q", len(g.lines), arguments)
	}
	column, err := strconv.Atoi(second)
	if err != nil || column < 1 {
		return fmt.Errorf("a terminal is told to go to %q", arguments)
	}
	g.row, g.col = row-1, column-1
	return nil
}

// The numbers of styles.
const (
	styleBold  = 1
	firstColor = 30
	lastColor  = 37
)

func (s *Screen) restyle(arguments string) error {
	for argument := range strings.SplitSeq(arguments, ";") {
		number, err := strconv.Atoi(argument)
		switch {
		case argument == "" || number == 0 && err == nil:
			s.style = Style{}
		case err == nil && number == styleBold:
			s.style.Bold = true
		case err == nil && number >= firstColor && number <= lastColor:
			s.style.Color = number - firstColor
		default:
			return fmt.Errorf("a terminal is told the style %q", arguments)
		}
	}
	return nil
}
