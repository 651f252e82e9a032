// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
