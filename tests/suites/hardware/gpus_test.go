// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/modes"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim/memory"
)

var prettyName = regexp.MustCompile(`(?m)^PRETTY_NAME="?([^"\n]*)`)

// facts are what the report tells of the machine.
func facts(s *step) {
	s.seen("NVIDIA driver", "", here.machine.DriverVersion+", CUDA "+here.machine.CUDADriverVersion)
	s.seen("the NVIDIA driver's files", "", fmt.Sprintf("in root %s, libraries outside of the loader's path: %s, "+
		"MPS control program: %s", here.driver.Root, cmp.Or(here.driver.Odd, "none"), cmp.Or(here.driver.MPSControl, "none")))
	s.seen("control groups of version 2", "", told(memory.Tree()))
	reader := here.reader()
	if _, err := reader.Read(s.Context()); err != nil {
		s.Fatal(err)
	}
	conditions := map[string]gpu.Condition{}
	for _, c := range reader.Check(s.Context()) {
		conditions[c.UUID] = c
	}
	found := modes.Read(s.Context(), here.options(), reader, here.machine)
	for _, g := range here.machine.All() {
		compute := "not told"
		if mode, tells := found.Compute[g.UUID]; tells {
			compute = mode.String()
		}
		well := "recovery action " + cmp.Or(string(conditions[g.UUID].Recovery), "not told")
		if c := conditions[g.UUID]; c.Failure != "" {
			well = "does not answer as it should: " + c.Message
		}
		s.seen(fmt.Sprintf("GPU %d", g.Index), "",
			fmt.Sprintf("%s, %d MiB, compute capability %s, PCI %s, compute mode %s, MIG %s, %s", g.ProductName, g.MemoryMiB,
				g.ComputeCapability, g.PCIBusID, compute, modes.Tell(g.MIG), well))
	}
	for _, f := range here.machine.Faults {
		s.seen(fmt.Sprintf("GPU %d, left out", f.Index), "", f.Message)
	}
	for _, l := range here.machine.Links {
		s.seen(fmt.Sprintf("GPU %d to GPU %d", l.A, l.B), "", fmt.Sprintf("%s %d lanes, %d GB/s", l.Kind, l.Lanes, l.GBps))
	}
	node := harness.Get(s.T, here.Client.CoreV1().Nodes(), here.node)
	info, system := node.Status.NodeInfo, node.Status.NodeInfo.OSImage
	// A node of tests/cluster has another root directory than the machine.
	if content, err := os.ReadFile("/etc/os-release"); err == nil {
		if pretty := prettyName.FindSubmatch(content); pretty != nil {
			system = string(pretty[1])
		}
	}
	s.seen("machine", "", fmt.Sprintf("%s, kernel %s, %s processors", system, info.KernelVersion,
		node.Status.Capacity.Cpu()))
	s.seen("Kubernetes", "", info.KubeletVersion+", "+info.ContainerRuntimeVersion)
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

// asked is what both NVML and nvidia-smi tell of a GPU, in the order of nvidia-smi's fields.
const asked = "index,uuid,name,pci.bus_id,memory.total,driver_version,compute_cap"

var minorLine = regexp.MustCompile(`(?m)^Device Minor:\s*([0-9]+)$`)

func sameAsSMI(s *step) {
	shown := smi(s, "--query-gpu="+asked, "--format=csv,noheader,nounits")
	s.Log(shown)
	for _, g := range here.machine.GPUs {
		// PCI addresses are as in "00000000:3B:00.0".
		read := fmt.Sprintf("%d, %s, %s, 0000%s, %d, %s, %s", g.Index, g.UUID, g.ProductName, strings.ToUpper(g.PCIBusID),
			g.MemoryMiB, here.machine.DriverVersion, g.ComputeCapability)
		s.check(asked, "a line of nvidia-smi", read, slices.Contains(strings.Split(shown, "\n"), read))
		// nvidia-smi lists no minors, and the kernel module does.
		content, err := os.ReadFile(filepath.Join("/proc/driver/nvidia/gpus", g.PCIBusID, "information"))
		if minor := minorLine.FindSubmatch(content); err == nil && minor != nil {
			s.same(fmt.Sprintf("minor number of GPU %d, by the kernel module", g.Index), string(minor[1]),
				strconv.Itoa(g.Minor))
		}
	}
}

// rowOfGPU is one of those in which "nvidia-smi topo -m" shows how a GPU is linked with others, as in "NV2" or "PIX".
var rowOfGPU = regexp.MustCompile(`(?m)^GPU[0-9]+\s.*$`)

// linksRead holds that all pairs of GPUs have links, and of kinds, and with so many NVLink lanes, as nvidia-smi shows.
func linksRead(s *step) {
	read := map[[2]int]string{}
	for _, l := range here.machine.Links {
		kind := string(l.Kind)
		switch l.Kind {
		case gpu.LinkNVLink:
			kind = fmt.Sprintf("NV%d", l.Lanes)
		case gpu.LinkSameGPU:
			// nvidia-smi has no sign for two GPUs on one board, which meet at the board's PCIe switch.
			kind = string(gpu.LinkPIX)
		}
		read[[2]int{l.A, l.B}] = kind
	}
	shown, others := strings.Fields(strings.Join(rowOfGPU.FindAllString(smi(s, "topo", "-m"), -1), " ")), "none"
	for i, b := range here.machine.GPUs {
		for _, a := range here.machine.GPUs[:i] {
			if kind := read[[2]int{a.Index, b.Index}]; !slices.Contains(shown, kind) {
				others = fmt.Sprintf("%q of GPU %d and GPU %d", kind, a.Index, b.Index)
			}
		}
	}
	s.same("links that nvidia-smi topo -m does not show", "none", others)
}

// readAgain reads the GPUs as the plugin does each minute: that tells the same.
func readAgain(s *step) {
	reader := here.reader()
	first, err := reader.Read(s.Context())
	s.must(err)
	s.clock()
	again, err := reader.Read(s.Context())
	s.must(err)
	s.check("the GPUs, read twice", fmt.Sprintf("%+v", first), fmt.Sprintf("%+v", again), reflect.DeepEqual(first, again))
}

// onTheGPU holds what pkg/node/audit needs: the driver lists programs on the GPU with their memory, and tells clients
// of MPS from all others.
func onTheGPU(class string) func(*step) {
	return func(s *step) {
		s.shared("pod with a share", class, limitedUnits, 0, pod{name: "busy"})
		p := s.running("busy", "spin", "3")
		defer p.goOn()
		program, err := harness.FindProcess(func(cmdline, _ string) bool {
			return strings.HasPrefix(cmdline, "/cudaprobe\x00spin\x00")
		})
		s.must(err)
		all, err := gpunvml.NewUses(here.options()).Read(s.Context())
		if err != nil {
			s.Error(err)
		}
		servers, listed := 0, 0
		for _, use := range all {
			for _, on := range use.Processes {
				comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", on.PID))
				observed := fmt.Sprintf("%d MiB, client of MPS: %t", on.MemoryMiB, on.MPSClient)
				switch {
				case use.UUID != here.gpu().UUID:
				case on.PID == program.Pid:
					listed++
					client := class == "mps" && use.TellsMPS
					s.check("the program on the GPU, as the driver tells of it", fmt.Sprintf("more than 0 MiB, client of MPS: %t",
						client), observed, on.MemoryMiB > 0 && on.MPSClient == client)
				case strings.HasPrefix(string(comm), "nvidia-cuda-mps"):
					servers++
					s.seen("the server of MPS on the GPU", "", observed)
				}
			}
		}
		s.same("how often the driver lists the program", "1", strconv.Itoa(listed))
		if class == "mps" {
			s.same("servers of MPS on the GPU, by their names", "1", strconv.Itoa(servers))
		}
	}
}
