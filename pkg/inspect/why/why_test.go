// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// stage is a cluster: n1 has a whole T4, n2 shares two A10, n3, which is tainted, one.
func stage(t *testing.T) why.Input {
	t.Helper()
	classes, err := deviceclasses.Modes()
	expect.NoError(t, err)
	in := why.Input{Now: time.Unix(0, 0), Snapshot: scheduling.Snapshot{Classes: classes}}
	a10 := gpu.GPU{Model: "NVIDIA-A10", MemoryMiB: 23028}
	for _, n := range []struct {
		name   string
		mode   mode.Mode
		gpus   []gpu.GPU
		taints []corev1.Taint
	}{
		{"n1", mode.Exclusive, []gpu.GPU{{Model: "Tesla-T4", MemoryMiB: 15360}}, nil},
		{"n2", mode.Share, []gpu.GPU{a10, a10}, nil},
		{"n3", mode.Share, []gpu.GPU{a10}, []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}},
	} {
		for i := range n.gpus {
			n.gpus[i].Index, n.gpus[i].UUID = i, "GPU-"+n.name+"-"+string(rune('a'+i))
		}
		in.Slices = append(in.Slices, published.Slices(n.name, devices.Build(&gpu.Machine{GPUs: n.gpus},
			devices.Options{Pool: v1alpha1.PoolName(n.name), Mode: n.mode, Slots: 20, Isolation: "none",
				IsolationLevel: "none"}))...)
		in.Nodes = append(in.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name,
			Labels: map[string]string{corev1.LabelHostname: n.name}}, Spec: corev1.NodeSpec{Taints: n.taints}})
	}
	return in
}

// hold has a pod's claim hold GiB of a device of a node.
func hold(in *why.Input, namespace, pod, node, device, amount string) *resourceapi.ResourceClaim {
	result := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: v1alpha1.DriverName,
		Pool: v1alpha1.PoolName(node), Device: device}
	if amount != "" {
		result.ShareID = ptr.To(types.UID(namespace + pod + device))
		result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
			v1alpha1.CapMemory: resource.MustParse(amount), v1alpha1.CapSlots: resource.MustParse("1"),
			v1alpha1.CapCores: resource.MustParse("0")}
	}
	claim := asking(namespace, pod+"-gpu", "share.gpu.aliyun.com", amount)
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{result}}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod}}
	in.Claims = append(in.Claims, claim)
	return claim
}

func asking(namespace, name, class, memory string) *resourceapi.ResourceClaim {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: 1,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount}
	if memory != "" {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			v1alpha1.CapMemory: resource.MustParse(memory)}}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}}}}}
}

// waiting is the pod team-a/train with a claim that is not allocated.
func waiting(in *why.Input, claims ...*resourceapi.ResourceClaim) {
	in.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train"}}
	in.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Message: "0/3 nodes are available: 3 cannot allocate all claims."}}
	in.PodClaims = claims
}

// printed is the answer as it is printed.
func printed(t *testing.T, in why.Input) string {
	t.Helper()
	_, text := answered(t, in)
	return text
}

// answered is the answer, and how it is printed.
func answered(t *testing.T, in why.Input) (*why.Answer, string) {
	t.Helper()
	answer, err := why.Of(t.Context(), in)
	expect.NoError(t, err)
	var text strings.Builder
	expect.NoError(t, answer.Print(&text))
	return answer, text.String()
}

// checkSays checks what is in a text and what is not.
func checkSays(t *testing.T, got string, want, not []string) {
	t.Helper()
	expect.Says(t, got, want...)
	for _, n := range not {
		expect.Equal(t, false, strings.Contains(got, n), "it says %q:\n%s", n, got)
	}
}

// situation is what becomes of a cluster, and what the answer says then, and does not say.
type situation struct {
	change    func(in *why.Input)
	want, not []string
}

// checkAnswers checks the answers in situations that begin with the same cluster.
func checkAnswers(t *testing.T, begin func(t *testing.T) why.Input, situations map[string]situation) {
	t.Helper()
	for name, test := range situations {
		t.Run(name, func(t *testing.T) {
			in := begin(t)
			test.change(&in)
			checkSays(t, printed(t, in), test.want, test.not)
		})
	}
}

func TestPodThatFindsNoRoom(t *testing.T) {
	in := stage(t)
	hold(&in, "team-b", "big", "n2", "gpu-0-share", "17Gi")
	hold(&in, "team-b", "bigger", "n2", "gpu-1-share", "20Gi")
	waiting(&in, asking("team-a", "train-gpu", "share.gpu.aliyun.com", "8Gi"))
	const want = `Pod team-a/train waits: no node has room for its GPUs now.
Asked: claim train-gpu, request gpu: 1 of class share.gpu.aliyun.com, memory 8Gi

Looked at 3 nodes with 4 GPUs:
NODE  GPUS  LACKS
n2    2     memory: asked 8Gi, largest free 5Gi on gpu-0
n1    1     mode: asked class share.gpu.aliyun.com, offers exclusive
n3    1     the pod does not tolerate its taint dedicated:NoSchedule

What would help:
- node n3 has the GPUs free, but the pod does not tolerate its taint dedicated:NoSchedule
- 3Gi more memory free of gpu-0-share on node n2; held by pod team-b/big (17Gi)

The scheduler says: 0/3 nodes are available: 3 cannot allocate all claims.
`
	expect.Equal(t, want, printed(t, in), "printed")
}

func TestAnswers(t *testing.T) {
	share := func(memory string) *resourceapi.ResourceClaim {
		return asking("team-a", "c", "share.gpu.aliyun.com", memory)
	}
	checkAnswers(t, stage, map[string]situation{
		"there is room": {func(in *why.Input) { waiting(in, share("8Gi")) }, []string{
			"waits, but not for GPUs: those it asks for are free on node n2 (gpu-0-share). The scheduler is about to",
			"n2    2     nothing: it has room"}, []string{"What would help"}},
		"there is room, as far as can be seen": {func(in *why.Input) {
			waiting(in, share("8Gi"))
			in.OthersUnknown = true
		}, []string{"would find its GPUs free on node n2 (gpu-0-share), were it not for"}, []string{"but not for GPUs"}},
		"there is room, as far as nodes are known": {func(in *why.Input) {
			waiting(in, share("8Gi"))
			in.NodesUnknown = true
			in.Pod.Spec.NodeSelector = map[string]string{"pool": "train"}
		}, []string{"would find its GPUs free on node n2 (gpu-0-share), were it not for what labels and taints of nodes"},
			[]string{"but not for GPUs", "nodeSelector"}},
		"never": {func(in *why.Input) { waiting(in, share("90Gi")) }, []string{
			"waits: the pod can never be scheduled on this cluster as it is: request gpu: 90Gi of memory asked for; the " +
				"largest GPU that matches has 22Gi (node n2, NVIDIA-A10).",
			"memory: asked 90Gi, the largest GPU has 22Gi (gpu-0)",
			"- asking for 22Gi of memory at most, or a node with larger GPUs"}, nil},
		"a whole GPU that is taken": {func(in *why.Input) {
			hold(in, "team-b", "whole", "n1", "gpu-0", "")
			waiting(in, asking("team-a", "c", "exclusive.gpu.aliyun.com", ""))
		}, []string{"no node has room", "n1    1     taken: gpu-0", "- gpu-0 of node n1 given back; held by pod " +
			"team-b/whole"}, nil},
		"a class that is not there": {func(in *why.Input) {
			waiting(in, asking("team-a", "c", "exclusive.tesla-t5.gpu.aliyun.com", ""))
		}, []string{"DeviceClass exclusive.tesla-t5.gpu.aliyun.com does not exist"},
			[]string{"Looked at", "asking for"}},
		"a claim of a class that is not there": {func(in *why.Input) {
			in.Claim = asking("team-a", "c", "exclusive.tesla-t5.gpu.aliyun.com", "")
		}, []string{"no pod waits for it", ". The scheduler would give up: ", "tesla-t5.gpu.aliyun.com does not exist"},
			[]string{"it has room"}},
		"devices of others": {func(in *why.Input) {
			in.Classes = append(in.Classes, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"},
				Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
					CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "nic.example.com"`}}}}})
			waiting(in, asking("team-a", "c", "nic", ""))
		}, []string{"devices of other drivers"}, []string{"asking for a class", "label ack.node"}},
		"a claim that is not made": {func(in *why.Input) {
			waiting(in)
			in.Missing = []string{"the ResourceClaimTemplate t does not exist"}
		}, []string{"waits for claims that are not there: the ResourceClaimTemplate t does not exist."},
			[]string{"Looked at"}},
		"scheduling gates": {func(in *why.Input) {
			waiting(in, share("8Gi"))
			in.Pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/hold"}}
		}, []string{"its schedulingGates hold it back (example.com/hold)"}, []string{"Looked at", "best-node"}},
		"the gate of costly claims": {func(in *why.Input) {
			waiting(in, share("8Gi"))
			in.Pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "gpu.aliyun.com/costly-claims"}}
		}, []string{"hold it back (gpu.aliyun.com/costly-claims)", "its Event GPUClaimWaiting says what is missing"},
			[]string{"Looked at", "within seconds"}},
		"the gate of best-node": {func(in *why.Input) {
			waiting(in, share("8Gi"))
			in.Pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "gpu.aliyun.com/best-node"}}
		}, []string{"hold it back (gpu.aliyun.com/best-node)",
			"gpu-compat-controller removes gpu.aliyun.com/best-node within seconds"},
			[]string{"Looked at"}},
		"a scheduler that says nothing": {func(in *why.Input) {
			waiting(in, share("8Gi"))
			in.Pod.Spec.SchedulerName, in.Pod.Status.Conditions = "volcano", nil
		}, []string{"The scheduler volcano, which the pod names, has not reported on it"}, nil},
		"a scheduler that says something": {func(in *why.Input) {
			waiting(in, share("8Gi"))
			in.Pod.Spec.SchedulerName = "volcano"
		}, []string{"The scheduler says: "}, []string{"said nothing"}},
		"a gang": {func(in *why.Input) {
			waiting(in, share("8Gi"))
			in.Pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
		}, []string{"The pod is one of the gang (PodGroup) g", "waits: its own GPUs are free on node n2 (gpu-0-share); the " +
			"gang may need more at once"}, []string{"but not for GPUs"}},
		"no GPUs": {func(in *why.Input) { waiting(in) }, []string{"asks for no GPUs of this driver"}, nil},
		"an end": {func(in *why.Input) {
			waiting(in, share("8Gi"))
			in.Pod.Status.Phase = corev1.PodSucceeded
		}, []string{"has ended (Succeeded): it holds no GPUs"}, nil},
		"a claim that nobody uses": {func(in *why.Input) { in.Claim = share("8Gi") }, []string{
			"Claim team-a/c is not allocated, and no pod waits for it", "It would fit on node n2 (gpu-0-share)."}, nil},
		"a claim that nobody is seen to use": {func(in *why.Input) {
			in.Claim, in.PodsUnknown = share("8Gi"), true
		}, []string{"Claim team-a/c is not allocated: a claim is allocated when"}, []string{"no pod waits"}},
		"a claim of a pod that the scheduler did not place": {func(in *why.Input) {
			waiting(in, share("8Gi"))
			in.Claim, in.Pod.Spec.NodeName = in.PodClaims[0], "n2"
		}, []string{"Claim team-a/c is not allocated, though pod train, which uses it, is on node n2"}, []string{"runs"}},
		"a claim with its pod": {func(in *why.Input) {
			waiting(in, share("40Gi"))
			in.Claim = in.PodClaims[0]
		}, []string{"Claim team-a/c, for which pod train waits, waits: the pod can never"}, nil},
		"a claim that holds its GPU": {func(in *why.Input) {
			in.Claim = hold(in, "team-b", "big", "n2", "gpu-0-share", "17Gi")
		}, []string{"Claim team-b/big-gpu is allocated and used by pod team-b/big.", "gpu-0-share\n",
			"has:       17Gi of memory"}, nil},
	})
}

// many has nodes m01, m02 and so on with four A10 each, of which others hold some.
func many(t *testing.T, m mode.Mode, amount string, held ...int) why.Input {
	t.Helper()
	in := stage(t)
	in.Nodes, in.Slices = nil, nil
	for n, taken := range held {
		name, machine := fmt.Sprintf("m%02d", n+1), &gpu.Machine{}
		for i := range 4 {
			machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprint("GPU-", name, "-", i), Model: "NVIDIA-A10",
				MemoryMiB: 23028})
		}
		slice := published.Slices(name, devices.Build(machine, devices.Options{Pool: v1alpha1.PoolName(name), Mode: m,
			Slots: 20}))[0]
		in.Slices = append(in.Slices, slice)
		in.Nodes = append(in.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		for i := range taken {
			hold(&in, "team-b", fmt.Sprint(name, "-", i), name, slice.Spec.Devices[i].Name, amount)
		}
	}
	return in
}

// Of many nodes those are shown that lack least, and what would help is as much as is missing.
func TestNodesThatLackLeastAreShown(t *testing.T) {
	for name, test := range map[string]struct {
		mode          mode.Mode
		class, amount string
		held          []int
		count         int64
		selector      string
		want, not     []string
	}{
		"the last of 14": {mode.Exclusive, "exclusive.gpu.aliyun.com", "",
			[]int{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1}, 4, "", []string{
				"LACKS\nm14   4     asked 4 GPUs, 3 free; taken: gpu-0\nm01 ", "and 2 nodes that lack as much or more",
				"would help:\n- gpu-0 of node m14 given back; held by pod team-b/m14-0\n"}, nil},
		"two of three": {mode.Exclusive, "exclusive.gpu.aliyun.com", "", []int{3}, 3, "", []string{
			"- 2 of gpu-0, gpu-1, gpu-2 of node m01 given back; held by pod team-b/m01-0"}, nil},
		"two that are full": {mode.Share, "share.gpu.aliyun.com", "17Gi", []int{4}, 2, "", []string{
			"- room on 2 of gpu-0-share, gpu-1-share, gpu-2-share and 1 more of node m01: gpu-0-share lacks 3Gi of " +
				"memory; held by pod team-b/m01-0 (17Gi)"}, nil},
		"more than the node has": {mode.Exclusive, "exclusive.gpu.aliyun.com", "", []int{2}, 5, "", []string{
			"5 GPUs of class exclusive.gpu.aliyun.com asked for; no node has more than 4",
			"asked 5 GPUs, 2 free; taken: gpu-0, gpu-1", "- asking for fewer at once, or a node with more such GPUs"},
			[]string{"given back"}},
		"more than match": {mode.Share, "share.gpu.aliyun.com", "17Gi", []int{2}, 3,
			`device.attributes["gpu.aliyun.com"].index < 2`, []string{
				"asked 3 GPUs, 0 free; memory: asked 8Gi, largest free 5Gi on gpu-0",
				"- asking for fewer at once, or a node with more such GPUs"}, []string{"no GPU matches", "another selector"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := many(t, test.mode, test.amount, test.held...)
			memory := ""
			if test.amount != "" {
				memory = "8Gi"
			}
			asked := asking("team-a", "c", test.class, memory)
			asked.Spec.Devices.Requests[0].Exactly.Count = test.count
			if test.selector != "" {
				asked.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{
					CEL: &resourceapi.CELDeviceSelector{Expression: test.selector}}}
			}
			waiting(&in, asked)
			checkSays(t, printed(t, in), test.want, test.not)
		})
	}
}

func TestPodThatRuns(t *testing.T) {
	in := stage(t)
	claim := hold(&in, "team-a", "train", "n2", "gpu-1-share", "8Gi")
	in.Pod, in.PodClaims = running(), []*resourceapi.ResourceClaim{claim}
	in.Pod.Status.Phase = corev1.PodPending
	const device = `
gpu-1-share
  claim:     train-gpu, request gpu
  has:       8Gi of memory
  mode:      share
  isolation: none (level none: nothing holds a program to its share)
`
	const before = "Pod team-a/train is about to start on node n2.\n" + device +
		"  but:       the driver has not said in the claim's status that it prepared it\n"
	expect.Equal(t, before, printed(t, in), "before the driver has said anything")
	// Its containers would not run had the driver not prepared it: CLAIM_STATUS=false keeps it
	// from saying so, and nothing is wrong.
	in.Pod.Status.Phase = corev1.PodRunning
	expect.Equal(t, "Pod team-a/train runs on node n2.\n"+device, printed(t, in), "without CLAIM_STATUS")
	data, err := json.Marshal(v1alpha1.DeviceStatus{Mode: "mps", Isolation: "mps", IsolationLevel: "cooperative",
		MemoryMiB: 8192, GPUs: []v1alpha1.DeviceStatusGPU{{Index: 1, UUID: "GPU-n2-b", Model: "NVIDIA-A10"}}})
	expect.NoError(t, err)
	result := claim.Status.Allocation.Devices.Results[0]
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: result.Driver, Pool: result.Pool,
		Device: result.Device, ShareID: ptr.To(string(*result.ShareID)), Data: &runtime.RawExtension{Raw: data},
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue},
			{Type: "Healthy", Status: metav1.ConditionFalse, Message: "XID 79"}}}}
	in.Used = map[why.ClaimGPU]why.Use{{Claim: "train-gpu", GPU: 1}: {MemoryBytes: 5000 << 20, Processes: 2}}
	const after = `Pod team-a/train runs on node n2.

gpu-1 (NVIDIA-A10, GPU-n2-b)
  claim:     train-gpu, request gpu
  has:       8Gi of memory
  mode:      mps
  isolation: mps (level cooperative: a program is held to its share unless it sets out not to be)
  uses:      5000 MiB of memory, by 2 processes
  but:       not healthy: XID 79
`
	expect.Equal(t, after, printed(t, in), "printed")
}

// Where a device plugin serves a resource, the scheduler asks that plugin, not this driver.
func TestNodesOfADevicePluginAreNamed(t *testing.T) {
	in := stage(t)
	in.Classes[0].Spec.ExtendedResourceName = ptr.To("nvidia.com/gpu")
	waiting(&in)
	one := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	in.Pod.Spec.Containers = []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{Requests: one}},
		{Name: "b", Resources: corev1.ResourceRequirements{Requests: one}}}
	for _, amount := range []string{"0", "2"} {
		in.Nodes[0].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(amount)}
		answer, err := why.Of(t.Context(), in)
		expect.NoError(t, err)
		got := strings.Join(answer.Notes, " ")
		if want := "a device plugin that serves nvidia.com/gpu: what it has free is not looked at"; amount == "0" &&
			got != "" ||
			amount != "0" && strings.Count(got, want) != 1 {
			t.Errorf("with %s of it on a node it notes %q", amount, got)
		}
	}
}
