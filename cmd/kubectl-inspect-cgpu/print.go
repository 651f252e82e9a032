// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// printNoting prints a report as text or in the form that --output names, and the notes to the error stream.
func (o *options) printNoting(report any, asText func(io.Writer) error, notes []string) error {
	print := o.colored(asText)
	if o.output != "" {
		print = func(out io.Writer) error { return o.structured(out, report) }
	}
	if err := print(o.streams.Out); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	for _, note := range notes {
		fmt.Fprintln(o.streams.ErrOut, note)
	}
	return nil
}

// structured prints a report as one indented JSON object or as one YAML document.
func (o *options) structured(out io.Writer, report any) error {
	if o.output != outputYAML {
		return text.JSON(text.Writer{Out: out}, report)
	}
	data, err := text.YAML(report)
	if err == nil {
		_, err = out.Write(data)
	}
	return err
}

// printer prints tables in one format, and beside them on the error stream what
// they lack.
type printer struct {
	streams genericiooptions.IOStreams
	format  func(io.Writer, *inspect.Table) error
	// namespace is the one whose pods are listed, empty for all.
	namespace string
	// before is written before each table but the first of a watch, times whether each of them
	// has its time above it.
	before string
	times  bool
	now    func() time.Time
	// screen is where they are shown instead, one in the place of the other; nil for none.
	screen *screen

	// mu is held while something is printed, table is the last of a watch, last its text and
	// shown what was drawn.
	mu    sync.Mutex
	table *inspect.Table
	last  []byte
	shown string
}

// printer checks what the user asks for.
func (o *options) printer() (*printer, error) {
	p := &printer{streams: o.streams, namespace: o.namespace(), now: time.Now}
	bars, err := chosen("bars", o.bars, o.terminal.is && o.output == "")
	if err != nil {
		return nil, err
	}
	style := inspect.Style{Wide: o.output == "wide", Bars: bars}
	if _, err := o.colors(); err != nil {
		return nil, err
	}
	if _, err := o.usage(cluster.Reader{}); err != nil {
		return nil, err
	}
	width, err := strconv.Atoi(o.width)
	if o.width != auto && (err != nil || width < 0) {
		return nil, fmt.Errorf("--width %s: neither auto nor a number of columns", o.width)
	}
	switch o.output {
	case outputJSON, outputYAML:
		p.format = func(out io.Writer, t *inspect.Table) error { return o.structured(out, t) }
		if o.output == outputYAML {
			p.before = "---\n"
		}
	case "", "wide":
		p.times, p.before = true, "\n"
		if o.terminal.is {
			p.screen = &screen{out: o.streams.Out, size: o.terminal.size}
		}
		table := inspect.Summary
		if o.lists() {
			table = inspect.Details
		}
		p.format = func(out io.Writer, t *inspect.Table) error {
			style := style
			switch {
			case o.width != auto:
				style.Width = width
			case o.terminal.is:
				style.Width, _ = o.terminal.size()
			}
			return o.colored(func(out io.Writer) error { return table(out, t, style) })(out)
		}
	default:
		return nil, fmt.Errorf("--output %s: not one of wide, json, yaml", o.output)
	}
	return p, nil
}

// print prints the table of what was read. That the one node to show has no GPUs is
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table = t
	if p.screen != nil {
		return p.draw()
	}
	text, err := p.text(t)
	if err != nil || p.last != nil && bytes.Equal(p.last, text) {
		return err
	}
	between := ""
	if p.last != nil {
		between = p.before
	}
	if p.times {
		between += p.now().Format(time.RFC3339) + "\n"
	}
	p.last = text
	if _, err := io.WriteString(p.streams.Out, between); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return p.write(t, text)
}

// resized draws the last table again.
func (p *printer) resized() error { return p.redraw(func() error { return nil }) }

// suspended gives the terminal back until stop returns, and then draws the last table again.
func (p *printer) suspended(stop func()) error {
	return p.redraw(func() error {
		err := p.screen.end()
		if err == nil {
			stop()
		}
		return err
	})
}

// continued draws the last table again, whatever is in the terminal.
func (p *printer) continued() error {
	return p.redraw(func() error {
		p.screen.forget()
		return nil
	})
}

// redraw calls after, which writes to the screen, and draws the last table again, if there is one.
func (p *printer) redraw(after func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.screen == nil {
		return nil
	}
	if err := after(); err != nil || p.table == nil {
		return err
	}
	return p.draw()
}

// draw shows the table and what it lacks on the screen, below the time of the last change.
func (p *printer) draw() error {
	table, err := p.text(p.table)
	if err != nil {
		return err
	}
	for _, note := range notesBeside(p.table) {
		table = fmt.Appendf(table, "%s\n", text.Printable(note))
	}
	if !bytes.Equal(p.last, table) {
		p.last, p.shown = table, fmt.Sprintf("As of %s; Ctrl-C ends this\n\n%s", p.now().Format(time.DateTime), table)
	}
	return p.screen.draw(p.shown)
}

// end gives the terminal back, and leaves the last table on it.
func (p *printer) end() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.screen == nil || p.last == nil {
		return nil
	}
	if err := p.screen.end(); err != nil {
		return err
	}
	if _, err := p.streams.Out.Write(p.last); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
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
	for _, note := range notesBeside(t) {
		fmt.Fprintln(p.streams.ErrOut, note)
	}
	return nil
}

// notesBeside are what there is to say beside a table.
func notesBeside(t *inspect.Table) []string {
	if len(t.Nodes) > 0 {
		return t.Notes
	}
	return append(slices.Clip(t.Notes),
		"No node publishes GPUs: there is no ResourceSlice of driver gpu.aliyun.com with devices.")
}

func notesOf(t *inspect.Table) string {
	if len(t.Notes) == 0 {
		return ""
	}
	return "\n" + strings.Join(t.Notes, "\n")
}
