// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
)

var prettyName = regexp.MustCompile(`(?m)^PRETTY_NAME="?([^"\n]*)`)

// facts are what the report tells of the machine beside its tables.
func facts(t *testing.T) {
	t.Helper()
	fact := func(name, format string, args ...any) {
		t.Attr(report.FactKey, name+"\t"+strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
	}
	fact("NVIDIA driver", "%s, CUDA %s", here.machine.DriverVersion, here.machine.CUDADriverVersion)
	conditions := map[string]gpu.Condition{}
	for _, c := range here.reader().Check(t.Context()) {
		conditions[c.UUID] = c
	}
	for _, g := range here.machine.All() {
		compute := "not told"
		if device, ret := here.lib.DeviceGetHandleByUUID(g.UUID); ret == nvml.SUCCESS {
			if mode, ret := device.GetComputeMode(); ret == nvml.SUCCESS {
				compute = gpu.ComputeMode(mode).String()
			}
		}
		well := "recovery action " + cmp.Or(string(conditions[g.UUID].Recovery), "not told")
		if c := conditions[g.UUID]; c.Failure != "" {
			well = "does not answer as it should: " + c.Message
		}
		fact(fmt.Sprintf("GPU %d", g.Index), "%s, %d MiB, compute capability %s, PCI %s, compute mode %s, MIG %s, %s",
			g.ProductName, g.MemoryMiB, g.ComputeCapability, g.PCIBusID, compute, onOff(g.MIG.Enabled), well)
	}
	for _, f := range here.machine.Faults {
		fact(fmt.Sprintf("GPU %d, left out", f.Index), "%s", f.Message)
	}
	for _, l := range here.machine.Links {
		fact(fmt.Sprintf("GPU %d to GPU %d", l.A, l.B), "%s %d lanes, %d GB/s", l.Kind, l.Lanes, l.GBps)
	}
	node, err := here.Client.CoreV1().Nodes().Get(t.Context(), here.node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	info, system := node.Status.NodeInfo, node.Status.NodeInfo.OSImage
	// A node of tests/cluster has another root directory than the machine.
	if content, err := os.ReadFile("/etc/os-release"); err == nil {
		if pretty := prettyName.FindSubmatch(content); pretty != nil {
			system = string(pretty[1])
		}
	}
	fact("Machine", "%s, kernel %s, %s processors", system, info.KernelVersion, node.Status.Capacity.Cpu())
	fact("Kubernetes", "%s, %s", info.KubeletVersion, info.ContainerRuntimeVersion)
}

// smi runs nvidia-smi on this machine.
func smi(s *step, args ...string) string {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), filepath.Join(here.driver.Root, here.driver.SMI), args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(here.driver.NVML)+":"+os.Getenv("LD_LIBRARY_PATH"))
	out, err := cmd.Output()
	if err != nil {
		s.Fatalf("%s: %v: %s", cmd, err, out)
	}
	return string(out)
}

// told is what both NVML and nvidia-smi tell of a GPU, in the order of nvidia-smi's fields.
const told = "index,uuid,name,pci.bus_id,memory.total,driver_version,compute_cap"

var (
	longDomain = regexp.MustCompile(`^0{4}([0-9a-f]{4}:)`)
	minorLine  = regexp.MustCompile(`(?m)^Device Minor:\s*([0-9]+)$`)
)

func sameAsSMI(s *step) {
	reader := csv.NewReader(strings.NewReader(smi(s, "--query-gpu="+told, "--format=csv,noheader,nounits")))
	reader.TrimLeadingSpace = true
	records, err := reader.ReadAll()
	if err != nil {
		s.Fatal(err)
	}
	want := map[string]string{}
	for _, r := range records {
		if len(r) == len(strings.Split(told, ",")) {
			// "00000000:3B:00.0" in sysfs' form.
			r[3] = longDomain.ReplaceAllString(strings.ToLower(r[3]), "$1")
			want[r[1]] = strings.Join(r, ", ")
		}
	}
	for _, g := range here.machine.GPUs {
		got := strings.Join([]string{strconv.Itoa(g.Index), g.UUID, g.ProductName, g.PCIBusID,
			strconv.FormatInt(g.MemoryMiB, 10), here.machine.DriverVersion, g.ComputeCapability}, ", ")
		s.check(told, want[g.UUID], got, got == want[g.UUID])
		// nvidia-smi lists no minors, and the kernel module does.
		content, err := os.ReadFile(filepath.Join("/proc/driver/nvidia/gpus", g.PCIBusID, "information"))
		if minor := minorLine.FindSubmatch(content); err == nil && minor != nil {
			s.check(fmt.Sprintf("minor number of GPU %d, by the kernel module", g.Index), string(minor[1]),
				strconv.Itoa(g.Minor), string(minor[1]) == strconv.Itoa(g.Minor))
		}
	}
}

// sameLinks compares the kind of each pair's link, and the number of NVLink lanes.
func sameLinks(s *step) {
	out := smi(s, "topo", "-m")
	m, err := parseMatrix(out)
	if err != nil {
		s.Fatalf("%v:\n%s", err, out)
	}
	differences := m.differences(here.machine)
	s.check("links that differ from nvidia-smi topo -m", "none", cmp.Or(strings.Join(differences, "; "), "none"),
		len(differences) == 0)
}

// readAgain reads the GPUs as the plugin does each minute: that tells the same.
func readAgain(s *step) {
	reader := here.reader()
	first, err := reader.Read(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.clock()
	again, err := reader.Read(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.check("the GPUs, read twice", fmt.Sprintf("%+v", first), fmt.Sprintf("%+v", again), reflect.DeepEqual(first, again))
}

// process is a process of this machine.
type process struct {
	pid, parent      int
	cmdline, environ string
}

// process finds the only process that matches.
func (s *step) process(what string, matches func(process) bool) process {
	s.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		s.Fatal(err)
	}
	var found []process
	for _, dir := range dirs {
		var p process
		// One that ends meanwhile is not looked for.
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		// "pid (name) state parent …", and the name may hold anything.
		after := string(stat[bytes.LastIndexByte(stat, ')')+1:])
		if _, err := fmt.Sscanf(after, " %s %d", new(string), &p.parent); err != nil {
			continue
		}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		p.cmdline, p.environ = string(cmdline), string(environ)
		if matches(p) {
			found = append(found, p)
		}
	}
	if len(found) != 1 {
		s.Fatalf("there are %d processes of %s, want 1", len(found), what)
	}
	return found[0]
}

func (p process) kill(s *step) {
	s.Helper()
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
		s.Fatalf("kill process %d: %v", p.pid, err)
	}
}

// onTheGPU holds what pkg/node/audit needs: the driver lists programs on the GPU with their memory, and tells clients
// of MPS from all others.
func onTheGPU(class string) func(*step) {
	return func(s *step) {
		s.shared("pod with a share", class, limitedUnits, 0, pod{name: "busy"})
		p, err := s.launch("busy", "main", "spin", "3")
		if err != nil {
			s.Fatal(err)
		}
		defer p.goOn()
		program := s.process("the CUDA program", func(p process) bool {
			return strings.HasPrefix(p.cmdline, "/cudaprobe\x00spin\x00")
		})
		all, err := gpunvml.NewUses(gpunvml.OpenOptions{LibraryPath: here.driver.NVML}).Read(s.Context())
		if err != nil {
			s.Error(err)
		}
		servers := 0
		for _, use := range all {
			for _, on := range use.Processes {
				comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", on.PID))
				observed := fmt.Sprintf("%d MiB, client of MPS: %t", on.MemoryMiB, on.MPSClient)
				switch {
				case use.UUID != here.gpu().UUID:
				case on.PID == program.pid:
					client := class == "mps" && use.TellsMPS
					s.check("the program on the GPU, as the driver tells of it", fmt.Sprintf("more than 0 MiB, client of MPS: %t",
						client), observed, on.MemoryMiB > 0 && on.MPSClient == client)
					program.pid = 0
				case strings.HasPrefix(string(comm), "nvidia-cuda-mps"):
					servers++
					s.seen("the server of MPS on the GPU", "", observed)
				}
			}
		}
		s.check("programs that the driver does not list", "0", strconv.Itoa(min(program.pid, 1)), program.pid == 0)
		if class == "mps" {
			s.check("servers of MPS on the GPU, by their names", "1", strconv.Itoa(servers), servers == 1)
		}
	}
}
