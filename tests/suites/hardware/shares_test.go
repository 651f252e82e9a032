// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"context"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// event waits for an Event of an object, and returns its message.
func (s *step) event(namespace, kind, name, reason string) (message string) {
	s.Helper()
	since := time.Now().Truncate(time.Second) // as Events have it
	harness.Eventually(s.T, fmt.Sprintf("an Event %s of %s %s", reason, kind, name), func(ctx context.Context) error {
		events, err := here.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: fmt.Sprintf(
			"involvedObject.kind=%s,involvedObject.name=%s,reason=%s", kind, name, reason)})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if !e.LastTimestamp.Time.Before(since) {
				message = e.Message
				return nil
			}
		}
		return fmt.Errorf("there are %d, all from before", len(events.Items))
	})
	return message
}

// overItsShare is the way from a process on a GPU to the Event of its pod (docs/audit.md).
func overItsShare(s *step) {
	s.template("one", share("share", 1, 0))
	s.start("pod with a share", pod{name: "over", template: "one"})
	const seconds = "20"
	p, err := s.launch("over", "main", "hold", fmt.Sprint(here.capMiB(2)), seconds)
	if err != nil {
		s.Fatal(err)
	}
	s.clock()
	p.goOn()
	s.check(fmt.Sprintf("program that holds 2 GiB with a share of 1: %d MiB", here.capMiB(2)),
		"an Event of the pod says so", s.event(s.ns.Name, "Pod", "over", v1alpha1.ReasonShareExceeded), true)
}

func legacyMemory(s *step) {
	s.start("pod with aliyun.com/gpu-mem: 3", pod{name: "legacy", limits: []string{"aliyun.com/gpu-mem", "3"}})
	env := s.ns.GPUEnv(s.T, "legacy", "main")
	for name, want := range map[string]string{"ALIYUN_COM_GPU_MEM_CONTAINER": "3",
		"ALIYUN_COM_GPU_MEM_DEV": fmt.Sprint(here.gpu().MemoryUnits())} {
		s.check(name, want, env[name], env[name] == want)
	}
	s.runs("CUDA program", "legacy")
}

func legacyTooMuch(s *step) {
	amount := fmt.Sprint(here.gpu().MemoryUnits() + 1)
	s.clock()
	s.create(pod{name: "large", limits: []string{"aliyun.com/gpu-mem", amount}})
	message := s.event(s.ns.Name, "Pod", "large", v1alpha1.ReasonClaimWaiting)
	s.check("pod with aliyun.com/gpu-mem: "+amount, "waits, and an Event says why", message, message != "")
}

func pluginKilled(s *step) {
	s.template("one", share("share", 1, 0))
	s.start("pod with a share", pod{name: "before", template: "one"})
	s.clock()
	// A pod that meets no plugin is tried again by the kubelet a minute and a half later.
	here.KillPlugin(s.T, here.node)()
	s.check("gpu-kubelet-plugin, after its end by SIGKILL", "serves again", "serves again", true)
	s.start("pod with another share", pod{name: "after", template: "one"})
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
		want, got := "gpu-"+strconv.Itoa(here.gpu().Index)+device, s.devices(mode)
		s.check("device of a claim of mode "+mode, want, got, got == want)
		if device == "" || mode == "share" {
			s.runs("CUDA program in mode "+mode, mode)
		} else {
			v := s.meminfo(mode)
			s.check("CUDA program in mode "+mode, fmt.Sprintf("at most %d MiB free", here.capMiB(2)), v.String(),
				v.freeMiB <= here.capMiB(2))
		}
		before = mode
	}
}

// switchUnderLoad changes the node's mode while a program uses a share.
func switchUnderLoad(label func(string)) func(*step) {
	return func(s *step) {
		const seconds = "10"
		s.template("share", share("share", 2, 0))
		s.template("mps", share("mps", 2, 0))
		s.start("pod in mode share", pod{name: "early", template: "share"})
		busy, err := s.launch("early", "main", "spin", seconds)
		if err != nil {
			s.Fatal(err)
		}
		busy.goOn()
		s.clock()
		label("mps")
		s.check("an Event of the node names the pod that it waits for", "GPUModeSwitchWaiting",
			s.event(metav1.NamespaceDefault, "Node", here.node, v1alpha1.ReasonModeSwitchWaiting), true)
		s.create(pod{name: "late", template: "mps"})
		answer, err := busy.line()
		if err != nil {
			s.Fatal(err)
		}
		v := s.view(answer)
		s.check("the program that was running", "runs on", v.String(), v.rate > 0)
		s.clock()
		s.ns.Delete(s.T, "early")
		s.ns.WaitRunning(s.T, "late")
		s.check("pod of mode mps, when the first has ended", "Running", "Running", true)
		s.isLimited("late", 2)
	}
}
