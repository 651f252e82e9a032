// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// running is the pod team-a/train, which runs on node n2.
func running() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train"},
		Spec: corev1.PodSpec{NodeName: "n2"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
}

// prepared has the claim hold a share of gpu-1 of node n2 for each request, and the driver say so in its status.
func prepared(t *testing.T, in *why.Input, name string, requests ...string) *resourceapi.ResourceClaim {
	t.Helper()
	claim := hold(in, "team-a", name, "n2", "gpu-1-share", "3Gi")
	one := claim.Status.Allocation.Devices.Results[0]
	claim.Status.Allocation.Devices.Results = nil
	data, err := json.Marshal(v1alpha1.DeviceStatus{GPUs: []v1alpha1.DeviceStatusGPU{
		{Index: 1, UUID: "GPU-n2-b", Model: "NVIDIA-A10"}}})
	expect.NoError(t, err)
	for _, request := range requests {
		one.Request, one.ShareID = request, ptr.To(types.UID(name+request))
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, one)
		claim.Status.Devices = append(claim.Status.Devices, resourceapi.AllocatedDeviceStatus{Driver: one.Driver,
			Pool: one.Pool, Device: one.Device, ShareID: ptr.To(name + request), Data: &runtime.RawExtension{Raw: data}})
	}
	return claim
}

// What is used is known by claim and GPU: several devices of a claim on a GPU, or of claims that a container has it by,
// say it once.
func TestUseIsToldOnce(t *testing.T) {
	for name, test := range map[string]struct {
		second []string
		used   map[why.ClaimGPU]why.Use
		want   string
	}{
		"two requests": {nil, map[why.ClaimGPU]why.Use{{Claim: "train-gpu", GPU: 1}: {MemoryBytes: 5800 << 20, Processes: 2},
			{Claim: "train-gpu", GPU: 0}: {MemoryBytes: 1 << 30, Processes: 1}}, `
  claim:     train-gpu, request a
  has:       3Gi of memory
  uses:      5800 MiB of memory, by 2 processes, counted together with request b

  claim:     train-gpu, request b
  has:       3Gi of memory
`},
		"two requests, no process": {nil, map[why.ClaimGPU]why.Use{{Claim: "train-gpu", GPU: 1}: {}}, `
  claim:     train-gpu, request a
  has:       3Gi of memory
  uses:      nothing at the moment: no process of the pod is on the GPU

  claim:     train-gpu, request b
  has:       3Gi of memory
  uses:      nothing at the moment: no process of the pod is on the GPU
`},
		"two claims": {[]string{"c"}, map[why.ClaimGPU]why.Use{
			{Claim: "more-gpu,train-gpu", GPU: 1}: {MemoryBytes: 1 << 30, Processes: 1},
			{Claim: "more-gpu", GPU: 1}:           {MemoryBytes: 1 << 20, Processes: 1}}, `
  claim:     train-gpu, request a
  has:       3Gi of memory
  uses:      1024 MiB of memory, by 1 process, counted together with claim more-gpu, request c; request b

  claim:     train-gpu, request b
  has:       3Gi of memory

  claim:     more-gpu, request c
  has:       3Gi of memory
  uses:      1 MiB of memory, by 1 process
`},
		"whose it is is not known": {[]string{"c"}, map[why.ClaimGPU]why.Use{
			{Claim: "train-gpu", GPU: 1}:          {Unknown: true},
			{Claim: "more-gpu,train-gpu", GPU: 1}: {MemoryBytes: 1 << 30, Processes: 1}}, `
  claim:     train-gpu, request a
  has:       3Gi of memory

  claim:     train-gpu, request b
  has:       3Gi of memory

  claim:     more-gpu, request c
  has:       3Gi of memory
  uses:      1024 MiB of memory, by 1 process, counted together with claim train-gpu, request a; claim train-gpu, request b
`},
		"each of its claims": {[]string{"c"}, map[why.ClaimGPU]why.Use{
			{Claim: "more-gpu", GPU: 1}: {MemoryBytes: 1 << 20, Processes: 1}}, `
  claim:     train-gpu, request a
  has:       3Gi of memory
  uses:      nothing at the moment: no process of the pod is on the GPU

  claim:     train-gpu, request b
  has:       3Gi of memory
  uses:      nothing at the moment: no process of the pod is on the GPU

  claim:     more-gpu, request c
  has:       3Gi of memory
  uses:      1 MiB of memory, by 1 process
`},
	} {
		t.Run(name, func(t *testing.T) {
			in := stage(t)
			in.Pod = running()
			in.PodClaims = []*resourceapi.ResourceClaim{prepared(t, &in, "train", "a", "b")}
			if test.second != nil {
				in.PodClaims = append(in.PodClaims, prepared(t, &in, "more", test.second...))
			}
			in.Used = test.used
			want := "Pod team-a/train runs on node n2.\n" +
				strings.ReplaceAll(test.want, "\n  claim:", "\ngpu-1 (NVIDIA-A10, GPU-n2-b)\n  claim:")
			expect.Equal(t, want, printed(t, in), "printed")
		})
	}
}

// Of a claim it is what all its pods use, and that of a container which has the GPU by another claim, too, says so.
func TestUseOfAClaim(t *testing.T) {
	for name, test := range map[string]struct {
		used map[why.ClaimGPU]why.Use
		want string
	}{
		"by another claim, too": {map[why.ClaimGPU]why.Use{
			{Claim: "shared,train-gpu", GPU: 1}: {MemoryBytes: 1 << 30, Processes: 1},
			{Claim: "train-gpu", GPU: 1}:        {MemoryBytes: 1 << 30, Processes: 1}},
			"  uses:      2048 MiB of memory, by 2 processes, counted together with claim shared\n"},
		"nothing": {map[why.ClaimGPU]why.Use{},
			"  uses:      nothing at the moment: no process of its pods is on the GPU\n"},
	} {
		t.Run(name, func(t *testing.T) {
			in := stage(t)
			in.Claim = prepared(t, &in, "train", "a")
			in.Pod = running()
			in.Used = test.used
			want := "Claim team-a/train-gpu is allocated and used by pod team-a/train.\n\ngpu-1 (NVIDIA-A10, GPU-n2-b)\n" +
				"  claim:     train-gpu, request a\n  has:       3Gi of memory\n" + test.want
			expect.Equal(t, want, printed(t, in), "printed")
		})
	}
}

// Each level that a device can have is told in words.
func TestEachLevelHasWords(t *testing.T) {
	for _, i := range append(mode.Isolations(), mode.Isolation{Level: mode.LevelDriver}) {
		in := stage(t)
		in.Claim = hold(&in, "team-a", "train", "n2", "gpu-1-share", "8Gi")
		for d := range in.Slices[1].Spec.Devices {
			in.Slices[1].Spec.Devices[d].Attributes[v1alpha1.AttrIsolationLevel] = resourceapi.DeviceAttribute{
				StringValue: ptr.To(string(i.Level))}
		}
		checkSays(t, printed(t, in), []string{"(level " + string(i.Level) + ": "}, nil)
	}
}

// The most frequent mistake in a first manifest: the pod has the claim, and its container nothing of it.
func TestClaimThatNoContainerUses(t *testing.T) {
	const unseen = "but:       no container sees it: name the claim in resources.claims"
	for name, test := range map[string]struct {
		uses   []corev1.ResourceClaim
		unseen bool
	}{
		"nothing":         {nil, true},
		"another request": {[]corev1.ResourceClaim{{Name: "gpus", Request: "nic"}}, true},
		"the request":     {[]corev1.ResourceClaim{{Name: "gpus", Request: "gpu"}}, false},
		"the claim":       {[]corev1.ResourceClaim{{Name: "gpus"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := stage(t)
			held := hold(&in, "team-a", "train", "n2", "gpu-1-share", "8Gi")
			in.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train"}, Spec: corev1.PodSpec{
				NodeName: "n2", ResourceClaims: []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: &held.Name}},
				Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Claims: test.uses}}}},
				Status: corev1.PodStatus{Phase: corev1.PodRunning}}
			in.PodClaims = []*resourceapi.ResourceClaim{held}
			expect.Equal(t, test.unseen, strings.Contains(printed(t, in), unseen), "it says so")
		})
	}
}

func TestPodThatCannotStart(t *testing.T) {
	checkAnswers(t, stage, map[string]situation{
		"a pod that names its node": {func(in *why.Input) {
			waiting(in, asking("team-a", "c", "share.gpu.aliyun.com", "8Gi"))
			in.Pod.Spec.NodeName, in.Pod.Status.Phase = "n2", corev1.PodPending
		}, []string{"Pod team-a/train cannot start on node n2: its claims are not allocated. The scheduler allocates them",
			"What would help:\n- the nodeSelector kubernetes.io/hostname: n2 instead of nodeName"}, []string{"about to start"}},
		"a pod whose claim the driver refuses": {func(in *why.Input) {
			in.PodClaims = []*resourceapi.ResourceClaim{hold(in, "team-b", "big", "n2", "gpu-0-share", "17Gi")}
			in.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "big"}}
			in.Pod.Spec.NodeName, in.Pod.Status.Phase = "n2", corev1.PodPending
			in.NotPrepared = `GpuConfig: env is "none"`
		}, []string{"big does not start yet on node n2", `The kubelet says: GpuConfig: env is "none"`}, nil},
	})
}
