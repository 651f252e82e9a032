// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/harness/terminal"
)

// fullAndPart fills GPU 0 of node fill, holds 9 of the 15 GiB of GPU 1, and has the pod of the
// former use 5 GiB.
func fullAndPart(t *testing.T) *harness.Namespace {
	t.Helper()
	cluster.Whole(t, "fill")
	packedNode(t, "fill", 4)
	ns := cluster.Namespace(t)
	ns.Template(t, "all", harness.Requests(harness.Capped("share", 0, "memory", "15Gi")))
	ns.Template(t, "some", harness.Requests(harness.Capped("share", 1, "memory", "9Gi")))
	ns.Run(t, harness.Pod("all", "fill", harness.FromTemplate("all")),
		harness.Pod("some", "fill", harness.FromTemplate("some")))
	ns.SetGPUProcesses(t, "fill", harness.GPUProcess{GPU: 0, Pod: "all", MemoryMiB: 5 << 10})
	return ns
}

// eventuallyInspected waits until `kubectl inspect cgpu` prints what a check takes for right.
func eventuallyInspected(t *testing.T, what string, check func(out string) error, arguments ...string) {
	t.Helper()
	harness.Eventually(t, what, func(context.Context) error {
		out, notes, err := cluster.TryInspect(t, arguments...)
		if err == nil {
			err = check(out)
		}
		if err != nil {
			return fmt.Errorf("%w:\n%s%s", err, out, notes)
		}
		return nil
	})
}

// What is used stands beside what is allocated where somebody asks for it.
func TestInspectShowsWhatIsUsed(t *testing.T) {
	t.Parallel()
	ns := fullAndPart(t)
	row := func(out, first string) []string {
		for line := range strings.Lines(out) {
			if fields := strings.Fields(line); len(fields) > 0 && fields[0] == first {
				return fields
			}
		}
		return nil
	}
	eventuallyInspected(t, "the table to have what is used", func(out string) error {
		header, fields := row(out, "NAME"), row(out, "fill")
		if !slices.Contains(header, "USED(GiB)") || len(fields) == 0 || fields[len(fields)-1] != "5.0" {
			return fmt.Errorf("the row is %q", fields)
		}
		return nil
	}, "fill", "--use=always")
	eventuallyInspected(t, "the details to have what each pod uses", func(out string) error {
		want := []string{"all", ns.Name, "15", "0", "0", "0", "5.0", "0", "0", "0"}
		if diff := expect.Diff(want, row(out, "all")); diff != nil {
			return fmt.Errorf("the row of pod all %v", diff)
		}
		want = []string{"some", ns.Name, "0", "9", "0", "0", "0", "0.0", "0", "0"}
		if diff := expect.Diff(want, row(out, "some")); diff != nil {
			return fmt.Errorf("the row of pod some %v", diff)
		}
		return nil
	}, "fill", "-d", "--use=always")
	eventuallyInspected(t, "JSON to have what is used", func(out string) error {
		var table inspect.Table
		if err := json.Unmarshal([]byte(out), &table); err != nil {
			return err
		}
		if used := table.Nodes[0].GPUs[0].UsedMiB; used == nil || *used != 5<<10 {
			return fmt.Errorf("of GPU 0 %v MiB are used", used)
		}
		return nil
	}, "fill", "-o", "json", "--use=always")
	for _, arguments := range [][]string{{"fill"}, {"fill", "-o", "json"}, {"fill", "--use=never"}} {
		if out, _ := cluster.Inspect(t, arguments...); strings.Contains(out, "USED") || strings.Contains(out, "usedMiB") {
			t.Errorf("with %q it prints what is used:\n%s", arguments, out)
		}
	}
}

// bar is what is drawn of how full a GPU is.
type bar struct {
	Held, Free, Color int
}

// shownBars are the bars on a screen.
func shownBars(screen *terminal.Screen) []bar {
	var bars []bar
	for _, line := range screen.Lines() {
		var b bar
		for _, cell := range line {
			switch cell.Rune {
			case '█':
				b.Held, b.Color = b.Held+1, cell.Color
			case '░':
				b.Free++
			}
		}
		if b != (bar{}) {
			bars = append(bars, b)
		}
	}
	return bars
}

// styled reports whether anything on a screen is bold or has a colour.
func styled(screen *terminal.Screen) bool {
	return slices.ContainsFunc(screen.Lines(), func(line []terminal.Cell) bool {
		return slices.ContainsFunc(line, func(cell terminal.Cell) bool { return cell.Style != terminal.Style{} })
	})
}

// In a terminal there are colours, bars, what is used, and a line for each GPU where the table has
// no room; elsewhere there is ACK's table, byte by byte.
func TestInspectInATerminal(t *testing.T) {
	t.Parallel()
	fullAndPart(t)
	// A full GPU is what packing aims at, and has no colour that warns.
	const green, cyan = 2, 6
	bars := []bar{{10, 0, cyan}, {6, 4, green}, {0, 10, 0}, {0, 10, 0}}
	plain := []bar{{10, 0, 0}, {6, 4, 0}, {0, 10, 0}, {0, 10, 0}}
	for _, test := range []struct {
		line          string
		bars          []bar
		colors, usage bool
	}{
		{"kubectl inspect cgpu fill", bars, true, true},
		{"kubectl inspect cgpu fill --color=never", plain, false, true},
		{"NO_COLOR=1 kubectl inspect cgpu fill", plain, false, true},
		{"kubectl inspect cgpu fill --bars=never", nil, true, true},
		{"kubectl inspect cgpu fill --use=never", bars, true, false},
		{"kubectl inspect cgpu fill -o json", nil, false, false},
		{"kubectl inspect cgpu fill | cat", nil, false, false},
		{"kubectl inspect cgpu fill --width=80 --color=always --bars=always | cat", bars, true, false},
	} {
		screen := cluster.Terminal(t, 100, 30)
		screen.Run(t, test.line)
		if diff := expect.Diff(test.bars, shownBars(screen.Screen)); diff != nil || styled(screen.Screen) != test.colors ||
			strings.Contains(screen.Text(), "USED") != test.usage {
			t.Errorf("%s: colours are wanted: %v, what is used: %v, bars %v\n%s", test.line, test.colors,
				test.usage, diff, screen.Text())
		}
	}
	if out, _ := cluster.Inspect(t, "fill"); out != inspected(t, [4]int{15, 9}, 40) {
		t.Errorf("in a pipe it prints\n%s", out)
	}
	wide := cluster.Terminal(t, 200, 30)
	wide.Run(t, "kubectl inspect cgpu fill")
	if text := wide.Text(); !harness.ContainsAll(text, []string{"GPU3(Allocated/Total)", "9/15    ██████░░░░"}) {
		t.Errorf("where ACK's table has room there is\n%s", text)
	}
}

// A watch in a terminal has a screen of its own, follows what changes and the terminal's size,
// and leaves the last table.
func TestInspectWatchesInATerminal(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	packedNode(t, "fill", 4)
	ns := cluster.Namespace(t)
	ns.Template(t, "three", harness.Requests(harness.Share("gpu", "3Gi")))
	screen := cluster.Terminal(t, 100, 30)
	session := screen.Start(t, "kubectl inspect cgpu fill -w")
	shows := func(what string, parts ...string) {
		t.Helper()
		screen.Shows(t, what, func(text string, program bool) bool {
			return program && strings.HasPrefix(text, "As of ") && harness.ContainsAll(text, parts)
		})
	}
	shows("an idle node", "fill  GPU0  0/15    ░░░░░░░░░░")
	ns.Run(t, harness.Pod("p", "fill", harness.FromTemplate("three")))
	shows("a share of 3 GiB", "fill  GPU0  3/15    ██░░░░░░░░")
	expect.NoError(t, session.Resize(200, 40))
	shows("ACK's table once there is room", "GPU0(Allocated/Total)", "3/15    ██░░░░░░░░")
	ns.Delete(t, "p")
	shows("an idle node again", "GPU0(Allocated/Total)", "0/60 (0%)")
	expect.NoError(t, session.Type("\x03"))
	if err := session.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if text := screen.Text(); screen.HasProgram() || strings.Count(text, "GPU0(Allocated/Total)") != 1 ||
		!strings.Contains(text, "0/60 (0%)") || strings.Contains(text, "3/15") {
		t.Errorf("it leaves the terminal with\n%s", text)
	}
}
