// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

func twoShares(s *step) {
	s.template("two", share("share", 2, 0))
	s.template("one", share("share", 1, 0))
	s.start("two pods with shares of one GPU", pod{name: "a", template: "two"}, pod{name: "b", template: "one"})
	s.hasGPUs("a", 1)
	s.seen("throughput of one program alone", "", s.spin(3, "a")[0].String())
	both := s.spin(3, "a", "b")
	s.check("two programs at the same time", "both get on", fmt.Sprintf("%s and %s", both[0], both[1]),
		both[0].rate > 0 && both[1].rate > 0)
	// What the mode says of itself: isolation "none".
	s.seen("allocation of 2 GiB with a share of 1: mode share limits nothing", granted,
		s.cuda("b", "alloc", fmt.Sprint(here.capMiB(2))))
}

// overItsShare is the way from a process on a GPU to the Event of its pod (docs/audit.md).
func overItsShare(s *step) {
	s.shared("pod with a share of 1 GiB", "share", 1, 0, pod{name: "over"})
	p := s.running("over", "hold", fmt.Sprint(here.capMiB(2)), "20")
	s.clock()
	p.goOn()
	s.ns.WaitPodEvent(s.T, "over", v1alpha1.ReasonShareExceeded, "")
	s.came(fmt.Sprintf("program that holds %d MiB with that", here.capMiB(2)), "an Event of the pod says so")
}

func legacyMemory(s *step) {
	s.start("pod with aliyun.com/gpu-mem: 3", pod{name: "legacy", limits: []string{"aliyun.com/gpu-mem", "3"}})
	env := s.ns.GPUEnv(s.T, "legacy", "main")
	for name, want := range map[string]string{"ALIYUN_COM_GPU_MEM_CONTAINER": "3",
		"ALIYUN_COM_GPU_MEM_DEV": fmt.Sprint(here.gpu().MemoryUnits())} {
		s.same(name, want, env[name])
	}
	s.runs("CUDA program", "legacy")
}

func pluginKilled(s *step) {
	s.shared("pod with a share", "share", 1, 0, pod{name: "before"})
	s.clock()
	// A pod that meets no plugin is tried again by the kubelet a minute and a half later.
	here.KillPlugin(s.T, here.node)()
	s.came("gpu-kubelet-plugin, after its end by SIGKILL", "serves again")
	s.shared("pod with another share", "share", 1, 0, pod{name: "after"})
	s.runs("CUDA program in the pod from before", "before")
}

// modeByClaim has one GPU in every mode, one after the other.
func modeByClaim(s *step) {
	before := ""
	for _, mode := range []string{"share", "mps", "exclusive", "core-mem", "cgpu"} {
		request, device := share(mode, 2, map[string]int{"core-mem": 50}[mode]), "-"+mode
		if mode == "exclusive" {
			request, device = harness.Matching(harness.Exclusive("gpu", 1), harness.OnGPU(here.gpu().Index)), ""
		}
		s.template(mode, request)
		s.create(pod{name: mode, template: mode})
		if before != "" {
			// The GPU is in the mode of the claim before.
			s.check(fmt.Sprintf("claim of mode %s, while the GPU is in mode %s", mode, before), "waits",
				s.ns.WaitUnschedulable(s.T, mode, " "), true)
			s.ns.Delete(s.T, before)
		}
		s.clock()
		s.ns.WaitRunning(s.T, mode)
		s.same("device of a claim of mode "+mode, "gpu-"+strconv.Itoa(here.gpu().Index)+device, s.devices(mode))
		if v := s.meminfo(mode); device == "" || mode == "share" {
			s.check("CUDA program in mode "+mode, "runs", v.String(), v.totalMiB > 0)
		} else {
			s.check("CUDA program in mode "+mode, fmt.Sprintf("at most %d MiB free", here.capMiB(2)), v.String(),
				v.freeMiB <= here.capMiB(2))
		}
		before = mode
	}
}

// switchUnderLoad changes the node's mode while a program uses a share.
func switchUnderLoad(s *step) {
	s.template("mps", share("mps", 2, 0))
	s.shared("pod in mode share", "share", 2, 0, pod{name: "early"})
	busy := s.running("early", "spin", "10")
	busy.goOn()
	s.clock()
	here.setMode("mps")
	here.WaitNodeEvent(s.T, here.node, s.began, v1alpha1.ReasonModeSwitchWaiting, "early")
	s.came("an Event of the node names the pod that it waits for", v1alpha1.ReasonModeSwitchWaiting)
	s.create(pod{name: "late", template: "mps"})
	answer, err := busy.line()
	s.must(err)
	v := s.view(answer)
	s.check("the program that was running", "runs on", v.String(), v.rate > 0)
	s.clock()
	s.ns.Delete(s.T, "early")
	s.ns.WaitRunning(s.T, "late")
	s.came("pod of mode mps, when the first has ended", "Running")
	s.isLimited("late", 2)
}

// limitedUnits leave room for half of them beside a CUDA context.
const limitedUnits = 4

// limited is for each mode that limits memory, by the name of its class, and of one that limits compute a percentage.
func limited(class string, cores int) func(*step) {
	return func(s *step) {
		s.shared(fmt.Sprintf("pod with a share of %d GiB", limitedUnits), class, limitedUnits, cores, pod{name: "limited"})
		s.isLimited("limited", limitedUnits)
	}
}

func legacyLimited(s *step) {
	s.start(fmt.Sprintf("pod with aliyun.com/gpu-mem: %d", limitedUnits),
		pod{name: "legacy", limits: []string{"aliyun.com/gpu-mem", strconv.Itoa(limitedUnits)}})
	s.isLimited("legacy", limitedUnits)
}

func legacyCores(s *step) {
	s.start("pod with gpu-mem and gpu-core.percentage: 20", pod{name: "legacy", limits: []string{
		"aliyun.com/gpu-mem", strconv.Itoa(limitedUnits), "aliyun.com/gpu-core.percentage", "20"}})
	s.same(threadVariable, "20", s.ns.GPUEnv(s.T, "legacy", "main")[threadVariable])
	s.isLimited("legacy", limitedUnits)
}

// Without a server for all users the second would wait until the first has left, which it does not before the second is
// ready.
func twoUsers(s *step) {
	s.shared("pods of uid 1001 and uid 1002 on one GPU", "mps", 2, 0, pod{name: "a", uid: 1001}, pod{name: "b", uid: 1002})
	views := s.spin(3, "a", "b")
	for i, v := range views {
		s.check(fmt.Sprintf("the program of uid %d, beside the other", 1001+i),
			fmt.Sprintf("gets on, with at most %d MiB free", here.capMiB(2)), fmt.Sprintf("%s, %d MiB free", v, v.freeMiB),
			v.rate > 0 && v.freeMiB <= here.capMiB(2))
	}
}

// With what a container has of the daemon, even root cannot tell it to quit.
func cannotQuit(s *step) {
	s.shared("pod of root", "mps", 2, 0, pod{name: "root"})
	before := s.status().Restarts
	// How it ends does not matter.
	said, _ := s.exec("root", "quit\n", "nvidia-cuda-mps-control")
	s.check(`"quit" by the control program in the container`, "refused", said,
		s.status().Restarts == before && strings.Contains(said, "privilege"))
	s.isLimited("root", 2)
}

// computeShared has programs with a quarter and three quarters of the GPU busy at once.
func computeShared(s *step) {
	const small, large = 25, 75
	s.shared("pod with 100 % of the compute", "core-mem", limitedUnits, 100, pod{name: "all"})
	alone := s.spin(3, "all")[0]
	s.seen("throughput with 100 %, alone", "", alone.String())
	s.ns.Delete(s.T, "all")
	s.template("small", share("core-mem", limitedUnits, small))
	s.template("large", share("core-mem", limitedUnits, large))
	s.start(fmt.Sprintf("pods with %d %% and %d %%", small, large), pod{name: "small", template: "small"},
		pod{name: "large", template: "large"})
	views := s.spin(4, "small", "large")
	for i, percent := range []float64{small, large} {
		observed := views[i].rate / alone.rate * 100
		s.check(fmt.Sprintf("throughput with %g %%, beside the other", percent), fmt.Sprintf("%g %%", percent),
			fmt.Sprintf("%.1f %%: %s", observed, views[i]), observed > percent/2)
	}
	ratio := views[1].rate / views[0].rate
	s.check("the larger over the smaller", "at least 1.5 times", fmt.Sprintf("%.2f times", ratio), ratio >= 1.5)
}

// notCounted asks what NVIDIA's documents leave open, of a share of 4 GiB and one of 1 GiB: docs/isolation.md has it.
func notCounted(s *step) {
	s.shared("pod with a share of 4 GiB", "mps", limitedUnits, 0, pod{name: "large"})
	s.shared("pod with a share of 1 GiB", "mps", 1, 0, pod{name: "small"})
	s.seen("managed memory, 1 GiB more than the share", "",
		s.cuda("large", "fill", "managed", fmt.Sprint(here.capMiB(limitedUnits)+1024)))
	half := fmt.Sprint(here.capMiB(limitedUnits) / 2)
	handle, err := s.running("large", "export", half).next()
	s.must(err)
	s.seen(half+" MiB of another container by CUDA IPC, in a share of 1 GiB", "", told(s.try("small", "import", handle)))
}
