// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
)

// clearScreen is what a terminal takes for: go to the upper left, forget the rest.
const clearScreen = "\x1b[H\x1b[2J\x1b[3J"

// printer prints tables in one format, and beside them on the error stream what
// they lack.
type printer struct {
	streams genericiooptions.IOStreams
	format  func(io.Writer, *inspect.Table) error
	// namespace is the one whose pods are listed, empty for all.
	namespace string
	// before is written before each table but the first of a watch.
	before string
	// clear is whether the screen is cleared instead.
	clear bool
	last  []byte
}

// printer checks what the user asks for.
func (o *options) printer() (*printer, error) {
	p := &printer{streams: o.streams, namespace: o.namespace()}
	style := inspect.Style{Wide: o.output == "wide"}
	switch o.bars {
	case "auto":
		style.Bars = o.terminal.is && o.output == ""
	case "always":
		style.Bars = true
	case "never":
	default:
		return nil, fmt.Errorf("--bars %s: not one of always, never, auto", o.bars)
	}
	switch width, err := strconv.Atoi(o.width); {
	case o.width == "auto" && o.terminal.is:
		style.Width = o.terminal.columns
	case o.width == "auto":
	case err != nil || width < 0:
		return nil, fmt.Errorf("--width %s: neither auto nor a number of columns", o.width)
	default:
		style.Width = width
	}
	switch o.output {
	case "json":
		p.format = inspect.JSON
	case "yaml":
		p.format, p.before = inspect.YAML, "---\n"
	case "", "wide":
		p.clear, p.before = o.terminal.is, "\n"
		table := inspect.Summary
		// Whoever names a namespace wants to see its pods.
		if o.details || o.allNamespaces || p.namespace != "" {
			table = inspect.Details
		}
		p.format = func(out io.Writer, t *inspect.Table) error { return table(out, t, style) }
	default:
		return nil, fmt.Errorf("--output %s: not one of wide, json, yaml", o.output)
	}
	return p, nil
}

// print prints the table of what was read. That the one node to show has no cards is
// an error, that no node has any is not.
func (p *printer) print(in inspect.Input) error {
	t := inspect.New(in)
	if len(t.Nodes) == 0 && in.Node != "" {
		return fmt.Errorf("node %s publishes no GPUs: see its Events with `kubectl describe node %s`%s", in.Node, in.Node,
			notesOf(t))
	}
	text, err := p.text(t)
	if err != nil {
		return err
	}
	return p.write(t, text)
}

// printAgain prints the table where it has changed.
func (p *printer) printAgain(in inspect.Input) error {
	t := inspect.New(in)
	text, err := p.text(t)
	if err != nil {
		return err
	}
	if p.last != nil && bytes.Equal(p.last, text) {
		return nil
	}
	between := ""
	switch {
	case p.clear:
		between = clearScreen
	case p.last != nil:
		between = p.before
	}
	p.last = text
	if _, err := io.WriteString(p.streams.Out, between); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return p.write(t, text)
}

func (p *printer) text(t *inspect.Table) ([]byte, error) {
	if p.namespace != "" {
		t = t.Of(p.namespace)
	}
	var text bytes.Buffer
	err := p.format(&text, t)
	return text.Bytes(), err
}

func (p *printer) write(t *inspect.Table, text []byte) error {
	if _, err := p.streams.Out.Write(text); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	notes := t.Notes
	if len(t.Nodes) == 0 {
		notes = append(notes, "No node publishes GPUs: there is no ResourceSlice of driver gpu.aliyun.com with devices.")
	}
	for _, note := range notes {
		fmt.Fprintln(p.streams.ErrOut, note)
	}
	return nil
}

func notesOf(t *inspect.Table) string {
	if len(t.Notes) == 0 {
		return ""
	}
	return "\n" + strings.Join(t.Notes, "\n")
}
