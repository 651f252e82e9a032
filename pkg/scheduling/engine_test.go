// SPDX-License-Identifier: Apache-2.0

package scheduling_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// pool is that of a node with two GPUs.
func pool(node string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: &node,
		Pool:    resourceapi.ResourcePool{Name: v1alpha1.PoolName(node), Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "gpu-0"}, {Name: "gpu-1"}},
	}}
}

func rule(selector *resourceapi.DeviceTaintSelector) *resourceapi.DeviceTaintRule {
	return &resourceapi.DeviceTaintRule{Spec: resourceapi.DeviceTaintRuleSpec{DeviceSelector: selector,
		Taint: resourceapi.DeviceTaint{Key: "repair", Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
}

// A rule taints the devices that it selects by all that it names, and nothing that is given.
func TestWithRules(t *testing.T) {
	for name, test := range map[string]struct {
		selector *resourceapi.DeviceTaintSelector
		want     []string
	}{
		"nothing":  {nil, nil},
		"all":      {&resourceapi.DeviceTaintSelector{}, []string{"n1/gpu-0", "n1/gpu-1", "n2/gpu-0", "n2/gpu-1"}},
		"a driver": {&resourceapi.DeviceTaintSelector{Driver: ptr.To("other")}, nil},
		"a pool": {&resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: ptr.To("n2/gpu")},
			[]string{"n2/gpu-0", "n2/gpu-1"}},
		"a device": {&resourceapi.DeviceTaintSelector{Pool: ptr.To("n1/gpu"), Device: ptr.To("gpu-1")}, []string{"n1/gpu-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			given := []*resourceapi.ResourceSlice{pool("n1"), pool("n2")}
			// Nodes that are alike share their devices.
			given[1].Spec.Devices = given[0].Spec.Devices
			var tainted []string
			for _, slice := range scheduling.WithRules(given, []*resourceapi.DeviceTaintRule{rule(test.selector)}) {
				for _, device := range slice.Spec.Devices {
					if len(device.Taints) == 1 {
						tainted = append(tainted, *slice.Spec.NodeName+"/"+device.Name)
					}
				}
			}
			expect.Equal(t, test.want, tainted, "tainted")
			for _, device := range given[0].Spec.Devices {
				expect.Equal(t, 0, len(device.Taints), "taints of what was given: %s", device.Name)
			}
		})
	}
}

// A claim is given back when all pods are gone that use it, and nobody else does.
func TestFitWithoutPodsThatAreGone(t *testing.T) {
	const class = "gpu.example.com"
	user := func(resource, uid string) resourceapi.ResourceClaimConsumerReference {
		return resourceapi.ResourceClaimConsumerReference{Resource: resource, Name: uid, UID: types.UID(uid)}
	}
	a, b, job := user("pods", "a"), user("pods", "b"), user("jobs", "c")
	type users = []resourceapi.ResourceClaimConsumerReference
	for name, test := range map[string]struct {
		users users
		gone  []types.UID
		want  bool
	}{
		"nobody is gone":    {users{a}, nil, false},
		"its pod is gone":   {users{a}, []types.UID{"a"}, true},
		"one of two is":     {users{a, b}, []types.UID{"a"}, false},
		"both are":          {users{a, b}, []types.UID{"a", "b"}, true},
		"somebody else has": {users{a, job}, []types.UID{"a", "c"}, false},
		"nobody has it":     {nil, []types.UID{"a"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			held := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{ReservedFor: test.users,
				Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
					Results: []resourceapi.DeviceRequestAllocationResult{
						{Driver: v1alpha1.DriverName, Pool: v1alpha1.PoolName("n"), Device: "gpu-0"}}}}}}
			wanted := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "wanted"},
				Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
					Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: 2,
						AllocationMode: resourceapi.DeviceAllocationModeExactCount}}}}}}
			s := scheduling.Snapshot{Slices: []*resourceapi.ResourceSlice{pool("n")},
				Claims:  []*resourceapi.ResourceClaim{held},
				Classes: []*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: class}}}}
			a, err := scheduling.NewEngine(1).Allocator(t.Context(), s,
				func(uid types.UID) bool { return slices.Contains(test.gone, uid) })
			expect.NoError(t, err)
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			got, fits, err := a.Fit(t.Context(), node, []*resourceapi.ResourceClaim{wanted}, scheduling.NewEffort(1))
			if err != nil || fits != test.want || fits != (len(got) == 1) {
				t.Errorf("fits: %t, %v, %v, want %t", fits, got, err, test.want)
			}
		})
	}
}

// What keeps a pod from a node is what the scheduler's filters use.
func TestClosedTo(t *testing.T) {
	tainted := func(effect corev1.TaintEffect) corev1.NodeSpec {
		return corev1.NodeSpec{Taints: []corev1.Taint{{Key: "dedicated", Effect: effect}}}
	}
	tolerating := corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}
	for name, test := range map[string]struct {
		node corev1.NodeSpec
		pod  corev1.PodSpec
		want scheduling.ClosedBy
	}{
		"open":              {corev1.NodeSpec{}, corev1.PodSpec{}, scheduling.Open},
		"another node":      {corev1.NodeSpec{}, corev1.PodSpec{NodeSelector: map[string]string{"a": "b"}}, scheduling.ByPod},
		"cordoned":          {corev1.NodeSpec{Unschedulable: true}, corev1.PodSpec{}, scheduling.Unschedulable},
		"cordoned for some": {corev1.NodeSpec{Unschedulable: true}, tolerating, scheduling.Open},
		"no schedule":       {tainted(corev1.TaintEffectNoSchedule), corev1.PodSpec{}, scheduling.ByTaint},
		"no execute":        {tainted(corev1.TaintEffectNoExecute), corev1.PodSpec{}, scheduling.ByTaint},
		"rather not":        {tainted(corev1.TaintEffectPreferNoSchedule), corev1.PodSpec{}, scheduling.Open},
		"tolerated":         {tainted(corev1.TaintEffectNoExecute), tolerating, scheduling.Open},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: test.pod}
			got := scheduling.ClosedTo(t.Context(), &corev1.Node{Spec: test.node}, pod, scheduling.Wanted(pod))
			if got.By != test.want || (got.Taint.Key != "") != (got.By == scheduling.ByTaint) {
				t.Errorf("closed by %+v, want %d", got, test.want)
			}
		})
	}
}

func TestShort(t *testing.T) {
	list := func(cpu, memory, gpus string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory), "nvidia.com/gpu": resource.MustParse(gpus)}
	}
	for name, test := range map[string]struct {
		asked, free corev1.ResourceList
		want        []corev1.ResourceName
	}{
		"enough":           {list("1", "1Gi", "0"), list("1", "1Gi", "0"), nil},
		"too little":       {list("2", "2Gi", "0"), list("1", "1Gi", "0"), []corev1.ResourceName{"cpu", "memory"}},
		"less than none":   {list("0", "1Gi", "0"), list("-1", "-1Gi", "0"), []corev1.ResourceName{"memory"}},
		"handed out by us": {list("1", "1Gi", "8"), list("1", "1Gi", "0"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []corev1.ResourceName
			of := scheduling.NodeResources{Allocatable: test.free}
			for _, short := range of.Short(test.asked,
				func(name corev1.ResourceName) bool { return name == "nvidia.com/gpu" }) {
				got = append(got, short.Name)
			}
			expect.Equal(t, test.want, got, "short of")
		})
	}
}
