// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim/memory"
)

// memoryLimits is the name of the groups about memory limits by control group, which NVIDIA's driver has since release
// 615. No such driver was at hand when they were written: they ask, and what each answer means is in
// docs/internals/hardware.md.
const memoryLimits = "memory limits by control group"

// needsLimits looks for functions of release 615. go-nvml ends a program that calls what the library lacks.
func needsLimits() string {
	for _, name := range []string{"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"} {
		if here.lib.Extensions().LookupSymbol(name) != nil {
			return fmt.Sprintf("symbol absent: driver %s has no %s, which came with release 615", here.machine.DriverVersion,
				name)
		}
	}
	return ""
}

// ground is what the questions are asked of: a pod with two containers on the GPU, which nothing limits.
type ground struct {
	*step
	// root is that of the tree of control groups, pod that of the pod, and leaf and second those of its containers.
	root, pod, leaf, second string
	dmem                    bool
}

// question is one of those that only a driver of release 615 answers: there is no right or wrong.
type question struct {
	what string
	ask  func(*ground) (answer string, err error)
	// byHand is what to type where asking would change the machine.
	byHand string
}

// askAll asks all questions of one pod. What one has set is cleared before the next.
func askAll(s *step) {
	s.shared("pod with two containers", "share", 1, 0, pod{name: "asked", more: true})
	g := ground{step: s, root: s.tree()}
	g.leaf, g.second = s.leaf("asked", "main"), s.leaf("asked", "second")
	g.pod = filepath.Dir(g.leaf)
	_, err := os.Stat(filepath.Join(g.leaf, "dmem.max"))
	g.dmem = err == nil
	for _, q := range questions() {
		s.Run(q.what, func(t *testing.T) {
			if q.byHand != "" {
				t.Skip("by hand: " + q.byHand)
			}
			t.Attr(report.SeenKey, "")
			g := g
			g.step = &step{T: t, ns: s.ns}
			answer, err := q.ask(&g)
			if err != nil {
				answer = "no answer: " + err.Error()
			}
			t.Log(answer)
			if _, err := os.Stat(g.leaf); err != nil {
				return
			}
			// Where the driver counts, there may be no limits to take away.
			if err := errors.Join(g.set(g.leaf, noLimit), g.set(g.second, noLimit), g.set(g.pod, noLimit)); err != nil {
				t.Log("limits are not cleared: ", err)
			}
		})
	}
}

// noLimit is a hard limit that is none.
const noLimit = -1

// set sets the hard limit of a control group on the GPU.
func (s *step) set(dir string, hardMiB int64) error { return s.setBoth(dir, 0, hardMiB) }

func (s *step) setBoth(dir string, softMiB, hardMiB int64) error {
	hard := uint64(hardMiB) << 20
	if hardMiB < 0 {
		hard = nvml.DEVICE_MEMORY_LIMIT_MAX
	}
	if ret := handle(s, here.gpu().UUID).SetMemoryLimits_v1(dir, uint64(softMiB)<<20, hard); ret != nvml.SUCCESS {
		return ret
	}
	return nil
}

// memoryLimit is what NVML tells of a control group.
type memoryLimit struct{ softMiB, hardMiB, usedMiB int64 }

func (s *step) get(dir string) (memoryLimit, error) {
	got, ret := handle(s, here.gpu().UUID).GetMemoryLimits_v1(dir)
	if ret != nvml.SUCCESS {
		return memoryLimit{}, ret
	}
	l := memoryLimit{int64(got.SoftLimit >> 20), int64(got.HardLimit >> 20), int64(got.CurrentUsed >> 20)}
	if got.HardLimit == nvml.DEVICE_MEMORY_LIMIT_MAX {
		l.hardMiB = noLimit
	}
	return l, nil
}

func (l memoryLimit) String() string {
	hard := "max"
	if l.hardMiB != noLimit {
		hard = fmt.Sprint(l.hardMiB)
	}
	return fmt.Sprintf("soft %d, hard %s, used %d MiB", l.softMiB, hard, l.usedMiB)
}

// tree is where the machine has its control groups of version 2, which the driver needs.
func (s *step) tree() string {
	s.Helper()
	root, err := memory.Tree()
	s.must(err)
	return root
}

// leaf is the control group of a pod's container, which runs, and groupOf that of a process.
func (s *step) leaf(name, container string) string {
	s.Helper()
	return s.groupOf(s.ns.ContainerPID(s.T, name, container))
}

func (s *step) groupOf(pid int) string {
	s.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(content)) {
		if path, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			return filepath.Join(s.tree(), path)
		}
	}
	s.Fatalf("process %d is in no control group of version 2: %v", pid, err)
	return ""
}

// fill has a program in a container fill memory, and keep it until it is let go. It says "filled N total N: E".
func (s *step) fill(pod, container, kind string, mib int64) (answer string, p *program, err error) {
	if p, err = s.launch(pod, container, "fill", kind, fmt.Sprint(mib)); err != nil {
		return "", nil, err
	}
	answer, err = p.next()
	return answer, p, err
}

// whoPays has a client of MPS hold memory, and looks at whose control group is charged.
func whoPays(s *step) {
	s.shared("pod with a share", "mps", limitedUnits, 0, pod{name: "client"})
	client, daemon := s.leaf("client", "main"), s.groupOf(s.daemon().Pid)
	// By the driver's own table nothing is counted before there is a limit.
	err := errors.Join(s.set(client, here.gpu().MemoryMiB), s.set(daemon, here.gpu().MemoryMiB))
	filled, _, fillErr := s.fill("client", "main", "device", 1000)
	pays, clientErr := s.get(client)
	other, daemonErr := s.get(daemon)
	answer := fmt.Sprintf("%s; client: %s; daemon: %s", filled, pays, other)
	if err := errors.Join(err, fillErr, clientErr, daemonErr, s.set(daemon, noLimit)); err != nil {
		answer = "no answer: " + err.Error()
	}
	s.seen("who is charged", "", answer)
}
