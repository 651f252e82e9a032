// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/topologytest"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// matrix is what "nvidia-smi topo -m" shows of the GPUs: by row and column, how two of them are linked, as in "NV2" or
// "PIX".
type matrix map[[2]string]string

var (
	// The tool underlines the headings, also where its output is no terminal.
	escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")
	isGPU   = regexp.MustCompile(`^GPU[0-9]+$`).MatchString
	isLink  = regexp.MustCompile(`^(NV[0-9]+|PIX|PXB|PHB|NODE|SYS)$`).MatchString
)

// parseMatrix reads the tool's output. The columns are GPUs, and then what else there is: network cards, affinities.
func parseMatrix(out string) (matrix, error) {
	m := matrix{}
	var columns []string
	for line := range strings.Lines(escapes.ReplaceAllString(out, "")) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || !isGPU(fields[0]):
		case strings.HasPrefix(line, "\t"):
			columns = fields
		default:
			for i, column := range columns {
				if !isGPU(column) {
					break
				}
				if column == fields[0] {
					continue
				}
				if i+1 >= len(fields) || !isLink(fields[i+1]) {
					return nil, fmt.Errorf("row %s has no link in column %s: %q", fields[0], column, line)
				}
				m[[2]string{fields[0], column}] = fields[i+1]
			}
		}
	}
	if columns == nil {
		return nil, errors.New("no matrix of GPUs in what nvidia-smi topo -m says")
	}
	return m, nil
}

// link is how two GPUs are linked. Where the two rows have different numbers of lanes, the smaller one counts, as it
// does for the driver; so does one without lanes.
func (m matrix) link(a, b int) string {
	row, column := fmt.Sprintf("GPU%d", a), fmt.Sprintf("GPU%d", b)
	there, back := m[[2]string{row, column}], m[[2]string{column, row}]
	lanes := func(link string) (n int) {
		_, _ = fmt.Sscanf(link, "NV%d", &n) // Others have none.
		return n
	}
	if there == back || lanes(there)+lanes(back) > 0 {
		return slices.MinFunc([]string{there, back}, func(a, b string) int { return cmp.Compare(lanes(a), lanes(b)) })
	}
	return there + " and " + back
}

// differences are the pairs of the machine's GPUs whose links the driver has read otherwise.
func (m matrix) differences(machine *gpu.Machine) (differ []string) {
	read := map[[2]int]string{}
	for _, l := range machine.Links {
		shown := string(l.Kind)
		switch l.Kind {
		case gpu.LinkNVLink:
			shown = fmt.Sprintf("NV%d", l.Lanes)
		case gpu.LinkSameGPU:
			// The tool has no sign for two GPUs on one board, which meet at the board's PCIe switch.
			shown = string(gpu.LinkPIX)
		}
		read[[2]int{l.A, l.B}] = shown
	}
	for i, b := range machine.GPUs {
		for _, a := range machine.GPUs[:i] {
			if got, want := read[[2]int{a.Index, b.Index}], m.link(a.Index, b.Index); got != want {
				differ = append(differ, fmt.Sprintf("GPU %d and GPU %d: the driver has read %q, nvidia-smi says %q", a.Index,
					b.Index, got, want))
			}
		}
	}
	return differ
}

// samples are outputs as the tool writes them, of machines of demo/machines.
var samples = map[string]string{
	"dgx1": "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tCPU Affinity\tNUMA Affinity\x1b[0m\n" +
		"GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\tPIX\t0-19,40-59\t0\n" +
		"GPU1\tNV1\t X \tNV2\tNV1\tSYS\tNV2\tSYS\tSYS\tPIX\t0-19,40-59\t0\n" +
		"GPU2\tNV1\tNV2\t X \tNV2\tSYS\tSYS\tNV1\tSYS\tPHB\t0-19,40-59\t0\n" +
		"GPU3\tNV2\tNV1\tNV2\t X \tSYS\tSYS\tSYS\tNV1\tPHB\t0-19,40-59\t0\n" +
		"GPU4\tNV2\tSYS\tSYS\tSYS\t X \tNV1\tNV1\tNV2\tSYS\t20-39,60-79\t1\n" +
		"GPU5\tSYS\tNV2\tSYS\tSYS\tNV1\t X \tNV2\tNV1\tSYS\t20-39,60-79\t1\n" +
		"GPU6\tSYS\tSYS\tNV1\tSYS\tNV1\tNV2\t X \tNV2\tSYS\t20-39,60-79\t1\n" +
		"GPU7\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\tNV2\t X \tSYS\t20-39,60-79\t1\n" +
		"mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \t\t\n\nLegend:\n\n  X    = Self\n",
	"a10x4": "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\r\n" +
		"GPU0\t X \tNODE\tSYS\tSYS\t0-31\t0\t\tN/A\r\n" +
		"GPU1\tNODE\t X \tSYS\tSYS\t0-31\t0\t\tN/A\r\n" +
		"GPU2\tSYS\tSYS\t X \tNODE\t32-63\t1\t\tN/A\r\n" +
		"GPU3\tSYS\tSYS\tNODE\t X \t32-63\t1\t\tN/A\r\n",
}

func TestMatrix(t *testing.T) {
	for name, tt := range map[string]struct {
		machine, old, new string
		// want is a difference from the machine, or of what is none the beginning of the error.
		want string
	}{
		"NVLink": {"dgx1", "", "", ""},
		"PCIe":   {"a10x4", "", "", ""},
		"fewer lanes": {"dgx1", "GPU0\t X \tNV1\tNV1\tNV2", "GPU0\t X \tNV1\tNV1\tNV1",
			`GPU 0 and GPU 3: the driver has read "NV2", nvidia-smi says "NV1"`},
		"no lane back": {"dgx1", "GPU3\tNV2", "GPU3\tPHB",
			`GPU 0 and GPU 3: the driver has read "NV2", nvidia-smi says "PHB"`},
		"another path": {"a10x4", "SYS\tSYS\tNODE\t X ", "SYS\tSYS\tPIX\t X ",
			`GPU 2 and GPU 3: the driver has read "NODE", nvidia-smi says "NODE and PIX"`},
		"a cut line":     {"a10x4", "GPU1\tNODE\t X \tSYS\tSYS\t0-31\t0\t\tN/A", "GPU1", "row GPU1 has no link"},
		"an unknown way": {"a10x4", "NODE", "WIRE", "row GPU0 has no link in column GPU1"},
		"a message":      {"a10x4", "\tGPU0\tGPU1", "Failed to initialize NVML", "no matrix of GPUs"},
	} {
		machine, err := topologytest.Machine(t.Context(), filepath.Join("../../../demo/machines", tt.machine+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		m, err := parseMatrix(strings.Replace(samples[tt.machine], tt.old, tt.new, 1))
		got := strings.Join(m.differences(machine), "; ")
		if err != nil {
			got = err.Error()
		}
		if got != tt.want && (err == nil || tt.want == "" || !strings.HasPrefix(got, tt.want)) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
