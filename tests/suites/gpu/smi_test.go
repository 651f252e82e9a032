// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// queried are the figures that both NVML and nvidia-smi give, by the name of
// nvidia-smi's field.
type queried struct {
	Index, UUID, Name, BusID, MiB, DriverVersion, ComputeCapability string
}

const query = "index,uuid,name,pci.bus_id,memory.total,driver_version,compute_cap"

// smi runs nvidia-smi, or skips the test without it.
func smi(t *testing.T, n node, args ...string) string {
	t.Helper()
	program := os.Getenv("GPUSHARE_NVIDIA_SMI")
	if program == "" && n.simulated {
		t.Skip("a simulated driver has no nvidia-smi")
	}
	if program == "" {
		var err error
		if program, err = exec.LookPath("nvidia-smi"); err != nil {
			skip(t, fmt.Sprintf("no nvidia-smi to compare with: %v: set GPUSHARE_NVIDIA_SMI", err))
		}
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	libraries := n.libraries
	if library := os.Getenv("GPUSHARE_NVML_LIBRARY"); library != "" {
		libraries = append(libraries, filepath.Dir(library))
	}
	if len(libraries) > 0 {
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, out)
	}
	return string(out)
}

// smiGPUs asks nvidia-smi for the GPUs.
func smiGPUs(t *testing.T, n node) map[string]queried {
	t.Helper()
	out := smi(t, n, "--query-gpu="+query, "--format=csv,noheader,nounits")
	reader := csv.NewReader(strings.NewReader(out))
	reader.TrimLeadingSpace = true
	reader.FieldsPerRecord = len(strings.Split(query, ","))
	records, err := reader.ReadAll()
	if err != nil {
		t.Fatalf("what nvidia-smi says of the GPUs: %v: %s", err, out)
	}
	gpus := map[string]queried{}
	for _, r := range records {
		gpus[r[1]] = queried{r[0], r[1], r[2], busID(r[3]), r[4], r[5], r[6]}
	}
	return gpus
}

// busID turns nvidia-smi's "00000000:3B:00.0" into sysfs' form.
func busID(id string) string {
	return strings.ToLower(regexp.MustCompile(`^0{4}([0-9A-Fa-f]{4}:)`).ReplaceAllString(id, "$1"))
}

func TestGPUsAreWhatNvidiaSMISays(t *testing.T) {
	n := openNode(t)
	gpus := smiGPUs(t, n)
	if got, want := len(n.machine.GPUs)+len(n.machine.Faults), len(gpus); got != want {
		t.Errorf("%d GPUs, nvidia-smi has %d", got, want)
	}
	for _, g := range n.machine.GPUs {
		got := queried{
			strconv.Itoa(g.Index), g.UUID, g.ProductName, g.PCIBusID, strconv.FormatInt(g.MemoryMiB, 10),
			n.machine.DriverVersion, g.ComputeCapability,
		}
		if diff := cmp.Diff(gpus[g.UUID], got); diff != "" {
			t.Errorf("GPU %d, nvidia-smi (-) and the driver (+):\n%s", g.Index, diff)
		}
		if want := strings.ReplaceAll(g.ProductName, " ", "-"); g.Model != want {
			t.Errorf("GPU %d has model %q, want %q", g.Index, g.Model, want)
		}
		t.Logf("GPU: %+v", g)
	}
	t.Logf("driver %s, CUDA %s, links %+v", n.machine.DriverVersion, n.machine.CUDADriverVersion, n.machine.Links)
}

var minorLine = regexp.MustCompile(`(?m)^Device Minor:\s*([0-9]+)$`)

// TestMinorsAreWhatTheKernelSays asks the kernel module, since nvidia-smi does not list
// minors.
func TestMinorsAreWhatTheKernelSays(t *testing.T) {
	n := openNode(t)
	for _, g := range n.machine.GPUs {
		file := filepath.Join("/proc/driver/nvidia/gpus", g.PCIBusID, "information")
		data, err := os.ReadFile(file)
		if err != nil {
			t.Skip("the kernel module does not tell:", err)
		}
		m := minorLine.FindSubmatch(data)
		if m == nil {
			t.Fatalf("%s has no minor: %s", file, data)
		}
		if string(m[1]) != strconv.Itoa(g.Minor) {
			t.Errorf("GPU %d has minor %d, the kernel says %s", g.Index, g.Minor, m[1])
		}
	}
}

// TestLinksAreWhatNvidiaSMISays compares the kind of each pair's link, and the number
// of NVLink lanes.
func TestLinksAreWhatNvidiaSMISays(t *testing.T) {
	n := openNode(t)
	out := smi(t, n, "topo", "-m")
	matrix, err := parseMatrix(out)
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, difference := range matrix.differences(n.machine) {
		t.Error(difference)
	}
	t.Logf("%s", out)
}

func TestLinksJoinGPUs(t *testing.T) {
	n := openNode(t)
	known := map[int]bool{}
	for _, g := range n.machine.GPUs {
		known[g.Index] = true
	}
	for _, l := range n.machine.Links {
		if !known[l.A] || !known[l.B] || l.A >= l.B || l.GBps <= 0 {
			t.Errorf("link %+v", l)
		}
		if l.Kind == gpu.LinkNVLink && (l.Lanes == 0 || l.Generation == 0) {
			t.Errorf("NVLink %+v without lanes or generation", l)
		}
	}
}
