// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

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
	eachHasItsOwn(t, ns, "apart", "a", "b")
	ns.Create(t, harness.Pod("two-cards", modesNode, harness.FromTemplate("two-cards")),
		harness.Pod("compute", modesNode, harness.FromTemplate("compute")))
	ns.WaitPodEvent(t, "two-cards", failedPrepare, "with MPS a container has to be on one GPU")
	ns.WaitUnschedulable(t, "compute", noRoom)
}

// eachHasItsOwn checks that of a claim with a request for each container, on GPUs of
// their own, each has the device node of its GPU, that GPU's daemon and a limit there.
func eachHasItsOwn(t *testing.T, ns *harness.Namespace, pod string, requests ...string) {
	t.Helper()
	grants := ns.Granted(t, pod)
	if len(grants) != len(requests) {
		t.Fatalf("pod %s was granted %v", pod, grants)
	}
	for i, grant := range grants {
		seesDaemonOf(t, ns, pod, grant.Request, grants[i:i+1])
		if env := ns.GPUEnv(t, pod, grant.Request); env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "" {
			t.Errorf("%s/%s has no limit: %v", pod, grant.Request, env)
		}
	}
}

func inModeCoreMem(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "rest", harness.Requests(harness.Capped("core-mem", 0, "memory", "3Gi", "cores", "80")))
	ns.Template(t, "more", harness.Requests(harness.Capped("core-mem", 0, "memory", "1Gi", "cores", "5")))
	ns.Template(t, "memory", harness.Requests(harness.Capped("cgpu", -1, "memory", "1Gi")))
	// A pod as on ACK, of 3 GiB and a fifth of the compute.
	fifth := harness.Document[corev1.Pod](t, "memory-and-compute.yaml")
	ns.Run(t, harness.On(modesNode, fifth)...)
	ns.Run(t, harness.Pod("rest", modesNode, harness.FromTemplate("rest")))
	ns.HasEnv(t, fifth.Name, "main", harness.WithEnv(harness.LegacyEnv(3, 15, 3, 0), "ALIYUN_COM_GPU_SCHD_WEIGHT", "4",
		"CUDA_MPS_PIPE_DIRECTORY", pipeDir, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3226M",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20"))
	seesGPUAndDaemon(t, ns, fifth.Name, "main")
	seesGPUAndDaemon(t, ns, "rest", "main")

	// There is memory left on the GPU, but no compute; and memory alone is not
	// to be had on this node.
	ns.Create(t, harness.Pod("more", modesNode, harness.FromTemplate("more")),
		harness.Pod("memory", modesNode, harness.FromTemplate("memory")))
	ns.WaitUnschedulable(t, "more", noRoom)
	ns.WaitUnschedulable(t, "memory", noRoom)
}

// Whoever may lift limits: the claim, the node's label, and the claim's word
// against its class'. The memory is granted all the same, and the pod's Events
// tell.
func limitsLifted(t *testing.T) {
	ns := cluster.Namespace(t)
	lift := func(disabled bool) resourceapi.DeviceConfiguration {
		return gpuConfig(fmt.Sprintf(`"disableIsolation":%t`, disabled))
	}
	spec := harness.Requests(harness.Capped("mps", 0, "memory", "2Gi"))
	ns.Template(t, "as-usual", spec)
	spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: lift(true)}}
	ns.Template(t, "lifted", spec)
	against := harness.Requests(harness.Capped("mps", 0, "memory", "2Gi"))
	against.Devices.Requests[0].Exactly.DeviceClassName = ns.DeviceClass(t, resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.aliyun.com" && device.attributes["gpu.aliyun.com"].mode == "mps"`,
		}}},
		Config: []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: lift(true)}},
	})
	against.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: lift(false)}}
	ns.Template(t, "against-its-class", against)

	const limit = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	env := harness.WithEnv(harness.LegacyEnv(2, 15, 2, 0), "CUDA_MPS_PIPE_DIRECTORY", pipeDir)
	ns.Run(t, harness.Pod("claim", modesNode, harness.FromTemplate("lifted")),
		harness.Pod("kept", modesNode, harness.FromTemplate("against-its-class")))
	ns.HasEnv(t, "claim", "main", withoutIsolation(env))
	ns.HasEnv(t, "kept", "main", harness.WithEnv(env, limit, "0=2150M"))

	setLabel := cluster.Label(t, modesNode, "cgpu.disable.isolation")
	began := time.Now()
	setLabel("true")
	// What is prepared before the plugin has seen the label does not use it.
	cluster.WaitNodeEvent(t, modesNode, began, "GPUIsolationDisabled", "cgpu.disable.isolation")
	ns.Run(t, harness.Pod("node", modesNode, harness.FromTemplate("as-usual")))
	ns.HasEnv(t, "node", "main", withoutIsolation(env))
	for _, pod := range []string{"claim", "node"} {
		ns.WaitPodEvent(t, pod, "GPUIsolationDisabled", "the limits of requests")
	}
	ns.HasUnits(t, modesNode, 6, 0, 0, 0)
}

// A node whose mode does not use MPS has no daemons, and one that comes to use it offers
// its GPUs when they serve.
func noDaemonsWithoutMPS(t *testing.T, setMode func(string)) {
	setMode("default")
	cluster.Publishes(t, modesNode, harness.DeviceNames(4, "gpu-%d")...)
	harness.Eventually(t, "the daemons to end", func(context.Context) error {
		var errs []error
		for _, g := range cluster.GPUs(t, modesNode) {
			status, err := cluster.MPS(modesNode).Status(g.UUID)
			if err == nil && !strings.Contains(status.Reason, "nothing on the node uses MPS") {
				err = fmt.Errorf("the daemon of GPU %s is %s: %s", g.UUID, status.State, status.Reason)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	supervisor := cluster.Supervisor(t, modesNode)
	harness.Eventually(t, "the daemons' processes to be gone", func(context.Context) error {
		daemon, err := harness.Child(supervisor, func(environ string) bool {
			return strings.Contains(environ, "CUDA_VISIBLE_DEVICES=")
		})
		if err == nil {
			return fmt.Errorf("process %d is the daemon of a GPU that nobody uses by MPS", daemon.Pid)
		}
		return nil
	})
	// The GPUs are everybody's again.
	for _, g := range cluster.GPUs(t, modesNode) {
		waitOpenToAll(t, modesNode, g.UUID)
	}
	ns := cluster.Namespace(t)
	ns.SetGPUProcesses(t, modesNode, harness.GPUProcess{MemoryMiB: 300})
	began := time.Now()
	setMode("mps")
	cluster.Publishes(t, modesNode, append([]string{"gpu-0-mps " + isolationGone}, harness.DevicesIn("mps")[1:]...)...)
	cluster.WaitNodeEvent(t, modesNode, began, "GPUIsolationUnavailable", "processes use the GPU beside MPS: process ")
	ns.SetGPUProcesses(t, modesNode)
	cluster.PublishesInAnyOrder(t, modesNode, harness.DevicesIn("mps")...)
	ns.Template(t, "one", harness.Requests(harness.Capped("mps", -1, "memory", "1Gi")))
	ns.Run(t, harness.Pod("after", modesNode, harness.FromTemplate("one")))
	seesGPUAndDaemon(t, ns, "after", "main")
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

// gpuConfig is the opaque configuration of the driver with these fields.
func gpuConfig(fields string) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
		Driver: "gpu.aliyun.com",
		Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig",` + fields +
			`}`)},
	}}
}

// withoutIsolation is the environment of a container whose limits are lifted.
func withoutIsolation(env map[string]string) map[string]string {
	env = maps.Clone(env)
	env["CGPU_DISABLE"] = "true"
	return env
}
