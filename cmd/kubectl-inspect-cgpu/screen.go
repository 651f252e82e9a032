// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
)

// What a terminal is told.
const (
	// enter has it show a screen of its own, without a cursor and without breaking lines that are
	// too long; leave ends that, and the terminal shows what it showed before.
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	// clearAll forgets the screen, clearLine the rest of a line, clearBelow that of the screen.
	clearAll   = "\x1b[2J"
	clearLine  = "\x1b[K"
	clearBelow = "\x1b[J"
)

// screen shows one text after the other in a terminal, and writes only the lines that differ:
// what stays does not flicker.
type screen struct {
	out io.Writer
	// size is how many columns and rows there are; zero where that is not known.
	size          func() (columns, rows int)
	columns, rows int
	entered       bool
	shown         []string
}

// draw shows a text.
func (s *screen) draw(text string) error {
	var changes strings.Builder
	if !s.entered {
		s.entered = true
		changes.WriteString(enter)
	}
	columns, rows := s.size()
	if columns != s.columns || rows != s.rows {
		s.columns, s.rows, s.shown = columns, rows, nil
		changes.WriteString(clearAll)
	}
	lines := onRows(strings.Split(strings.TrimSuffix(text, "\n"), "\n"), rows)
	for i, line := range lines {
		if i >= len(s.shown) || s.shown[i] != line {
			fmt.Fprintf(&changes, "\x1b[%d;1H%s%s", i+1, line, clearLine)
		}
	}
	if len(s.shown) > len(lines) {
		fmt.Fprintf(&changes, "\x1b[%d;1H%s", len(lines)+1, clearBelow)
	}
	s.shown = lines
	return s.write(changes.String())
}

// forget has the next text be drawn as if it were the first: something else may be on the screen.
func (s *screen) forget() { s.entered, s.shown = false, nil }

// end gives the terminal back.
func (s *screen) end() error {
	if !s.entered {
		return nil
	}
	s.forget()
	return s.write(leave)
}

func (s *screen) write(text string) error {
	if _, err := io.WriteString(s.out, text); err != nil {
		return fmt.Errorf("draw the table: %w", err)
	}
	return nil
}

// onRows leaves out what has no room on so many rows, and says so.
func onRows(lines []string, rows int) []string {
	if rows <= 0 || len(lines) <= rows {
		return lines
	}
	kept := lines[: rows-1 : rows-1]
	return append(kept, fmt.Sprintf("… and %d lines more: a larger terminal shows them, the name of a node fewer",
		len(lines)-len(kept)))
}
