// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	modesNode     = "modes"
	isolationGone = "gpu.aliyun.com/isolation-unavailable:NoSchedule"
	controlBinary = "run/nvidia/driver/usr/bin/nvidia-cuda-mps-control"
)

const pipeDir = "/run/gpushare/mps"

// One node goes through all modes with limits; each ends before the next begins.
func TestModesWithLimits(t *testing.T) {
	cluster.First(t)
	t.Parallel()
	cluster.Whole(t, modesNode)
	setMode := cluster.Label(t, modesNode, modeLabel)
	for _, step := range []struct {
		name, label, mode string
		run               func(t *testing.T)
	}{
		{"InModeMPS", "mps", "mps", inModeMPS},
		{"InModeCGPU", "cgpu", "cgpu", inModeCGPU},
		{"InModeCoreMem", "core_mem", "core-mem", inModeCoreMem},
		{"OneDaemonForAllGPUs", "core_mem", "core-mem", oneDaemonForAllGPUs},
		{"LimitsLifted", "mps", "mps", limitsLifted},
		{"PipesOutOfReach", "mps", "mps", pipesOutOfReach},
		{"PipesRemoved", "mps", "mps", pipesRemoved},
		{"DaemonHangs", "mps", "mps", daemonHangs},
		{"DaemonKilled", "mps", "mps", daemonKilled},
		{"SupervisorKilled", "mps", "mps", supervisorKilled},
		{"HostDirectoryNotWritable", "mps", "mps", hostDirectoryNotWritable},
		{"PluginReplaced", "mps", "mps", pluginReplaced},
	} {
		t.Run(step.name, func(t *testing.T) {
			cluster.FreshAfterFailure(t, modesNode)
			setMode(step.label)
			cluster.Publishes(t, modesNode, harness.DevicesIn(step.mode)...)
			step.run(t)
		})
	}
	t.Run("NoDaemonsWithoutMPS", func(t *testing.T) { noDaemonsWithoutMPS(t, setMode) })
}

func inModeMPS(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "three", harness.Requests(harness.Capped("mps", 0, "memory", "3Gi")))
	ns.Template(t, "whole", harness.Requests(harness.Capped("mps", 0, "memory", "16Gi")))
	ns.Template(t, "share", harness.Requests(harness.Share("gpu", "1Gi")))
	hostIPC := harness.Pod("with-host-ipc", modesNode, harness.FromTemplate("three"))
	hostIPC.Spec.HostIPC = true
	lifted := harness.Pod("lifted", modesNode, harness.FromTemplate("three"))
	lifted.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CGPU_DISABLE", Value: "true"}}
	ns.Run(t, harness.Pod("plain", modesNode, harness.FromTemplate("three")), hostIPC, lifted)

	env := harness.WithEnv(harness.LegacyEnv(3, 15, 3, 0), "CUDA_MPS_PIPE_DIRECTORY", pipeDir)
	for _, pod := range []string{"plain", "with-host-ipc"} {
		ns.HasEnv(t, pod, "main", harness.WithEnv(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3226M"))
		seesGPUAndDaemon(t, ns, pod, "main")
	}
	ns.HasEnv(t, "lifted", "main", harness.WithEnv(env, "CGPU_DISABLE", "true"))
	ns.WaitPodEvent(t, "lifted", "GPUIsolationDisabled", "the limits of requests")
	ns.HasUnits(t, modesNode, 9, 0, 0, 0)
	inMPSOrRefused(t, ns, "plain", cluster.GPUs(t, modesNode)[0].UUID)

	// More than the GPU has, and a share of a GPU without limits.
	ns.Create(t, harness.Pod("large", modesNode, harness.FromTemplate("whole")),
		harness.Pod("share", modesNode, harness.FromTemplate("share")))
	ns.WaitUnschedulable(t, "large", noRoom)
	ns.WaitUnschedulable(t, "share", noRoom)
	cluster.Slice(t, modesNode, "takes 48 shares of a GPU, by MPS", func(slice *resourceapi.ResourceSlice) error {
		device := slice.Spec.Devices[0]
		slots := device.Capacity["slots"]
		if got := slots.Value.Value(); got != mps.MaxClients || *device.Attributes["isolation"].StringValue != "mps" ||
			*device.Attributes["isolationLevel"].StringValue != "driver" {
			return fmt.Errorf("%d slots, attributes %v", got, device.Attributes)
		}
		return nil
	})

	// One container with GPUs of two claims: it would find only the one's daemon.
	ns.Template(t, "elsewhere", harness.Requests(harness.Capped("mps", 1, "memory", "1Gi")))
	two := harness.Pod("two-claims", modesNode, harness.FromTemplate("three"))
	template := "elsewhere"
	two.Spec.ResourceClaims = append(two.Spec.ResourceClaims,
		corev1.PodResourceClaim{Name: "second", ResourceClaimTemplateName: &template})
	two.Spec.Containers[0].Resources.Claims = append(two.Spec.Containers[0].Resources.Claims,
		corev1.ResourceClaim{Name: "second"})
	ns.Create(t, two)
	ns.WaitPodEvent(t, "two-claims", failedPrepare, "with MPS a process can use one GPU")
}

func inModeCGPU(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "pair", resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{harness.Named("one", harness.Capped("cgpu", -1, "memory", "1Gi")),
			harness.Named("seven", harness.Capped("cgpu", -1, "memory", "7Gi"))},
		Constraints: []resourceapi.DeviceConstraint{{MatchAttribute: fullyQualified("gpu.aliyun.com/uuid")}},
	}})
	ns.Template(t, "two-cards", resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{harness.Named("a", harness.Capped("cgpu", 2, "memory", "1Gi")),
			harness.Named("b", harness.Capped("cgpu", 3, "memory", "1Gi"))},
	}})
	ns.Template(t, "compute", harness.Requests(harness.Capped("core-mem", -1, "memory", "1Gi", "cores", "5")))
	// ACK's sample of a pod with two containers: 1 and 7 of 15 units.
	sample := harness.Document[corev1.Pod](t, "two-containers.yaml")
	ns.Run(t, harness.On(modesNode, sample)...)
	ns.Run(t, harness.Pod("together", modesNode, harness.FromTemplate("pair")))
	ns.HasEnv(t, "together", "main", harness.WithEnv(harness.LegacyEnv(8, 15, 8, 1), "CUDA_MPS_PIPE_DIRECTORY", pipeDir,
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8602M"))
	ns.HasEnv(t, sample.Name, "small", harness.WithEnv(harness.LegacyEnv(1, 15, 8, 0), "CUDA_MPS_PIPE_DIRECTORY", pipeDir,
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1075M"))
	ns.HasEnv(t, sample.Name, "large", harness.WithEnv(harness.LegacyEnv(7, 15, 8, 0), "CUDA_MPS_PIPE_DIRECTORY", pipeDir,
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=7527M"))
	for _, container := range []string{"small", "large"} {
		seesGPUAndDaemon(t, ns, sample.Name, container)
	}
	isAnnotated(t, ns, sample.Name, `{"0":{"0":1},"1":{"0":7}}`)

	// A GPU for each container, and then two for one.
	ns.Run(t, harness.Pod("apart", modesNode, harness.FromTemplate("two-cards"), harness.PerRequest("a", "b")))
	eachHasItsOwn(t, ns, modesNode, "apart", "a", "b")
	ns.Create(t, harness.Pod("two-cards", modesNode, harness.FromTemplate("two-cards")),
		harness.Pod("compute", modesNode, harness.FromTemplate("compute")))
	ns.WaitPodEvent(t, "two-cards", failedPrepare, "with MPS a container has to be on one GPU")
	ns.WaitUnschedulable(t, "compute", noRoom)
}

// eachHasItsOwn checks that of a claim with a request for each container, on GPUs of
// their own, each has the device node of its GPU, that GPU's daemon and a limit there.
func eachHasItsOwn(t *testing.T, ns *harness.Namespace, node, pod string, requests ...string) {
	t.Helper()
	grants := ns.Granted(t, pod)
	if len(grants) != len(requests) {
		t.Fatalf("pod %s was granted %v", pod, grants)
	}
	for i, grant := range grants {
		seesDaemonOf(t, ns, node, pod, grant.Request, grants[i:i+1])
		if env := ns.GPUEnv(t, pod, grant.Request); env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "" {
			t.Errorf("%s/%s has no limit: %v", pod, grant.Request, env)
		}
	}
}

func inModeCoreMem(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "fifth", harness.Requests(harness.Capped("core-mem", 1, "memory", "3Gi", "cores", "20")))
	ns.Template(t, "rest", harness.Requests(harness.Capped("core-mem", 1, "memory", "3Gi", "cores", "80")))
	ns.Template(t, "more", harness.Requests(harness.Capped("core-mem", 1, "memory", "1Gi", "cores", "5")))
	ns.Template(t, "memory", harness.Requests(harness.Capped("cgpu", -1, "memory", "1Gi")))
	ns.Run(t, harness.Pod("fifth", modesNode, harness.FromTemplate("fifth")),
		harness.Pod("rest", modesNode, harness.FromTemplate("rest")))
	ns.HasEnv(t, "fifth", "main", harness.WithEnv(harness.LegacyEnv(3, 15, 3, 1), "ALIYUN_COM_GPU_SCHD_WEIGHT", "4",
		"CUDA_MPS_PIPE_DIRECTORY", pipeDir, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3226M",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20"))
	seesGPUAndDaemon(t, ns, "fifth", "main")
	seesGPUAndDaemon(t, ns, "rest", "main")

	// There is memory left on the GPU, but no compute; and memory alone is not
	// to be had on this node.
	ns.Create(t, harness.Pod("more", modesNode, harness.FromTemplate("more")),
		harness.Pod("memory", modesNode, harness.FromTemplate("memory")))
	ns.WaitUnschedulable(t, "more", noRoom)
	ns.WaitUnschedulable(t, "memory", noRoom)
}

func fullyQualified(name string) *resourceapi.FullyQualifiedName {
	n := resourceapi.FullyQualifiedName(name)
	return &n
}

// A GPU of 80 GiB has more units than it takes clients under MPS.
func TestGPUTakes48SharesUnderMPS(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "whole")
	setMode := cluster.Label(t, "whole", modeLabel)
	ns := cluster.Namespace(t)
	setMode("mps")
	cluster.Publishes(t, "whole", harness.DeviceNames(8, "gpu-%d-mps")...)
	var half []resourceapi.DeviceRequest
	for i := range mps.MaxClients / 2 {
		half = append(half, harness.Named(fmt.Sprintf("r%d", i), harness.Capped("mps", 5, "memory", "1Gi")))
	}
	ns.Template(t, "half", resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: half, Constraints: []resourceapi.DeviceConstraint{{MatchAttribute: fullyQualified("gpu.aliyun.com/uuid")}},
	}})
	ns.Template(t, "one-more", harness.Requests(harness.Capped("mps", 5, "memory", "1Gi")))
	ns.Run(t, harness.Pod("a", "whole", harness.FromTemplate("half")),
		harness.Pod("b", "whole", harness.FromTemplate("half")))
	ns.HasUnits(t, "whole", 0, 0, 0, 0, 0, mps.MaxClients, 0, 0)
	ns.Create(t, harness.Pod("c", "whole", harness.FromTemplate("one-more")))
	ns.WaitUnschedulable(t, "c", noRoom)
	ns.Delete(t, "a")
	ns.WaitRunning(t, "c")

	ns.Delete(t, "b", "c")
	setMode("default")
	cluster.Publishes(t, "whole", harness.DeviceNames(8, "gpu-%d")...)
}
