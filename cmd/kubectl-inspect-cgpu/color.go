// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"unicode/utf8"

	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// What the options --color, --bars and --use may be.
const (
	always = "always"
	never  = "never"
	auto   = "auto"
)

// chosen reports whether an option has something done, which is otherwise what auto comes to.
func chosen(option, value string, otherwise bool) (bool, error) {
	switch value {
	case always, never:
		return value == always, nil
	case auto:
		return otherwise, nil
	}
	return false, fmt.Errorf("--%s %s: not one of always, never, auto", option, value)
}

// Colours add to what the text says, and never say anything alone.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	cyan   = "\x1b[36m"
	plain  = "\x1b[0m"
)

// nearlyFull is the part of a bar from which on it has another colour. A full GPU is what packing aims at, so its
// colour is none of those that warn.
const nearlyFull = 0.9

var (
	bars = regexp.MustCompile(`█+░*`)
	full = regexp.MustCompile(`█+`)
	// headings are the lines above columns, and those above lists.
	headings = regexp.MustCompile(`(?m)^(NAME|NODE) .*$|^What would help:$`)
	levels   = regexp.MustCompile(`(?m)^(ERROR|WARNING|NOTE)\b`)
	wrongs   = regexp.MustCompile(`(?m)^  but: .*$`)
)

// colors reports whether what is printed as text has colours.
func (o *options) colors() (bool, error) {
	return chosen("color", o.color, o.terminal.is && o.terminal.colors)
}

// colored has what print writes coloured, if there are to be colours. Nothing else in it acts
// on a terminal, whoever wrote it.
func (o *options) colored(print func(io.Writer) error) func(io.Writer) error {
	return func(out io.Writer) error {
		colors, err := o.colors()
		if err != nil {
			return err
		}
		if !colors {
			return printable(print)(out)
		}
		var uncolored bytes.Buffer
		if err := printable(print)(&uncolored); err != nil {
			return err
		}
		if _, err := out.Write(paint(uncolored.Bytes())); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return nil
	}
}

// printable has nothing in what print writes act on a terminal.
func printable(print func(io.Writer) error) func(io.Writer) error {
	return func(out io.Writer) error { return print(text.Writer{Out: out}) }
}

// paint colours what is printed: how full bars are, headings, and how bad findings are.
func paint(text []byte) []byte {
	in := func(color string) func([]byte) []byte {
		return func(part []byte) []byte { return []byte(color + string(part) + plain) }
	}
	text = headings.ReplaceAllFunc(text, in(bold))
	text = levels.ReplaceAllFunc(text, func(level []byte) []byte {
		return in(map[string]string{"ERROR": bold + red, "WARNING": yellow, "NOTE": cyan}[string(level)])(level)
	})
	text = wrongs.ReplaceAllFunc(text, in(yellow))
	return bars.ReplaceAllFunc(text, func(bar []byte) []byte {
		return full.ReplaceAllFunc(bar, func(part []byte) []byte {
			color := green
			if float64(utf8.RuneCount(part)) >= nearlyFull*float64(utf8.RuneCount(bar)) {
				color = cyan
			}
			return in(color)(part)
		})
	})
}
