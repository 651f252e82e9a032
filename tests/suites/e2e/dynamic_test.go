// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const dynamicNode = "dynamic"

// inMode is a request of a mode for so much of a GPU; a whole GPU where the
// mode has no other.
func inMode(m mode.Mode, memory, cores string) resourceapi.DeviceRequest {
	switch m {
	case mode.Exclusive:
		return harness.Exclusive("gpu", 1)
	case mode.CoreMem:
		return harness.Capped("core-mem", -1, "memory", memory, "cores", cores)
	default:
		return harness.Capped(string(m), -1, "memory", memory)
	}
}

// offersEveryMode waits until node dynamic is as it is meant to be: its GPUs in
// some order, each in all modes.
func offersEveryMode(t *testing.T) {
	t.Helper()
	var want []string
	for _, g := range harness.DeviceNames(8, "gpu-%d") {
		want = append(want, g, g+"-share", g+"-cgpu", g+"-core-mem", g+"-mps")
	}
	slices.Sort(want)
	cluster.Devices(t, dynamicNode, "are all GPUs in every mode, and open", func(devices []resourceapi.Device) error {
		var got []string
		for _, device := range devices {
			if len(device.Taints) > 0 {
				return fmt.Errorf("device %s has the taints %v", device.Name, device.Taints)
			}
			got = append(got, device.Name)
		}
		slices.Sort(got)
		return expect.Diff(want, got)
	})
}

// All modes side by side on one node, each on a GPU of its own; and when one
// has ended, its GPU is another's.
func TestFiveModesOnOneNode(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, dynamicNode)
	offersEveryMode(t)
	ns := cluster.Namespace(t)
	modes := mode.Dynamic.ServedModes()
	for _, m := range modes {
		ns.Template(t, string(m), harness.Requests(inMode(m, "80Gi", "100")))
		ns.Template(t, "part-"+string(m), harness.Requests(inMode(m, "2Gi", "5")))
		ns.Run(t, harness.Pod("part-"+string(m), dynamicNode, harness.FromTemplate("part-"+string(m))))
	}
	gpuOf := map[string]mode.Mode{}
	for _, m := range modes {
		device := hasMode(t, ns, "part-"+string(m), m)
		g := strings.Join(strings.Split(device, "-")[:2], "-")
		if other, taken := gpuOf[g]; taken {
			t.Errorf("%s is in the modes %s and %s", g, other, m)
		}
		gpuOf[g] = m
	}
	limit := []string{"CUDA_MPS_PIPE_DIRECTORY", pipeDir, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=2048M"}
	env := func(m mode.Mode, more ...string) {
		t.Helper()
		pod := "part-" + string(m)
		ns.HasEnv(t, pod, "main", harness.WithEnv(harness.LegacyEnv(2, 80, 2, ns.Granted(t, pod)[0].GPU.Index), more...))
	}
	ns.HasEnv(t, "part-exclusive", "main", map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"})
	env(mode.Share)
	env(mode.CGPU, limit...)
	env(mode.MPS, limit...)
	env(mode.CoreMem, append(limit, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5", "ALIYUN_COM_GPU_SCHD_WEIGHT", "1")...)

	// A second share joins the first.
	ns.Run(t, harness.Pod("second", dynamicNode, harness.FromTemplate("part-share")))
	if first, second := ns.Granted(t, "part-share")[0].GPU.Index, ns.Granted(t, "second")[0].GPU.Index; first != second {
		t.Errorf("the shares lie on the GPUs %d and %d", first, second)
	}
	for _, m := range modes {
		ns.Delete(t, "part-"+string(m))
	}
	ns.Delete(t, "second")
	eachTakesOver(t, ns, modes)
}

// eachTakesOver fills the node with claims for all of a GPU, and lets each mode
// in turn have the GPU that another one leaves.
func eachTakesOver(t *testing.T, ns *harness.Namespace, modes []mode.Mode) {
	t.Helper()
	for _, m := range modes {
		ns.Run(t, harness.Pod("all-"+string(m), dynamicNode, harness.FromTemplate(string(m))))
	}
	for i := range 8 - len(modes) {
		ns.Run(t, harness.Pod(fmt.Sprintf("rest-%d", i), dynamicNode, harness.FromTemplate("exclusive")))
	}
	for i, m := range modes {
		next := modes[(i+1)%len(modes)]
		pod := "after-" + string(m)
		ns.Create(t, harness.Pod(pod, dynamicNode, harness.FromTemplate(string(next))))
		ns.WaitUnschedulable(t, pod, noRoom)
		left := ns.Granted(t, "all-"+string(m))[0].GPU.Index
		ns.Delete(t, "all-"+string(m))
		ns.WaitRunning(t, pod)
		hasMode(t, ns, pod, next)
		if got := ns.Granted(t, pod)[0].GPU.Index; got != left {
			t.Errorf("pod %s of mode %s has GPU %d, want GPU %d, which mode %s left", pod, next, got, left, m)
		}
	}
}

// hasMode checks that a pod was granted a device of a mode and sees its GPU, and
// returns the device.
func hasMode(t *testing.T, ns *harness.Namespace, pod string, m mode.Mode) string {
	t.Helper()
	grants := ns.Granted(t, pod)
	device := grants[0].GPU.Device
	want := fmt.Sprintf("gpu-%d", grants[0].GPU.Index)
	if m != mode.Exclusive {
		want += "-" + string(m)
	}
	if len(grants) != 1 || device != want {
		t.Errorf("pod %s was granted %v, want one device of mode %s", pod, grants, m)
	}
	ns.SeesItsGPUs(t, pod, "main", grants)
	return device
}

// Pods of all modes come and go, more than fit: no GPU is ever held in two.
func TestModesNeverMeetOnAGPU(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, dynamicNode)
	offersEveryMode(t)
	ns := cluster.Namespace(t)
	things := []func(context.Context) error{neverInTwoModes(dynamicNode, func(mode.Mode) {})}
	for _, m := range mode.Dynamic.ServedModes() {
		ns.Template(t, string(m), harness.Requests(inMode(m, "30Gi", "35")))
		things = append(things, comeAndGo(ns, dynamicNode, string(m)))
	}
	end := harness.Meanwhile(t, things...)
	// Each mode has its turn on each GPU by then.
	const enough = 30
	modes, claims := map[mode.Mode]bool{}, map[types.UID]bool{}
	harness.Eventually(t, fmt.Sprintf("%d claims to have been prepared, of all modes", enough),
		func(context.Context) error {
			records, err := cluster.Records(dynamicNode)
			if err != nil {
				return err
			}
			for _, record := range records {
				claims[record.UID] = true
				for _, grant := range record.Grants {
					modes[grant.Mode] = true
				}
			}
			if len(claims) < enough || len(modes) < len(mode.Dynamic.ServedModes()) {
				return fmt.Errorf("%d claims were, of the modes %v", len(claims), modes)
			}
			return nil
		})
	end()
}
