// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/kube"
)

// wholeGPU is also where CUDA shows first whether it runs in containers at all.
func wholeGPU(ctx context.Context, r *run) error {
	if err := r.apply(ctx, template("whole", wholeGPUs(1))); err != nil {
		return err
	}
	if err := r.start(ctx, "pod with a claim for a GPU", pod{name: "whole", template: "whole"}); err != nil {
		return err
	}
	if err := r.checkGPUs(ctx, "whole", 1); err != nil {
		return err
	}
	// The program says on standard error where it had to look for the library.
	out, err := r.Kubectl.Exec(ctx, "whole", "\n", probe, "meminfo")
	if err != nil {
		return err
	}
	found := "by the loader"
	if _, note, ok := strings.Cut(out, "libcuda.so.1 found by its path"); ok {
		found = "only by its path" + note
	}
	r.check("libcuda.so.1 in the container", "by the loader", found, found == "by the loader")

	v, err := r.meminfo(ctx, "whole")
	if err != nil {
		return err
	}
	memory := r.gpu().MemoryMiB
	r.check(
		"memory, as a CUDA program sees it",
		fmt.Sprintf("about %d MiB", memory),
		v.String(),
		v.totalMiB > memory*9/10 && v.totalMiB <= memory,
	)
	answer, err := r.cuda(ctx, "whole", "alloc", fmt.Sprint(memory*8/10))
	if err != nil {
		return err
	}
	r.check(fmt.Sprintf("allocation of %d MiB", memory*8/10), granted, answer, answer == granted)
	views, err := r.spin(ctx, 3, "whole")
	if err != nil {
		return err
	}
	r.check("a kernel runs", "kernels/s", views[0].String(), views[0].rate > 0)
	return nil
}

var smiLine = regexp.MustCompile(`(?m)^GPU [0-9]+: .*$`)

func smiInContainer(ctx context.Context, r *run) error {
	if err := r.apply(ctx, template("whole", wholeGPUs(1))); err != nil {
		return err
	}
	if err := r.start(ctx, "pod with a claim for a GPU", pod{name: "smi", template: "whole"}); err != nil {
		return err
	}
	out, err := r.Kubectl.Exec(ctx, "smi", "", "nvidia-smi", "-L")
	if err != nil {
		return err
	}
	lines := smiLine.FindAllString(out, -1)
	r.check("nvidia-smi -L in the container", "1 GPU", strings.Join(lines, "; "), len(lines) == 1)
	return nil
}

// healthShown is what a user sees of a GPU's health. No GPU is broken for it.
func healthShown(ctx context.Context, r *run) error {
	if err := r.apply(ctx, template("whole", wholeGPUs(1))); err != nil {
		return err
	}
	if err := r.start(ctx, "pod with a claim for a GPU", pod{name: "health", template: "whole"}); err != nil {
		return err
	}
	began := time.Now()
	var shown string
	err := kube.Until(ctx, r.Patience, "the health in the pod's status", func(ctx context.Context) error {
		var pod kube.Pod
		if err := r.Kubectl.Get(ctx, &pod, "pod", "health"); err != nil {
			return err
		}
		shown = health(pod)
		if shown == "" || strings.HasPrefix(shown, "Unknown") {
			return fmt.Errorf("it shows %q", shown)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.check("health in the pod's status", "Healthy", shown, shown == "Healthy")
	r.took(began)
	return nil
}

// health is what a pod's status shows of its devices.
func health(pod kube.Pod) string {
	var all []string
	for _, container := range pod.Status.ContainerStatuses {
		for _, allocated := range container.Allocated {
			for _, resource := range allocated.Resources {
				all = append(all, strings.TrimSpace(resource.Health+" "+resource.Message))
			}
		}
	}
	return strings.Join(all, ", ")
}

func otherUser(ctx context.Context, r *run) error {
	if err := r.apply(ctx, template("whole", wholeGPUs(1))); err != nil {
		return err
	}
	if err := r.start(ctx, "pod of uid 1000", pod{name: "user", template: "whole", uid: 1000}); err != nil {
		return err
	}
	v, err := r.meminfo(ctx, "user")
	if err != nil {
		return err
	}
	r.check("CUDA program of uid 1000", "runs", v.String(), v.totalMiB > 0)
	return nil
}

func extendedResource(ctx context.Context, r *run) error {
	p := pod{name: "limit", limits: map[string]string{"nvidia.com/gpu": "1"}}
	if err := r.start(ctx, "pod with nvidia.com/gpu: 1", p); err != nil {
		return err
	}
	if err := r.checkGPUs(ctx, p.name, 1); err != nil {
		return err
	}
	v, err := r.meminfo(ctx, p.name)
	if err != nil {
		return err
	}
	r.check("CUDA program", "runs", v.String(), v.totalMiB > 0)
	return nil
}

func waitsForGPU(ctx context.Context, r *run) error {
	all := len(r.Machine.GPUs)
	if err := r.apply(ctx, template("all", wholeGPUs(all)), template("whole", wholeGPUs(1))); err != nil {
		return err
	}
	if err := r.start(ctx, fmt.Sprintf("pod with all %d GPUs", all), pod{name: "all", template: "all"}); err != nil {
		return err
	}
	if err := r.create(ctx, pod{name: "next", template: "whole"}); err != nil {
		return err
	}
	reason, err := r.Kubectl.WaitUnschedulable(ctx, r.Patience, "next")
	if err != nil {
		return err
	}
	r.check("the next pod, while they are in use", "waits", reason, true)
	began := time.Now()
	if err := r.delete(ctx, "all"); err != nil {
		return err
	}
	if err := r.Kubectl.WaitRunning(ctx, r.Patience, "next"); err != nil {
		return err
	}
	r.check("the next pod, when they are free", "Running", "Running", true)
	r.took(began)
	return nil
}

func linkedGPUs(ctx context.Context, r *run) error {
	// As demo/topology/two-GPUs.yaml: the best set, or any two.
	request := object{"name": "gpu", "firstAvailable": []object{
		{"name": "linked", "deviceClassName": "linked-2.topology.gpu.aliyun.com"},
		{"name": "any", "deviceClassName": "single.topology.gpu.aliyun.com", "count": 2},
	}}
	if err := r.apply(ctx, template("two", request)); err != nil {
		return err
	}
	if err := r.start(ctx, "pod with two GPUs", pod{name: "two", template: "two"}); err != nil {
		return err
	}
	if err := r.checkGPUs(ctx, "two", 2); err != nil {
		return err
	}
	devices, err := r.allocated(ctx, "two")
	if err != nil {
		return err
	}
	r.seen("devices of the claim", "the best-linked two GPUs", strings.Join(devices, ", "))
	v, err := r.meminfo(ctx, "two")
	if err != nil {
		return err
	}
	r.check("CUDA program", "runs", v.String(), v.totalMiB > 0)
	return nil
}
