// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/harness/terminal"
)

// inspected is what `kubectl inspect cgpu fill` prints when the four GPUs of the
// node hold these units, of all in all so much.
func inspected(t *testing.T, used [4]int, percent int) string {
	t.Helper()
	return inspectedNode(t, "fill", 15, percent, used[:]...)
}

// inspectedNode is the same of any node with GPUs of one size.
func inspectedNode(t *testing.T, node string, g, percent int, used ...int) string {
	t.Helper()
	ip := cluster.InternalIP(t, node)
	header, row, sum := []string{"NAME", "IPADDRESS"}, []string{node, ip}, 0
	for i, units := range used {
		header, row = append(header, fmt.Sprintf("GPU%d(Allocated/Total)", i)), append(row, fmt.Sprintf("%d/%d", units, g))
		sum += units
	}
	total := fmt.Sprintf("%d/%d", sum, g*len(used))
	header, row = append(header, "GPU Memory(GiB)"), append(row, total)
	var lines [2]string
	for i := range header {
		width := max(len(header[i]), len(row[i]))
		for j, cell := range []string{header[i], row[i]} {
			if i < len(header)-1 {
				cell = fmt.Sprintf("%-*s  ", width, cell)
			}
			lines[j] += cell
		}
	}
	// The line is as long as the row with one byte between its cells, and 21 more.
	dashes := strings.Repeat("-", len(strings.Join(row, "\t"))+21)
	return lines[0] + "\n" + lines[1] + "\n" + dashes + "\nAllocated/Total GPU Memory In Cluster:\n" +
		fmt.Sprintf("%s (%d%%)  \n", total, percent)
}

func TestInspectPrintsTheTableThatUsersKnow(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	packedNode(t, "fill", 4)
	ns := cluster.Namespace(t)
	idle, _ := cluster.Inspect(t, "fill")
	expect.Equal(t, inspected(t, [4]int{}, 0), idle, "an idle node")

	ns.Template(t, "three", harness.Requests(harness.Share("gpu", "3Gi")))
	pods := harness.Pods(8, "p", "fill", harness.FromTemplate("three"))
	ns.Run(t, pods...)

	// As ACK's documents show it for these pods and GPUs.
	summary, notes := cluster.Inspect(t, "fill")
	expect.Equal(t, inspected(t, [4]int{15, 9, 0, 0}, 40), summary, "the summary")
	if notes != "" {
		t.Errorf("beside the table it says %q", notes)
	}
	details, _ := cluster.Inspect(t, "-d", "fill")
	expect.Equal(t, detailsOfFill(t, ns, pods), details, "the details")
}

// detailsOfFill is what `kubectl inspect cgpu -d fill` prints for pods with 3 GiB each.
func detailsOfFill(t *testing.T, ns *harness.Namespace, pods []*corev1.Pod) string {
	t.Helper()
	width := len(ns.Name)
	rows, bytes := make([]string, 0, len(pods)), 0
	for _, pod := range pods {
		var amounts [4]int
		amounts[ns.Granted(t, pod.Name)[0].GPU.Index] = 3
		text := fmt.Sprintf("%-11s  %-*s  ", pod.Name, width, ns.Name)
		for _, amount := range amounts {
			text += fmt.Sprintf("%-17d", amount)
		}
		rows = append(rows, text+"\n")
		bytes += len(fmt.Sprintf("%s\t%s\t0\t0\t0\t3\t\n", pod.Name, ns.Name))
	}
	// Those on GPU 0 come first.
	slices.SortStableFunc(rows, func(a, b string) int { return strings.Compare(gpu0(b), gpu0(a)) })
	return fmt.Sprintf("\nNAME:       fill\nIPADDRESS:  %s\n\n", cluster.InternalIP(t, "fill")) +
		fmt.Sprintf("%-11s  %-*s  GPU0(Allocated)  GPU1(Allocated)  GPU2(Allocated)  GPU3(Allocated)  \n", "NAME", width,
			"NAMESPACE") +
		strings.Join(rows, "") +
		fmt.Sprintf("Allocated :  %-*s  \nTotal :      %-*s  \n", width, "24 (40%)", width, "60 ") +
		strings.Repeat("-", bytes+10) + "\n\n\nAllocated/Total GPU Memory In Cluster:  24/60 (40%)  \n"
}

func gpu0(row string) string { return strings.Fields(row)[2] }

// inspectShowsPodWithoutClaim waits until the table shows a pod of NVIDIA's device plugin:
// which GPU it has, only its kubelet knows.
func inspectShowsPodWithoutClaim(t *testing.T, node, namespace, pod string) {
	t.Helper()
	harness.Eventually(t, "kubectl inspect cgpu to show pod "+pod+", of a device plugin", func(context.Context) error {
		out, notes, err := cluster.TryInspect(t, "-d", "-o", "wide", node)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			words := strings.Fields(line)
			if len(words) > 2 && words[0] == pod && words[1] == namespace && words[len(words)-1] == "device-plugin" &&
				strings.Contains(notes, namespace+"/"+pod+" (its GPUs could not be asked of the kubelet") {
				return nil
			}
		}
		return fmt.Errorf("it prints\n%s\n%s", out, notes)
	})
}

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
