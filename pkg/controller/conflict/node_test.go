// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// twoGPUs are of 15 GiB.
var twoGPUs = &gpu.Machine{GPUs: []gpu.GPU{
	{Index: 0, UUID: "GPU-0", Model: "Tesla V100", MemoryMiB: 16130},
	{Index: 1, UUID: "GPU-1", Model: "Tesla V100", MemoryMiB: 16130},
}}

// published are the node's slices as the cache holds them.
func published(m *gpu.Machine, node string, options devices.Options) []*resourceapi.ResourceSlice {
	options.Pool = v1alpha1.PoolName(node)
	pool := devices.Build(m, options).Pools[options.Pool]
	var found []*resourceapi.ResourceSlice
	for _, slice := range pool.Slices {
		found = append(found, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: v1alpha1.DriverName, NodeName: &node, Devices: slice.Devices,
				Pool: resourceapi.ResourcePool{Name: options.Pool, ResourceSliceCount: int64(len(pool.Slices))},
			}})
	}
	return found
}

// claimOf is a claim of the pod with that name, allocated a device and so much of it.
func claimOf(pod, device, memory string) *resourceapi.ResourceClaim {
	result := resourceapi.DeviceRequestAllocationResult{Request: "main", Driver: v1alpha1.DriverName, Pool: "n1/gpu",
		Device: device}
	if memory != "" {
		result.ShareID = ptr.To(types.UID("share-" + pod))
		result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
			v1alpha1.CapMemory: resource.MustParse(memory), v1alpha1.CapSlots: resource.MustParse("1"),
		}
	}
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: pod, UID: types.UID("claim-" + pod),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID(pod),
				Controller: ptr.To(true)}},
		},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}},
		}},
	}
}

// podOf is a pod on node n1 that waits for the claim of its name.
func podOf(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec: corev1.PodSpec{NodeName: "n1", ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu",
			ResourceClaimTemplateName: ptr.To("t")}}},
		Status: corev1.PodStatus{
			Phase:                 corev1.PodPending,
			ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &name}},
		},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func running(pod *corev1.Pod) { pod.Status.Phase = corev1.PodRunning }

func deleted(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{} }

// pulling has a sandbox, and no container yet.
func pulling(pod *corev1.Pod) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
}

// initialised has lost its sandbox after an init container has ended.
func initialised(pod *corev1.Pod) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}}
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{
		{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
}

func phase(p corev1.PodPhase) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Status.Phase = p }
}

// using has the pod use a claim that was not made for it.
func using(claim string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
		pod.Status.ResourceClaimStatuses = nil
	}
}

// extended has the pod's claim be the one of its extended resources.
func extended(pod *corev1.Pod) {
	pod.Spec.ResourceClaims, pod.Status.ResourceClaimStatuses = nil, nil
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: pod.Name}
}

func TestRefusals(t *testing.T) {
	admin := claimOf("new", "gpu-0-share", "7Gi")
	admin.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	shared := claimOf("shared", "gpu-0-share", "7Gi")
	shared.OwnerReferences = nil
	elsewhere := claimOf("old", "gpu-0-share", "12Gi")
	elsewhere.Status.Allocation.Devices.Results[0].Pool = "n2/gpu"
	otherPod := claimOf("old", "gpu-0-share", "12Gi")
	otherPod.OwnerReferences[0].UID = "earlier"
	broken := claimOf("new", "gpu-0-share", "7Gi")
	broken.Status.Allocation.Devices.Results[0].ShareID = nil
	claims := func(c ...*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim { return c }
	pods := func(p ...*corev1.Pod) []*corev1.Pod { return p }
	twelve, seven := claimOf("old", "gpu-0-share", "12Gi"), claimOf("new", "gpu-0-share", "7Gi")

	for name, test := range map[string]struct {
		claims []*resourceapi.ResourceClaim
		pods   []*corev1.Pod
		want   []string // "pod: reason"
	}{
		"others run on the GPU": {claims(twelve, seven), pods(podOf("old", running), podOf("new")),
			[]string{"new: 7 GiB asked for, but 12 of 15 GiB are already granted"}},
		"others pull their image": {claims(twelve, seven), pods(podOf("old", pulling), podOf("new")),
			[]string{"new: 7 GiB asked for"}},
		"others have begun": {claims(twelve, seven), pods(podOf("old", initialised), podOf("new")),
			[]string{"new: 7 GiB asked for"}},
		"no other has started":   {claims(twelve, seven), pods(podOf("old"), podOf("new")), nil},
		"others are about to go": {claims(twelve, seven), pods(podOf("old", running, deleted), podOf("new")), nil},
		"others have ended": {claims(twelve, seven), pods(podOf("old", phase(corev1.PodSucceeded)), podOf("new")),
			nil},
		"others have failed": {claims(twelve, seven),
			pods(podOf("old", pulling, phase(corev1.PodFailed)), podOf("new")), nil},
		"others are not there": {claims(twelve, seven), pods(podOf("new")), nil},
		"it fits": {claims(twelve, claimOf("new", "gpu-0-share", "3Gi")),
			pods(podOf("old", running), podOf("new")), nil},
		"on another GPU": {claims(twelve, claimOf("new", "gpu-1-share", "7Gi")),
			pods(podOf("old", running), podOf("new")), nil},
		"others on another node":    {claims(elsewhere, seven), pods(podOf("old", running), podOf("new")), nil},
		"a claim of an earlier pod": {claims(otherPod, seven), pods(podOf("old", running), podOf("new")), nil},
		"it runs itself":            {claims(twelve, seven), pods(podOf("old", running), podOf("new", running)), nil},
		"it goes":                   {claims(twelve, seven), pods(podOf("old", running), podOf("new", deleted)), nil},
		"it is on no node": {claims(twelve, seven),
			pods(podOf("old", running), podOf("new", func(p *corev1.Pod) { p.Spec.NodeName = "" })), nil},
		"it has no claim yet":  {claims(twelve), pods(podOf("old", running), podOf("new")), nil},
		"an administrator's":   {claims(twelve, admin), pods(podOf("old", running), podOf("new")), nil},
		"wrong in another way": {claims(twelve, broken), pods(podOf("old", running), podOf("new")), nil},
		"a whole GPU": {claims(claimOf("old", "gpu-0", ""), claimOf("new", "gpu-0", "")),
			pods(podOf("old", running), podOf("new")), []string{"new: already held as a whole by claim default/old"}},
		"an extended resource": {claims(claimOf("old", "gpu-0", ""), claimOf("new", "gpu-0", "")),
			pods(podOf("old", extended, running), podOf("new", extended)), []string{"new: already held as a whole"}},
		"a share of a whole GPU": {claims(claimOf("old", "gpu-0", ""), seven), pods(podOf("old", running), podOf("new")),
			[]string{"new: already held as a whole"}},
		"two modes": {claims(twelve, claimOf("new", "gpu-0-mps", "1Gi")),
			pods(podOf("old", running), podOf("new")), []string{"new: asked for in mode mps"}},
		"a linked set": {claims(claimOf("old", "gpu-1", ""), claimOf("new", "gpus-0-1", "")),
			pods(podOf("old", running), podOf("new")), []string{"new: already held as a whole"}},
		"several, in order": {claims(twelve, claimOf("b", "gpu-0-share", "4Gi"), claimOf("a", "gpu-0-share",
			"4Gi")), pods(podOf("b"), podOf("old", running), podOf("a")), []string{"a: 4 GiB", "b: 4 GiB"}},
		"a claim of several pods": {claims(twelve, shared), pods(podOf("old", running), podOf("new", using("shared"))),
			[]string{"new (shared): 7 GiB"}},
		"a claim others started with": {claims(twelve, shared),
			pods(podOf("old", running), podOf("first", using("shared"), running), podOf("new", using("shared"))), nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := Node{Name: "n1", Claims: test.claims, Pods: test.pods}
			for _, g := range twoGPUs.GPUs {
				n.GPUs = append(n.GPUs, GPU{GPU: g})
			}
			conflicts := n.Conflicts()
			if len(conflicts) != len(test.want) {
				t.Fatalf("%d pods are refused, want %d: %v", len(conflicts), len(test.want), conflicts)
			}
			for i, r := range conflicts {
				who, reason, _ := strings.Cut(test.want[i], ": ")
				got := r.Pod.Name
				if !r.Own {
					got += " (" + r.Claim.Name + ")"
				}
				if got != who || !strings.Contains(r.Reason.Error(), reason) {
					t.Errorf("%s: %v, want %s", got, r.Reason, test.want[i])
				}
			}
		})
	}
}

// What pods without a claim hold, the node shows as taken off its GPUs.
func TestRefusedBesidePodsWithoutAClaim(t *testing.T) {
	left := devices.Options{Mode: mode.Share, Slots: 20,
		Room: map[string]gpu.Amount{"GPU-0": {Units: 5, Cores: 100, Shares: 19}}}
	n := Node{Name: "n1", Claims: []*resourceapi.ResourceClaim{claimOf("new", "gpu-0-share", "7Gi")},
		Pods: []*corev1.Pod{podOf("new"), {
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "native"},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"aliyun.com/gpu-mem": resource.MustParse("10")},
			}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}}}
	n.GPUs = gpusOf(t, left)
	conflicts := n.Conflicts()
	if len(conflicts) != 1 {
		t.Fatalf("%d pods are refused, want 1", len(conflicts))
	}
	for _, want := range []string{"7 GiB asked for, but 10 of 15 GiB are already granted", "default/native"} {
		if reason := conflicts[0].Reason.Error(); !strings.Contains(reason, want) {
			t.Errorf("reason %q, want %q in it", reason, want)
		}
	}
}

func gpusOf(t *testing.T, options devices.Options) []GPU {
	t.Helper()
	var kept []*view.Slice
	for _, slice := range published(twoGPUs, "n1", options) {
		kept = append(kept, view.Read(slice))
	}
	found, whole, err := GPUsOf("n1", kept)
	if err != nil || !whole {
		t.Fatalf("whole %v, %v", whole, err)
	}
	return found
}

func TestGPUsAreThoseOfTheSlices(t *testing.T) {
	prepared := devices.Options{Mode: mode.Share, Slots: 20,
		GPUTaints: map[string][]resourceapi.DeviceTaint{"GPU-1": {{Key: v1alpha1.TaintHeld}}}}
	want := []GPU{
		{GPU: gpu.GPU{Index: 0, UUID: "GPU-0", Model: "Tesla V100", MemoryMiB: 16130}},
		{GPU: gpu.GPU{Index: 1, UUID: "GPU-1", Model: "Tesla V100", MemoryMiB: 16130},
			WithoutClaim: deviceplugin.GPU{Taken: deviceplugin.Taken{Whole: true}}},
	}
	if diff := cmp.Diff(want, gpusOf(t, prepared)); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	if found, whole, err := GPUsOf("n1", nil); len(found) > 0 || whole || err != nil {
		t.Errorf("of nothing: %v, whole %v, %v", found, whole, err)
	}
}

func TestMergedGPUIsClosedInAllModesOnly(t *testing.T) {
	device := func(index int, units int64, closed bool) GPU {
		return GPU{GPU: gpu.GPU{Index: index}, WithoutClaim: deviceplugin.GPU{
			Taken: deviceplugin.Taken{Amount: gpu.Amount{Units: units}, Whole: closed},
		}}
	}
	got := merge([]GPU{device(0, 0, true), device(0, 3, false), device(1, 0, true), device(1, 0, true)})
	if diff := cmp.Diff([]GPU{device(0, 3, false), device(1, 0, true)}, got); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
}

// A tenant that changes whose claim it is does not hide what its pod holds.
func TestHolderWhoseClaimNamesNoOwner(t *testing.T) {
	found := gpusOf(t, devices.Options{Mode: mode.Exclusive})
	holder, pendingPods := claimOf("holder", "gpu-0", ""), claimOf("waiting", "gpu-0", "")
	holder.OwnerReferences = nil
	holder.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{
		{Resource: "pods", Name: "holder", UID: "holder"}}
	n := Node{Name: "n1", GPUs: found, Claims: []*resourceapi.ResourceClaim{holder, pendingPods},
		Pods: []*corev1.Pod{podOf("holder", running), podOf("waiting")}}
	if conflicts := n.Conflicts(); len(conflicts) != 1 || conflicts[0].Pod.Name != "waiting" {
		t.Errorf("refusals %v", conflicts)
	}
}

// A MIG instance that others hold keeps a pod waiting as a GPU does, and of instances that are made for claims those
// that would lie in one place.
func TestConflictsOverMIGInstances(t *testing.T) {
	kind := func(id int, profile string, size int, starts ...int) gpu.Profile {
		return gpu.Profile{Kind: gpu.Instance{ProfileID: id, Profile: profile, Size: size}, Starts: starts,
			Count: len(starts)}
	}
	m := &gpu.Machine{Partitioned: []gpu.Partitioned{
		{GPU: gpu.GPU{Index: 0, UUID: "GPU-0"}, Instances: []gpu.Instance{
			{InstanceID: gpu.InstanceID{GI: 13}, UUID: "MIG-6", ProfileID: 19, Profile: "1g.10gb", Start: 6, Size: 1},
			{InstanceID: gpu.InstanceID{GI: 12}, UUID: "MIG-5", ProfileID: 19, Profile: "1g.10gb", Start: 5, Size: 1}}},
		{GPU: gpu.GPU{Index: 1, UUID: "GPU-1"}, Profiles: []gpu.Profile{kind(19, "1g.10gb", 1, 0, 1, 5),
			kind(9, "3g.40gb", 4, 0, 4)}}}}
	var kept []*view.Slice
	for _, slice := range published(m, "n1", devices.Options{Mode: mode.Exclusive}) {
		kept = append(kept, view.Read(slice))
	}
	partitioned, err := PartitionedOf("n1", kept)
	if err != nil || len(partitioned) != 2 {
		t.Fatalf("%+v, %v", partitioned, err)
	}
	for want, pair := range map[string][2]string{
		"already held as a whole by claim default/a": {"gpu-0-mig-1g-10gb-6", "gpu-0-mig-1g-10gb-6"},
		"":                    {"gpu-0-mig-1g-10gb-6", "gpu-0-mig-1g-10gb-5"},
		"which is in the way": {"gpu-1-mig-1g-10gb-5", "gpu-1-mig-3g-40gb-4"},
	} {
		n := Node{Name: "n1", Partitioned: partitioned, Pods: []*corev1.Pod{podOf("a", running), podOf("b")},
			Claims: []*resourceapi.ResourceClaim{claimOf("a", pair[0], ""), claimOf("b", pair[1], "")}}
		conflicts := n.Conflicts()
		if (want == "") != (len(conflicts) == 0) || want != "" && !strings.Contains(conflicts[0].Reason.Error(), want) {
			t.Errorf("%v: %+v, want %q", pair, conflicts, want)
		}
	}
}
