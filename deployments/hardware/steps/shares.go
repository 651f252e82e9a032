// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/kube"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// allocated are the devices of a pod's claim.
func (r *run) allocated(ctx context.Context, pod string) ([]string, error) {
	claim, err := r.claim(ctx, pod)
	if err != nil {
		return nil, err
	}
	var devices []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		devices = append(devices, result.Device)
	}
	return devices, nil
}

// claim is a pod's, which is allocated.
func (r *run) claim(ctx context.Context, pod string) (kube.Claim, error) {
	var claims kube.List[kube.Claim]
	if err := r.Kubectl.Get(ctx, &claims, "resourceclaims"); err != nil {
		return kube.Claim{}, err
	}
	for _, claim := range claims.Items {
		if len(claim.Status.ReservedFor) == 1 && claim.Status.ReservedFor[0].Name == pod &&
			claim.Status.Allocation != nil {
			return claim, nil
		}
	}
	return kube.Claim{}, fmt.Errorf("pod %s has no claim that is allocated", pod)
}

func twoShares(ctx context.Context, r *run) error {
	index := r.gpu().Index
	if err := r.apply(ctx, template("two", onGPU(shareOf("share", 2, ""), index)), template("one",
		onGPU(shareOf("share", 1, ""), index))); err != nil {
		return err
	}
	if err := r.start(ctx, "two pods with shares of one GPU", pod{name: "a", template: "two"}, pod{name: "b",
		template: "one"}); err != nil {
		return err
	}
	if err := r.checkGPUs(ctx, "a", 1); err != nil {
		return err
	}
	alone, err := r.spin(ctx, 3, "a")
	if err != nil {
		return err
	}
	r.seen("throughput of one program alone", "", alone[0].String())
	both, err := r.spin(ctx, 3, "a", "b")
	if err != nil {
		return err
	}
	r.check(
		"two programs at the same time",
		"both get on",
		fmt.Sprintf("%s and %s", both[0], both[1]),
		both[0].rate > 0 && both[1].rate > 0,
	)
	// What the mode says of itself: isolation "none".
	answer, err := r.cuda(ctx, "b", "alloc", fmt.Sprint(r.capMiB(2)))
	if err != nil {
		return err
	}
	r.seen("allocation of 2 GiB with a share of 1: mode share limits nothing", granted, answer)
	return nil
}

// overItsShare is the way from a process on a GPU to the Event of its pod (docs/audit.md).
func overItsShare(ctx context.Context, r *run) error {
	if err := r.apply(ctx, template("one", onGPU(shareOf("share", 1, ""), r.gpu().Index))); err != nil {
		return err
	}
	if err := r.start(ctx, "pod with a share", pod{name: "over", template: "one"}); err != nil {
		return err
	}
	const seconds = 20
	p, err := r.Kubectl.Start(ctx, "over", probe, "hold", fmt.Sprint(r.capMiB(2)), fmt.Sprint(seconds))
	if err != nil {
		return err
	}
	defer p.End()
	began := time.Now()
	if err := p.GoOn(); err != nil {
		return err
	}
	message, err := r.Kubectl.WaitEvent(ctx, seconds*time.Second, "Pod", "over", v1alpha1.ReasonShareExceeded, "", began)
	if err != nil {
		return err
	}
	r.check(fmt.Sprintf("program that holds 2 GiB with a share of 1: %d MiB", r.capMiB(2)),
		"an Event of the pod says so", message, true)
	r.took(began)
	return nil
}

func legacyMemory(ctx context.Context, r *run) error {
	p := pod{name: "legacy", limits: map[string]string{"aliyun.com/gpu-mem": "3"}}
	if err := r.start(ctx, "pod with aliyun.com/gpu-mem: 3", p); err != nil {
		return err
	}
	env, err := r.environment(ctx, p.name)
	if err != nil {
		return err
	}
	for _, want := range []struct{ name, value string }{
		{"ALIYUN_COM_GPU_MEM_CONTAINER", "3"}, {"ALIYUN_COM_GPU_MEM_DEV", fmt.Sprint(r.gpu().MemoryUnits())},
	} {
		r.check(want.name, want.value, env[want.name], env[want.name] == want.value)
	}
	v, err := r.meminfo(ctx, p.name)
	if err != nil {
		return err
	}
	r.check("CUDA program", "runs", v.String(), v.totalMiB > 0)
	return nil
}

func legacyTooMuch(ctx context.Context, r *run) error {
	began := time.Now()
	amount := fmt.Sprint(r.gpu().MemoryUnits() + 1)
	if err := r.create(ctx, pod{name: "large", limits: map[string]string{"aliyun.com/gpu-mem": amount}}); err != nil {
		return err
	}
	message, err := r.Kubectl.WaitEvent(ctx, r.Patience, "Pod", "large", v1alpha1.ReasonClaimWaiting, "", began)
	if err != nil {
		return err
	}
	r.check("pod with aliyun.com/gpu-mem: "+amount, "waits, and an Event says why", message, message != "")
	r.took(began)
	return nil
}

// plugin is the node's, with its process.
func (r *run) plugin(ctx context.Context) (kube.Pod, process, error) {
	pod, err := r.component(ctx, "gpu-kubelet-plugin")
	if err != nil {
		return kube.Pod{}, process{}, err
	}
	p, err := ofPod(pod, "gpu-kubelet-plugin")
	return pod, p, err
}

func pluginKilled(ctx context.Context, r *run) error {
	if err := r.apply(ctx, template("one", shareOf("share", 1, ""))); err != nil {
		return err
	}
	if err := r.start(ctx, "pod with a share", pod{name: "before", template: "one"}); err != nil {
		return err
	}
	plugin, victim, err := r.plugin(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := kill(victim); err != nil {
		return err
	}
	// A pod that meets no plugin is tried again by the kubelet a minute and a half later.
	if err := r.awaitRestart(ctx, plugin); err != nil {
		return err
	}
	r.check("gpu-kubelet-plugin, after its end by SIGKILL", "serves again", "serves again", true)
	r.took(began)
	if err := r.start(ctx, "pod with another share", pod{name: "after", template: "one"}); err != nil {
		return err
	}
	v, err := r.meminfo(ctx, "before")
	if err != nil {
		return err
	}
	r.check("CUDA program in the pod from before", "runs", v.String(), v.totalMiB > 0)
	return nil
}

// modeByClaim has one GPU in every mode, one after the other.
func modeByClaim(ctx context.Context, r *run) error {
	index := r.gpu().Index
	modes := []struct {
		name   string
		device string
		limit  bool
		object object
	}{
		{"share", "-share", false, shareOf("share", 2, "")},
		{"mps", "-mps", true, shareOf("mps", 2, "")},
		{"exclusive", "", false, wholeGPUs(1)},
		{"core-mem", "-core-mem", true, shareOf("core-mem", 2, "50")},
		{"cgpu", "-cgpu", true, shareOf("cgpu", 2, "")},
	}
	for i, m := range modes {
		if err := r.apply(ctx, template(m.name, onGPU(m.object, index))); err != nil {
			return err
		}
		if err := r.create(ctx, pod{name: m.name, template: m.name}); err != nil {
			return err
		}
		if i > 0 {
			// The GPU is in the mode of the claim before.
			reason, err := r.Kubectl.WaitUnschedulable(ctx, r.Patience, m.name)
			if err != nil {
				return err
			}
			r.check(
				fmt.Sprintf("claim of mode %s, while the GPU is in mode %s", m.name, modes[i-1].name),
				"waits",
				reason,
				true,
			)
			if err := r.delete(ctx, modes[i-1].name); err != nil {
				return err
			}
		}
		began := time.Now()
		if err := r.Kubectl.WaitRunning(ctx, r.Patience, m.name); err != nil {
			return err
		}
		devices, err := r.allocated(ctx, m.name)
		if err != nil {
			return err
		}
		want := fmt.Sprintf("gpu-%d%s", index, m.device)
		r.check(
			"device of a claim of mode "+m.name,
			want,
			strings.Join(devices, ", "),
			len(devices) == 1 && devices[0] == want,
		)
		r.took(began)
		v, err := r.meminfo(ctx, m.name)
		if err != nil {
			return err
		}
		expected, ok := "runs", v.totalMiB > 0
		if m.limit {
			expected, ok = fmt.Sprintf("at most %d MiB free", r.capMiB(2)), v.freeMiB <= r.capMiB(2)
		}
		r.check("CUDA program in mode "+m.name, expected, v.String(), ok)
	}
	return nil
}

// switchUnderLoad changes the node's mode while a program uses a share.
func switchUnderLoad(ctx context.Context, r *run) error {
	const seconds = 10
	if err := r.apply(ctx, template("share", shareOf("share", 2, "")), template("mps", shareOf("mps", 2,
		""))); err != nil {
		return err
	}
	if err := r.start(ctx, "pod in mode share", pod{name: "early", template: "share"}); err != nil {
		return err
	}
	type result struct {
		views []view
		err   error
	}
	done := make(chan result, 1)
	go func() {
		views, err := r.spin(ctx, seconds, "early")
		done <- result{views, err}
	}()
	began := time.Now()
	if err := r.label(ctx, "mps"); err != nil {
		return errors.Join(err, (<-done).err)
	}
	message, err := r.Kubectl.In(
		"default",
	).WaitEvent(
		ctx,
		r.Patience,
		"Node",
		r.Node,
		v1alpha1.ReasonModeSwitchWaiting,
		"early",
		began,
	)
	if err != nil {
		return errors.Join(err, (<-done).err)
	}
	r.check("an Event of the node names the pod that it waits for", "GPUModeSwitchWaiting", message, true)
	r.took(began)
	if err := r.create(ctx, pod{name: "late", template: "mps"}); err != nil {
		return errors.Join(err, (<-done).err)
	}
	after := <-done
	if after.err != nil {
		return after.err
	}
	r.check("the program that was running", "runs on", after.views[0].String(), after.views[0].rate > 0)
	changed := time.Now()
	if err := r.delete(ctx, "early"); err != nil {
		return err
	}
	if err := r.Kubectl.WaitRunning(ctx, switchLimit, "late"); err != nil {
		return err
	}
	r.check("pod of mode mps, when the first has ended", "Running", "Running", true)
	r.took(changed)
	return r.checkLimit(ctx, "late", 2)
}
