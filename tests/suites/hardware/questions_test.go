// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim/memory"
)

// memoryLimits is the name of the groups about memory limits by control group, which NVIDIA's driver has since release
// 615. No such driver was at hand when they were written: they ask, and what each answer means is in
// docs/internals/hardware.md.
const memoryLimits = "memory limits by control group"

// needsLimits looks for a function of release 615. go-nvml ends a program that calls what the library lacks.
func needsLimits() string {
	const set = "nvmlDeviceSetMemoryLimits_v1"
	if here.lib.Extensions().LookupSymbol(set) == nil {
		return ""
	}
	return fmt.Sprintf("symbol absent: driver %s has no %s, which came with release 615", here.machine.DriverVersion, set)
}

// question is one of those that only a driver of release 615 answers: there is no right or wrong.
type question struct {
	what string
	// acts are what is done, one after the other. What each has answered is the answer.
	acts []act
}

type act func(*ground) (answer string, err error)

// ground is what a question is asked of: a pod on the GPU, which nothing limits.
type ground struct {
	*step
	pod string
	// groups are the directories of control groups, by name.
	groups map[string]string
	// limited are the groups that have limits now.
	limited []string
	// program is the last one that was started, and handle that of memory which one has exported.
	program *program
	handle  string
}

// limit sets the hard limit of a control group on the GPU.
func limit(group string, mib int64) act {
	return func(g *ground) (string, error) {
		g.limited = append(g.limited, group)
		return fmt.Sprintf("%s %d MiB", group, mib), g.set(g.groups[group], uint64(mib)<<20)
	}
}

// cuda runs a CUDA program in a container to its first answer. It holds what it has until the question is answered.
func cuda(container string, args ...string) act {
	return func(g *ground) (answer string, err error) {
		if g.program, err = g.launch(g.pod, container, args...); err != nil {
			return "", err
		}
		return g.program.next()
	}
}

// fill fills memory in blocks of 2 MiB, as far as there is room: "filled N total N: E".
func fill(container, kind string, mib int64) act {
	return cuda(container, "fill", kind, fmt.Sprint(mib))
}

func oneMoreBlock(g *ground) (string, error) { return g.program.next() }

func export(container string, mib int64) act {
	return func(g *ground) (_ string, err error) {
		g.handle, err = cuda(container, "export", fmt.Sprint(mib))(g)
		return "exported", err
	}
}

func imported(container string) act {
	return func(g *ground) (string, error) { return cuda(container, "import", g.handle)(g) }
}

// published is what the plugin makes of limits: it tries one on each GPU when it starts.
func published(g *ground) (string, error) {
	answer := "memoryLimits: none"
	for _, d := range here.Devices(g.T, here.node, "are offered", func([]resourceapi.Device) error { return nil }) {
		if kind := d.Attributes[v1alpha1.AttrMemoryLimits].StringValue; kind != nil {
			answer = "memoryLimits: " + *kind
		}
	}
	lines, err := here.PluginLog(g.Context(), here.node, metav1.NewTime(time.Unix(0, 0)))
	for _, line := range lines {
		if strings.Contains(strings.ToLower(line), "memory limit") {
			answer += "; " + strings.TrimSpace(line)
		}
	}
	return answer, err
}

// contextMiB is more than a CUDA context was seen to take (560 to 816 MiB).
const contextMiB = 1024

// questions are asked one after the other. One more takes a node in mode mps: whoPays.
func questions() []question {
	const programs = 4
	all := here.capMiB(here.gpu().MemoryUnits())
	quarter := fill("main", "device", all/programs)
	return []question{
		{"who counts the memory", []act{published}},
		{"4096 MiB on the container: fill 8192", []act{limit("main", 4096), fill("main", "device", 8192)}},
		{"4096 MiB on the pod: two containers fill 3072 each",
			[]act{limit("pod", 4096), fill("main", "device", 3072), fill("second", "device", 3072)}},
		{"2048 MiB on the pod, 4096 on its container: fill 8192",
			[]act{limit("pod", 2048), limit("main", 4096), fill("main", "device", 8192)}},
		{"2048 MiB on the container: fill 8192 of managed memory",
			[]act{limit("main", 2048), fill("main", "managed", 8192)}},
		{"1024 MiB, imported by a container with 512",
			[]act{limit("main", 4096), limit("second", 512+contextMiB), export("main", 1024), imported("second")}},
		{"a limit of 1024 MiB on a container that holds 4000",
			[]act{limit("main", 8192), fill("main", "device", 4000), limit("main", 1024), oneMoreBlock}},
		{"an ordinary container writes its own limit",
			[]act{cuda("main", "write", "/sys/fs/cgroup/dmem.max", "nvidia/0 max")}},
		{fmt.Sprintf("all that is published, %d MiB, filled by %d programs", all, programs),
			[]act{limit("pod", all), quarter, quarter, quarter, quarter}},
	}
}

// askAll asks all questions of one pod.
func askAll(s *step) {
	s.shared("pod with two containers", "share", 1, 0, pod{name: "asked", more: true})
	main := s.groupOf(s.ns.ContainerPID(s.T, "asked", "main"))
	groups := map[string]string{"pod": filepath.Dir(main), "main": main,
		"second": s.groupOf(s.ns.ContainerPID(s.T, "asked", "second"))}
	for _, q := range questions() {
		s.ask(q, ground{pod: "asked", groups: groups})
	}
}

// whoPays has a client of MPS hold memory. By the driver's own table nothing is counted before there is a limit.
func whoPays(s *step) {
	s.shared("pod with a share", "mps", limitedUnits, 0, pod{name: "asked"})
	all := here.gpu().MemoryMiB
	s.ask(question{"who is charged", []act{limit("client", all), limit("daemon", all), fill("main", "device", 1000)}},
		ground{pod: "asked", groups: map[string]string{"daemon": s.groupOf(s.daemon().Pid),
			"client": s.groupOf(s.ns.ContainerPID(s.T, "asked", "main"))}})
}

// ask has a row with what was answered, and what the limits are then. They are cleared before the next question.
func (s *step) ask(q question, of ground) {
	var answers []string
	s.Run(q.what, func(t *testing.T) {
		of.step = &step{T: t, ns: s.ns, mode: s.mode}
		for _, do := range q.acts {
			answer, err := do(&of)
			answers = append(answers, told(answer, err))
			if err != nil {
				break
			}
		}
		slices.Sort(of.limited)
		for _, group := range slices.Compact(of.limited) {
			answers = append(answers, group+": "+s.reads(of.groups[group]))
		}
	})
	s.seen(q.what, "", strings.Join(answers, "; "))
	for _, dir := range of.groups {
		// Where the driver counts, there may be no limit to take away.
		if err := s.set(dir, nvml.DEVICE_MEMORY_LIMIT_MAX); err != nil {
			s.Logf("the limit of %s is not cleared: %v", dir, err)
		}
	}
}

// set sets the hard limit of a control group on the GPU, in bytes.
func (s *step) set(dir string, hard uint64) error {
	if ret := handle(s, here.gpu().UUID).SetMemoryLimits_v1(dir, 0, hard); ret != nvml.SUCCESS {
		return ret
	}
	return nil
}

// reads is what NVML tells of a control group.
func (s *step) reads(dir string) string {
	got, ret := handle(s, here.gpu().UUID).GetMemoryLimits_v1(dir)
	switch {
	case ret != nvml.SUCCESS:
		return ret.Error()
	case got.HardLimit == nvml.DEVICE_MEMORY_LIMIT_MAX:
		return fmt.Sprintf("%d MiB without a limit", got.CurrentUsed>>20)
	default:
		return fmt.Sprintf("%d of %d MiB", got.CurrentUsed>>20, got.HardLimit>>20)
	}
}

// told is what was answered, or why nothing was.
func told(answer string, err error) string {
	if err != nil {
		return err.Error()
	}
	return answer
}

// groupOf is the control group of a process.
func (s *step) groupOf(pid int) string {
	s.Helper()
	dir, err := memory.Dir(pid)
	s.must(err)
	return dir
}
