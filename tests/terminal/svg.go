// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// How large a picture is, in pixels.
const (
	cellWidth  = 8
	cellHeight = 18
	margin     = 16
	// baseline is where letters stand on a line, and a bar takes of it what barTop leaves.
	baseline = 13
	barTop   = 3
	barLeft  = 11
)

// What bars are drawn with.
const (
	fullBlock  = '█'
	lightShade = '░'
)

// style has the colours of a picture, for light and for dark surroundings.
const style = `text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1f2328}
.b{font-weight:bold}.screen{fill:#fff;stroke:#d0d7de}.free{fill:#d8dee4}
.c1{fill:#cf222e}.c2{fill:#1a7f37}.c3{fill:#9a6700}.c4{fill:#0969da}.c5{fill:#8250df}.c6{fill:#1b7c83}.c7{fill:#6e7781}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.screen{fill:#0d1117;stroke:#30363d}.free{fill:#30363d}
.c1{fill:#ff7b72}.c2{fill:#3fb950}.c3{fill:#d29922}.c4{fill:#58a6ff}.c5{fill:#bc8cff}.c6{fill:#39c5cf}.c7{fill:#b1bac4}}
`

// SVG draws lines as a picture of a terminal with so many columns. The title is for who does not
// see it.
func SVG(out io.Writer, title string, lines [][]Cell, columns int) error {
	var picture bytes.Buffer
	width, height := columns*cellWidth+2*margin, len(lines)*cellHeight+2*margin
	fmt.Fprintf(&picture, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+
		"\n<title>%s</title>\n<style>\n%s</style>\n", width, height, width, height, escaped(title), style)
	fmt.Fprintf(&picture, `<rect class="screen" x="0.5" y="0.5" width="%d" height="%d" rx="6"/>`+"\n", width-1, height-1)
	for i, line := range lines {
		for start, end := 0, 0; start < len(line); start = end {
			end = start + run(line[start:])
			draw(&picture, margin+start*cellWidth, margin+i*cellHeight, line[start:end])
		}
	}
	picture.WriteString("</svg>\n")
	if _, err := out.Write(picture.Bytes()); err != nil {
		return fmt.Errorf("write the picture: %w", err)
	}
	return nil
}

// run is how many characters from the first on are drawn as one: of one style, of one kind, and
// of words with single spaces between them.
func run(line []Cell) int {
	kind := kindOf(line[0])
	for i, cell := range line {
		between := cell.Rune == ' ' && kind == word && i+1 < len(line) && kindOf(line[i+1]) == word
		if cell.Style != line[0].Style || kindOf(cell) != kind && !between {
			return i
		}
	}
	return len(line)
}

// kind is what is drawn in one way.
type kind int

const (
	word kind = iota
	space
	full
	free
)

func kindOf(cell Cell) kind {
	switch cell.Rune {
	case ' ':
		return space
	case fullBlock:
		return full
	case lightShade:
		return free
	}
	return word
}

// draw draws what run has found. Bars are rectangles, and words are as long as their cells: fonts
// differ.
func draw(out *bytes.Buffer, x, y int, cells []Cell) {
	width := len(cells) * cellWidth
	bar := func(class string) {
		fmt.Fprintf(out, `<rect%s x="%d" y="%d" width="%d" height="%d"/>`+"\n", class, x, y+barTop, width, barLeft)
	}
	switch kindOf(cells[0]) {
	case word:
		var text strings.Builder
		for _, cell := range cells {
			text.WriteRune(cell.Rune)
		}
		fmt.Fprintf(out, `<text%s x="%d" y="%d" textLength="%d">%s</text>`+"\n", class(cells[0].Style), x, y+baseline, width,
			escaped(text.String()))
	case full:
		bar(class(cells[0].Style))
	case free:
		bar(` class="free"`)
	case space:
	}
}

func class(s Style) string {
	var names []string
	if s.Bold {
		names = append(names, "b")
	}
	if s.Color > 0 {
		names = append(names, fmt.Sprintf("c%d", s.Color))
	}
	if names == nil {
		return ""
	}
	return ` class="` + strings.Join(names, " ") + `"`
}

func escaped(text string) string {
	var out bytes.Buffer
	// A buffer takes everything.
	_ = xml.EscapeText(&out, []byte(text))
	return out.String()
}
