// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
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
	// answer is that to the question that is being asked.
	answer string
}

// question is one of those that only a driver of release 615 answers: there is no right or wrong.
type question struct {
	what string
	ask  func(*ground) (answer string)
	// byHand is what to type where asking would change the machine.
	byHand string
}

// askAll asks all questions of one pod. What one has set is cleared before the next.
func askAll(s *step) {
	s.shared("pod with two containers", "share", 1, 0, pod{name: "asked", more: true})
	root, err := memory.Tree()
	s.must(err)
	g := ground{step: s, root: root, leaf: s.leaf("asked", "main"), second: s.leaf("asked", "second")}
	g.pod = filepath.Dir(g.leaf)
	_, err = os.Stat(filepath.Join(g.leaf, "dmem.max"))
	g.dmem = err == nil
	for _, q := range questions() {
		if q.byHand != "" {
			s.row(q.what, "", "by hand: "+q.byHand, report.NotRun)
			continue
		}
		g := g
		s.Run(q.what, func(t *testing.T) {
			g.step = &step{T: t, ns: s.ns, mode: s.mode}
			g.answer = q.ask(&g)
		})
		s.seen(q.what, "", g.answer)
		if _, err := os.Stat(g.leaf); err != nil {
			return
		}
		// Where the driver counts, there may be no limits to take away.
		if err := errors.Join(s.set(g.leaf, noLimit), s.set(g.second, noLimit), s.set(g.pod, noLimit)); err != nil {
			s.Log("limits are not cleared: ", err)
		}
	}
}

// has ends a question that cannot be asked any further.
func (g *ground) has(err error) {
	if err != nil {
		g.answer = "no answer: " + err.Error()
		g.SkipNow()
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

// reads is what NVML tells of a control group, with its hard limit.
func (s *step) reads(dir string) (all string, hardMiB int64) {
	got, ret := handle(s, here.gpu().UUID).GetMemoryLimits_v1(dir)
	if ret != nvml.SUCCESS {
		return ret.Error(), noLimit
	}
	hard := "max"
	hardMiB = noLimit
	if got.HardLimit != nvml.DEVICE_MEMORY_LIMIT_MAX {
		hardMiB = int64(got.HardLimit >> 20)
		hard = fmt.Sprint(hardMiB)
	}
	return fmt.Sprintf("soft %d, hard %s, used %d MiB", got.SoftLimit>>20, hard, got.CurrentUsed>>20), hardMiB
}

// get is reads without the number.
func (s *step) get(dir string) string {
	all, _ := s.reads(dir)
	return all
}

// told is what was answered, or why nothing was.
func told(answer string, err error) string {
	if err != nil {
		return err.Error()
	}
	return answer
}

// leaf is the control group of a pod's container, which runs, and groupOf that of a process.
func (s *step) leaf(name, container string) string {
	s.Helper()
	return s.groupOf(s.ns.ContainerPID(s.T, name, container))
}

func (s *step) groupOf(pid int) string {
	s.Helper()
	dir, err := memory.Dir(pid)
	s.must(err)
	return dir
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
	answer := fmt.Sprintf("%s; client: %s; daemon: %s", filled, s.get(client), s.get(daemon))
	s.seen("who is charged", "", told(answer, errors.Join(err, fillErr, s.set(daemon, noLimit))))
}

// questions are asked one after the other. One more takes a node in mode mps: whoPays.
func questions() []question {
	const programs = 4
	published := here.capMiB(here.gpu().MemoryUnits())
	quarter := load{"main", "device", published / programs}
	return []question{
		{what: "who counts the memory", ask: askCapacity},
		{what: "which controllers the container's control group has", ask: askControllers},
		{what: "a hard limit of 4096 MiB on the container: fill 8192",
			ask: filled(limits{leaf: 4096}, load{"main", "device", 8192})},
		{what: "a hard limit of 4096 MiB on the pod: two containers fill 3072 each",
			ask: filled(limits{pod: 4096}, load{"main", "device", 3072}, load{"second", "device", 3072})},
		{what: "2048 MiB on the pod, 4096 on its container: fill 8192",
			ask: filled(limits{pod: 2048, leaf: 4096}, load{"main", "device", 8192})},
		{what: "2048 MiB on the container: fill 8192 of managed memory",
			ask: filled(limits{leaf: 2048}, load{"main", "managed", 8192})},
		{what: "1024 MiB, imported by a container with 512", ask: askImport},
		{what: "a limit of 1024 MiB on a container that holds 4000", ask: askTighter},
		{what: "a limit meets new control groups after its own has gone", ask: askStale},
		{what: "what the first program on the GPU is charged with, without persistence mode",
			byHand: "nvidia-smi -pm 0; nvidia-smi -L in a limited container; cat dmem.current"},
		{what: "limits after kubelet is restarted", ask: askRestart},
		{what: "limits after the driver is loaded again",
			byHand: "restart the driver's container, then nvidia-smi memory-limits --get"},
		{what: "who can write the limit of its own container", ask: askWrite},
		{what: "whether the plugin can set limits from its pod", ask: askPlugin},
		{what: "with what rights the hook runs",
			byHand: "a pod in mode cgpu: what kubectl describe pod says where it does not start"},
		{what: fmt.Sprintf("all that is published, %d MiB, filled by %d programs", published, programs),
			ask: filled(limits{pod: published}, quarter, quarter, quarter, quarter)},
		{what: "a soft limit of 1024 MiB, after its pod was deleted", ask: askSoft},
	}
}

// limits are hard ones, in MiB; 0 is none.
type limits struct{ pod, leaf int64 }

// load is what a program in a container takes.
type load struct {
	container, kind string
	mib             int64
}

// filled has programs fill memory one after the other, below limits.
func filled(l limits, loads ...load) func(*ground) string {
	return func(g *ground) string {
		if l.pod > 0 {
			g.has(g.set(g.pod, l.pod))
		}
		if l.leaf > 0 {
			g.has(g.set(g.leaf, l.leaf))
		}
		answers := []string{"reads " + g.get(g.leaf)}
		for _, one := range loads {
			answer, _, err := g.fill("asked", one.container, one.kind, one.mib)
			// An error is that there is no room for another context.
			answers = append(answers, told(answer, err))
		}
		return strings.Join(append(answers, "reads "+g.get(g.leaf)), "; then ")
	}
}

func askCapacity(g *ground) string {
	content, err := os.ReadFile(filepath.Join(g.root, "dmem.capacity"))
	if !errors.Is(err, os.ErrNotExist) {
		g.has(err)
	}
	address := strings.ToLower(here.gpu().PCIBusID)
	for line := range strings.Lines(string(content)) {
		if strings.Contains(strings.ToLower(line), strings.TrimLeft(address, "0")) {
			return strings.TrimSpace(line)
		}
	}
	return "dmem.capacity has no line of " + address
}

func askControllers(g *ground) string {
	leaf, err := os.ReadFile(filepath.Join(g.leaf, "cgroup.controllers"))
	g.has(err)
	root, err := os.ReadFile(filepath.Join(g.root, "cgroup.controllers"))
	g.has(err)
	has, all := strings.Fields(string(leaf)), strings.Fields(string(root))
	return fmt.Sprintf("%d of the root's %d: %s", len(has), len(all), strings.Join(has, " "))
}

// contextMiB is more than a CUDA context was seen to take (560 to 816 MiB).
const contextMiB = 1024

func askImport(g *ground) string {
	g.has(errors.Join(g.set(g.leaf, 4096), g.set(g.second, 512+contextMiB)))
	handle, err := g.try("asked", "export", "1024")
	g.has(err)
	importer, err := g.launch("asked", "second", "import", handle)
	g.has(err)
	before := g.get(g.second)
	said, err := importer.next()
	g.has(err)
	return fmt.Sprintf("%s; before %s, after %s", said, before, g.get(g.second))
}

func askTighter(g *ground) string {
	g.has(g.set(g.leaf, 8192))
	filled, p, err := g.fill("asked", "main", "device", 4000)
	g.has(err)
	refused := g.set(g.leaf, 1024)
	more, err := p.next()
	g.has(err)
	return fmt.Sprintf("%s; set: %v; one more block: %s", filled, refused, more)
}

// askStale looks at many new control groups for an old limit.
func askStale(g *ground) string {
	const tried = 2000
	dir := filepath.Join(g.pod, "gpushare-asked")
	g.has(errors.Join(os.Mkdir(dir, 0o755), g.set(dir, 512), os.Remove(dir)))
	found := 0
	for range tried {
		g.has(os.Mkdir(dir, 0o755))
		if _, hardMiB := g.reads(dir); hardMiB != noLimit {
			found++
		}
		g.has(os.Remove(dir))
	}
	// Whatever stays of it is not left to others.
	g.has(errors.Join(os.Mkdir(dir, 0o755), g.set(dir, noLimit), os.Remove(dir)))
	return fmt.Sprintf("%d of %d new control groups had a limit", found, tried)
}

func askRestart(g *ground) string {
	g.has(g.set(g.leaf, 4096))
	here.KillKubelet(g.T, here.node)
	harness.Eventually(g.T, "the kubelet to know its pods again", func(ctx context.Context) error {
		_, logErr := here.PluginLog(ctx, here.node, metav1.Now())
		_, execErr := g.ns.Exec(g.T, "asked", "main", "env")
		return errors.Join(logErr, execErr)
	})
	return g.get(g.leaf)
}

// askWrite tries files, which only dmem has.
func askWrite(g *ground) string {
	if !g.dmem {
		return "no files: NVIDIA's table is set through NVML, with CAP_SYS_ADMIN"
	}
	g.create(pod{name: "privileged", privileged: true})
	g.ns.WaitRunning(g.T, "privileged")
	ordinary, err := g.try("asked", "write", "/sys/fs/cgroup/dmem.max", "nvidia/0 max")
	g.has(err)
	privileged, err := g.try("privileged", "write",
		filepath.Join(g.step.leaf("privileged", "main"), "dmem.max"), "nvidia/0 max")
	g.has(err)
	return fmt.Sprintf("an ordinary pod: %s; a privileged one: %s", ordinary, privileged)
}

// askPlugin has the plugin's own words: it tries limits when it starts.
func askPlugin(g *ground) string {
	lines, err := here.PluginLog(g.Context(), here.node, metav1.NewTime(time.Unix(0, 0)))
	g.has(err)
	said := "nothing of memory limits"
	for _, line := range lines {
		if strings.Contains(strings.ToLower(line), "memory limit") {
			said = strings.TrimSpace(line)
		}
	}
	return said
}

// askSoft deletes a pod with a soft limit, and looks at what those above promise then.
func askSoft(g *ground) string {
	above := filepath.Dir(g.pod)
	before := g.get(above)
	g.has(g.setBoth(g.leaf, 1024, 4096))
	g.ns.Delete(g.T, "asked")
	return fmt.Sprintf("above: %s, before %s", g.get(above), before)
}
