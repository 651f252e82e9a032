// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package workloads

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	// nvidiaClass is that by which Kubernetes' tests ask for a GPU, and manifests for NVIDIA's DRA driver.
	nvidiaClass = "gpu.nvidia.com"
	// noRoom is in the scheduler's reason why a pod with a claim waits.
	noRoom = "cannot allocate all claims"
)

var gpuDevice = regexp.MustCompile(`(?m)^/dev/nvidia[0-9]+ .* ([0-9]+:[0-9]+)$`)

// deviceNumbers are those of a container's GPUs.
func deviceNumbers(t *testing.T, ns *harness.Namespace, pod, container string) []string {
	t.Helper()
	output, err := ns.Exec(t, pod, container, "devices")
	expect.NoError(t, err)
	var numbers []string
	for _, found := range gpuDevice.FindAllStringSubmatch(output, -1) {
		numbers = append(numbers, found[1])
	}
	return numbers
}

// reaches reports whether a program in a container can open a device by its numbers, without a device node.
func reaches(t *testing.T, ns *harness.Namespace, pod, container, numbers string) bool {
	t.Helper()
	_, err := ns.Exec(t, pod, container, "reach", numbers)
	switch {
	case err == nil, strings.Contains(err.Error(), "no such device or address"):
		return true // behind the device of a simulated GPU is no driver
	case strings.Contains(err.Error(), "operation not permitted"):
		return false
	}
	t.Fatalf("reach device %s in %s/%s: %v", numbers, pod, container, err)
	return false
}

// What Kubernetes' requirement “secure accelerator access” tests: a container with a claim has its GPU and no other,
// all others have none, and nobody can open a GPU that is another's.
func TestSecureAcceleratorAccess(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "gpu", harness.Requests(harness.Exactly(&resourceapi.ExactDeviceRequest{DeviceClassName: nvidiaClass,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1})))
	beside := func(pod *corev1.Pod) {
		container := pod.Spec.Containers[0]
		container.Name, container.Resources = "beside", corev1.ResourceRequirements{}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
	everything := func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}}
	}
	ns.Run(t, harness.Pod("a", wholeNode, harness.FromTemplate("gpu"), beside),
		harness.Pod("b", wholeNode, harness.FromTemplate("gpu")), harness.Pod("none", wholeNode),
		harness.Pod("asks-for-all", wholeNode, everything))

	owners := map[string]string{}
	for _, pod := range []string{"a", "b"} {
		grants := ns.Granted(t, pod)
		numbers := deviceNumbers(t, ns, pod, "main")
		if len(grants) != 1 || len(numbers) != 1 {
			t.Fatalf("pod %s was granted %+v and has the devices %q, want one GPU", pod, grants, numbers)
		}
		ns.SeesItsGPUs(t, pod, "main", grants)
		owners[numbers[0]] = pod
	}
	if len(owners) != 2 {
		t.Errorf("the GPUs of two pods are %v", owners)
	}
	for _, c := range []struct{ pod, container string }{{"a", "main"}, {"b", "main"}, {"a", "beside"}, {"none", "main"},
		{"asks-for-all", "main"}} {
		owner := c.container == "main" && (c.pod == "a" || c.pod == "b")
		if has := ns.GPUNodes(t, c.pod, c.container); !owner && len(has) > 0 {
			t.Errorf("container %s of pod %s has no claim, and sees %q", c.container, c.pod, has)
		}
		for numbers, of := range owners {
			want := owner && of == c.pod
			if got := reaches(t, ns, c.pod, c.container, numbers); got != want {
				t.Errorf("container %s of pod %s opens the GPU of pod %s: %t, want %t", c.container, c.pod, of, got, want)
			}
		}
	}

	// Both GPUs are taken.
	ns.Create(t, harness.Pod("third", wholeNode, harness.FromTemplate("gpu")))
	ns.WaitUnschedulable(t, "third", noRoom)
	ns.Delete(t, "b")
	ns.WaitRunning(t, "third")
	ns.SeesItsGPUs(t, "third", "main", ns.Granted(t, "third"))
}

// What the requirement “GPU sharing” asks for: several pods run on one GPU, each with its part, and what is more than
// the GPU has waits.
func TestGPUSharing(t *testing.T) {
	ns := cluster.Namespace(t)
	gpu := cluster.GPUs(t, mpsNode)[0]
	shares := map[string]int64{"most": gpuGiB - 3, "rest": 3, "more": 1}
	for name, gib := range shares {
		ns.Template(t, name, harness.Requests(harness.Capped("mps", 0, "memory", fmt.Sprintf("%dGi", gib))))
	}
	ns.Run(t, harness.Pod("most", mpsNode, harness.FromTemplate("most")),
		harness.Pod("rest", mpsNode, harness.FromTemplate("rest")))
	for _, pod := range []string{"most", "rest"} {
		grants := ns.Granted(t, pod)
		if len(grants) != 1 || grants[0].GPU.UUID != gpu.UUID || grants[0].Units != shares[pod] {
			t.Errorf("pod %s was granted %+v, want %d GiB of GPU %s", pod, grants, shares[pod], gpu.UUID)
		}
		ns.SeesItsGPUs(t, pod, "main", grants)
		want := fmt.Sprintf("0=%dM", gpuMiB*shares[pod]/gpuGiB)
		if got := ns.GPUEnv(t, pod, "main")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]; got != want {
			t.Errorf("pod %s has the limit %q, want %q", pod, got, want)
		}
	}

	ns.Create(t, harness.Pod("more", mpsNode, harness.FromTemplate("more")))
	ns.WaitUnschedulable(t, "more", noRoom)
	ns.Delete(t, "rest")
	ns.WaitRunning(t, "more")

	// No claim can take more than the GPU has, whatever is free.
	ns.Template(t, "too-large", harness.Requests(harness.Capped("mps", 0, "memory", fmt.Sprintf("%dGi", gpuGiB+1))))
	ns.Create(t, harness.Pod("too-large", mpsNode, harness.FromTemplate("too-large")))
	ns.WaitUnschedulable(t, "too-large", noRoom)
}
