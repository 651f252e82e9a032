// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim/memory"
)

// kernelNode has a driver of release 615 and two T4 of 15 units: what a container may have of the first the kernel
// counts, of the second the driver itself. Each of the tests adds it.
const kernelNode = "kernel"

var countedBy = []string{"dmem", "misc"}

func addKernelNode(t *testing.T) {
	t.Helper()
	t.Log("control groups", harness.ControlGroups(t))
	cluster.Whole(t, kernelNode)
	began := time.Now()
	cluster.AddNode(t, kernelNode, "t4x2", "cgpu")
	cluster.Publishes(t, kernelNode, harness.DeviceNames(2, "gpu-%d-cgpu")...)
	t.Logf("the node was there after %s", time.Since(began).Round(time.Millisecond))
}

// takes has a CUDA program in a container take so much memory, beside its context, and keep it.
func takes(t *testing.T, ns *harness.Namespace, pod, container, uuid string, memoryMiB int64) error {
	t.Helper()
	program, err := ns.Program(t, kernelNode, pod, container, uuid)
	if err != nil {
		return err
	}
	return program.Allocate(memoryMiB)
}

// held checks that what a container can take of a GPU is a share of 3 units, whose limit is returned.
func held(t *testing.T, ns *harness.Namespace, pod, uuid string) (limitMiB int64) {
	t.Helper()
	limit := ns.MemoryLimitMiB(t, kernelNode, pod, "main", uuid)
	if limit < 2900 || limit > 3072 {
		t.Errorf("pod %s has a limit of %d MiB, want 3 of 15 units of 15360 MiB", pod, limit)
	}
	if err := takes(t, ns, pod, "main", uuid, 4096); !errors.Is(err, memory.ErrOutOfMemory) {
		t.Errorf("a program of %s takes 4 GiB: %v", pod, err)
	}
	return limit
}

// Where NVIDIA's driver limits memory by control group, containers have what they were granted and no more,
// whatever their environment says. Nodes with older drivers are as they were.
func TestContainersAreHeldToTheirGPUMemory(t *testing.T) {
	t.Parallel()
	addKernelNode(t)
	cluster.Devices(t, kernelNode, "say who limits what", func(devices []resourceapi.Device) error {
		for i, device := range devices {
			for name, want := range map[resourceapi.QualifiedName]string{
				"isolation": "kernel", "isolationLevel": "device-memory", "memoryLimits": countedBy[i],
			} {
				if got := device.Attributes[name].StringValue; got == nil || *got != want {
					return fmt.Errorf("%s of %s is %v, want %s", name, device.Name, got, want)
				}
			}
		}
		return nil
	})
	cluster.Devices(t, "share", "have no such limits", func(devices []resourceapi.Device) error {
		for _, device := range devices {
			if _, has := device.Attributes["memoryLimits"]; has {
				return fmt.Errorf("%s of a node with an older driver has", device.Name)
			}
		}
		return nil
	})
	ns := cluster.Namespace(t)
	gpus := cluster.GPUs(t, kernelNode)
	for gpu, counted := range countedBy {
		uuid := gpus[gpu].UUID
		three, four, one, both := "three-"+counted, "four-"+counted, "one-"+counted, "both-"+counted
		ns.Template(t, three, harness.Requests(harness.Capped("cgpu", gpu, "memory", "3Gi")))
		ns.Template(t, four, harness.Requests(harness.Capped("cgpu", gpu, "memory", "4Gi")))
		// NVIDIA's container toolkit has a hook that reads these.
		named := harness.Pod(one, kernelNode, harness.FromTemplate(three))
		named.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NVIDIA_GPU_MEMORY_LIMIT", Value: "12288"},
			{Name: "NVIDIA_GPU_MEMORY_REQUEST", Value: "12288"}, {Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}}
		shared := harness.Pod(both, kernelNode, func(pod *corev1.Pod) {
			second := pod.Spec.Containers[0]
			second.Name = "second"
			pod.Spec.Containers = append(pod.Spec.Containers, second)
		}, harness.FromTemplate(four))
		ns.Run(t, named, shared)

		limit := held(t, ns, one, uuid)
		if err := takes(t, ns, one, "main", uuid, limit-3*memory.ContextMiB); err != nil {
			t.Errorf("%s: a program takes what it was granted, less contexts: %v", counted, err)
		}
		if err := takes(t, ns, both, "main", uuid, 1536); err != nil {
			t.Errorf("%s: the first of two containers takes less than half: %v", counted, err)
		}
		if err := takes(t, ns, both, "second", uuid, 2048); !errors.Is(err, memory.ErrOutOfMemory) {
			t.Errorf("%s: the second takes what is not left: %v", counted, err)
		}
		if err := ns.LiftMemoryLimit(t, kernelNode, one, "main", uuid); !errors.Is(err, harness.ErrNotPrivileged) {
			t.Errorf("%s: a container without privileges takes its limit away: %v", counted, err)
		}
	}
}

// What may happen to a limit, and where there can be none.
func TestMemoryLimitsThatGoAndThatCannotBe(t *testing.T) {
	t.Parallel()
	addKernelNode(t)
	gpus := cluster.GPUs(t, kernelNode)
	for gpu, counted := range countedBy {
		t.Run(counted, func(t *testing.T) {
			uuid := gpus[gpu].UUID
			t.Run("NotStarted", func(t *testing.T) { notStartedWithoutLimit(t, gpu) })
			t.Run("Privileged", func(t *testing.T) { privilegedIsNotHeld(t, gpu, uuid) })
		})
	}
	t.Run("DriverReloaded", func(t *testing.T) { limitsComeBack(t, gpus) })
	setMode := cluster.Label(t, kernelNode, modeLabel)
	t.Run("BesideMPS", func(t *testing.T) {
		setMode("core_mem")
		cluster.Publishes(t, kernelNode, harness.DeviceNames(2, "gpu-%d-core-mem")...)
		heldBesideMPS(t, gpus)
	})
	t.Run("Share", func(t *testing.T) {
		setMode("share")
		cluster.Publishes(t, kernelNode, harness.DeviceNames(2, "gpu-%d-share")...)
		ns := cluster.Namespace(t)
		ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
		ns.Run(t, harness.Pod("p", kernelNode, harness.FromTemplate("one")))
		if limit := ns.MemoryLimitMiB(t, kernelNode, "p", "main", ns.Granted(t, "p")[0].GPU.UUID); limit != 0 {
			t.Errorf("a share without limits has one of %d MiB", limit)
		}
	})
}

// The kubelet says why a container does not start that nothing would hold.
func notStartedWithoutLimit(t *testing.T, gpu int) {
	ns := cluster.Namespace(t)
	ns.Template(t, "three", harness.Requests(harness.Capped("cgpu", gpu, "memory", "3Gi")))
	device := fmt.Sprintf("gpu-%d", gpu)
	t.Cleanup(func() { cluster.Tool(t, "node", "fault", kernelNode, device, "heal") })
	// By the driver's own table a limit that was not applied reads as none at all.
	ignored := []string{"was set and reads", "no memory limit is set on the control group"}[gpu]
	for fault, says := range map[string]string{"limits-ignored": ignored, "limits-refused": "CAP_SYS_ADMIN"} {
		cluster.Tool(t, "node", "fault", kernelNode, device, fault)
		ns.Create(t, harness.Pod(fault, kernelNode, harness.FromTemplate("three")))
		harness.Eventually(t, "kubectl describe pod to say why it does not start", func(context.Context) error {
			output, err := ns.Kubectl(t, "describe", "pod", fault)
			for _, text := range []string{
				"the container is not started, because nothing would hold it to its share of GPU-", says} {
				if err == nil && !strings.Contains(output, text) {
					err = fmt.Errorf("it does not say %q", text)
				}
			}
			if err != nil {
				return fmt.Errorf("%w:\n%s", err, output)
			}
			return nil
		})
		cluster.Tool(t, "node", "fault", kernelNode, device, "heal")
	}
	ns.Run(t, harness.Pod("healed", kernelNode, harness.FromTemplate("three")))
}

// Who has all rights on the node can take its limit away. That is told, and the limit is set again.
func privilegedIsNotHeld(t *testing.T, gpu int, uuid string) {
	ns := cluster.Namespace(t)
	ns.Template(t, "three", harness.Requests(harness.Capped("cgpu", gpu, "memory", "3Gi")))
	privileged := harness.Pod("privileged", kernelNode, harness.FromTemplate("three"))
	privileged.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	ns.Run(t, privileged)
	limit := held(t, ns, "privileged", uuid)
	began := time.Now()
	// The plugin may look, and set it again, before the program has what it wants.
	harness.Eventually(t, "a privileged container to take its limit away, and 4 GiB", func(context.Context) error {
		if err := ns.LiftMemoryLimit(t, kernelNode, "privileged", "main", uuid); err != nil {
			return err
		}
		return takes(t, ns, "privileged", "main", uuid, 4096)
	})
	// What it took while it had no limit the driver's own table never counts. The driver lists the program all the same.
	ns.SetGPUProcesses(t, kernelNode, harness.GPUProcess{GPU: gpu, Pod: "privileged", MemoryMiB: 4096})
	ns.WaitPodEvent(t, "privileged", "GPUShareExceeded", "")
	cluster.WaitNodeEvent(t, kernelNode, began, "GPUMemoryLimitMissing", "privileged")
	harness.Eventually(t, "the limit to be set again", func(context.Context) error {
		if got := ns.MemoryLimitMiB(t, kernelNode, "privileged", "main", uuid); got != limit {
			return fmt.Errorf("it is %d MiB, want %d", got, limit)
		}
		return nil
	})
	t.Logf("told and set again after %s", time.Since(began).Round(time.Second))
}

// A driver that is reloaded has forgotten all limits.
func limitsComeBack(t *testing.T, gpus []harness.GPU) {
	ns := cluster.Namespace(t)
	before := map[string]int64{}
	for gpu, counted := range countedBy {
		ns.Template(t, counted, harness.Requests(harness.Capped("cgpu", gpu, "memory", "3Gi")))
		ns.Run(t, harness.Pod(counted, kernelNode, harness.FromTemplate(counted)))
		before[counted] = held(t, ns, counted, gpus[gpu].UUID)
	}
	began := time.Now()
	cluster.Tool(t, "node", "fault", kernelNode, "driver-reload")
	for gpu, counted := range countedBy {
		harness.Eventually(t, "the limit of pod "+counted+" to be set again", func(context.Context) error {
			if got := ns.MemoryLimitMiB(t, kernelNode, counted, "main", gpus[gpu].UUID); got != before[counted] {
				return fmt.Errorf("it is %d MiB, want %d", got, before[counted])
			}
			return nil
		})
		held(t, ns, counted, gpus[gpu].UUID)
	}
	t.Logf("limits were back after %s", time.Since(began).Round(time.Second))
	cluster.WaitNodeEvent(t, kernelNode, began, "GPUMemoryLimitMissing", "")
}

// A program that drops the limits of MPS from its environment is a client without them, and held all the same.
func heldBesideMPS(t *testing.T, gpus []harness.GPU) {
	ns := cluster.Namespace(t)
	for gpu, counted := range countedBy {
		ns.Template(t, counted, harness.Requests(harness.Capped("core-mem", gpu, "memory", "3Gi", "cores", "20")))
		ns.Run(t, harness.Pod(counted, kernelNode, harness.FromTemplate(counted)))
		how, err := ns.CUDA(t, counted, gpus[gpu].UUID, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
		if err != nil || how != harness.InMPS {
			t.Errorf("a program of %s runs %q (%v)", counted, how, err)
		}
		held(t, ns, counted, gpus[gpu].UUID)
	}
}
