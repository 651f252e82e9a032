// SPDX-License-Identifier: Apache-2.0

package spread_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/spread"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// published are the slices of node n with two GPUs of 15 GiB that offer so many shares more.
func published(version string, limits ...gpu.Amount) *resourceapi.ResourceSlice {
	return publishedBy("n", 15, version, limits...)
}

// publishedBy are those of a node whose GPUs have so many GiB.
func publishedBy(node string, gib int64, version string, limits ...gpu.Amount) *resourceapi.ResourceSlice {
	machine, held := &gpu.Machine{}, map[string]gpu.Amount{}
	for i := range 2 {
		uuid := fmt.Sprintf("GPU-%d", i)
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: uuid, Model: "Tesla-V100", MemoryMiB: gib<<10 + 770})
		if i < len(limits) {
			held[uuid] = limits[i]
		}
	}
	o := devices.Options{Pool: v1alpha1.PoolName(node), Mode: mode.Share, Slots: 20, Isolation: "none", Limits: held}
	pool := devices.Build(machine, o).Pools[o.Pool]
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "of-" + node, ResourceVersion: version},
		Spec: devices.SliceSpec(node, o.Pool, pool, pool.Slices[0])}
}

// What a GPU offers that is ahead, or behind.
var ahead, behind = gpu.Amount{Units: 4, Shares: 1}, gpu.Amount{Units: 15, Shares: 1}

// claim asks for shares, all of one GPU; on one of an index, where that is not negative.
func claim(index int, gib ...int) *resourceapi.ResourceClaim {
	uuid := resourceapi.FullyQualifiedName("gpu.aliyun.com/uuid")
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "claim"}}
	for i, units := range gib {
		request := &resourceapi.ExactDeviceRequest{
			DeviceClassName: "share.gpu.aliyun.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				v1alpha1.CapMemory: resource.MustParse(fmt.Sprintf("%dGi", units)),
			}},
		}
		if index >= 0 {
			request.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: fmt.Sprintf(`device.attributes["gpu.aliyun.com"].index == %d`, index),
			}}}
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests,
			resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", i), Exactly: request})
	}
	if len(gib) > 1 {
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &uuid}}
	}
	return c
}

// holding is a claim that has shares of a GPU.
func holding(device string, gib ...int) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other", UID: "other"}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for i, units := range gib {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{
				Request: "r", Driver: v1alpha1.DriverName, Pool: v1alpha1.PoolName("n"), Device: device,
				ShareID: ptr.To(types.UID(fmt.Sprintf("share-%d", i))),
				ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
					v1alpha1.CapMemory: resource.MustParse(fmt.Sprintf("%dGi", units)),
					v1alpha1.CapSlots:  resource.MustParse("1"),
				},
			})
	}
	return c
}

func waitingPod(said string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "pod"},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("c")}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: said},
		}},
	}
}

const refused = "0/1 nodes are available: 1 cannot allocate all claims."

type site struct {
	*testing.T
	client *fake.Clientset
	engine *scheduling.Engine
}

// waiting is what node n is told.
func (s *site) waiting() *placement.Waiting {
	s.Helper()
	return s.waitingOn("n")
}

func (s *site) waitingOn(name string) *placement.Waiting {
	s.Helper()
	synctest.Wait()
	node := apitest.Get[*corev1.Node](s, s.client, "", name)
	text := node.Annotations[v1alpha1.AnnotationWaiting]
	if text == "" {
		return nil
	}
	w, err := placement.DecodeWaiting(text)
	expect.NoError(s, err)
	w.At = time.Time{}
	return &w
}

// told checks what node n is told soon.
func (s *site) told(when string, want *placement.Waiting) {
	s.Helper()
	time.Sleep(time.Second)
	expect.Equal(s, want, s.waiting(), "%s the node is told", when)
}

func run(t *testing.T, slice *resourceapi.ResourceSlice, claims []*resourceapi.ResourceClaim, pods []*corev1.Pod,
	test func(s *site), options ...func(*site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"kind": "gpu"}}}
		s := &site{T: t, client: fake.NewClientset(node, slice), engine: scheduling.NewEngine(100)}
		for _, option := range options {
			option(s)
		}
		apitest.Create(t, s.client, pods...)
		apitest.Create(t, s.client, claims...)
		all, err := deviceclasses.Modes()
		expect.NoError(t, err)
		apitest.Create(t, s.client, all...)
		running := s.start(ctx)
		test(s)
		cancel()
		running.Wait()
	})
}

func (s *site) start(ctx context.Context) *sync.WaitGroup {
	s.Helper()
	known := cache.New(cache.Options{Client: s.client})
	reader := known.Reader()
	work := spread.New(spread.Config{Cache: reader, Client: s.client.ResourceV1(), Nodes: s.client.CoreV1().Nodes(),
		Clock: clock.RealClock{}, Engine: s.engine})
	var running sync.WaitGroup
	running.Go(func() { known.Run(ctx) })
	if synced, err := reader.WaitForSync(ctx, "spread", 0); err != nil || !synced {
		s.Fatalf("the cache does not fill: %v", err)
	}
	running.Go(func() { work.Run(ctx, 1) })
	return &running
}

// A node is told what a pod needs of one GPU, and of no more than that.
func TestWhatANodeIsTold(t *testing.T) {
	cpus := claim(-1, 2, 1)
	cpus.Spec.Devices.Requests = append(cpus.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: "cpus",
		FirstAvailable: []resourceapi.DeviceSubRequest{{Name: "near", DeviceClassName: legacy.ClassCPUs, Count: 8}}})
	apart := claim(-1, 4, 3)
	apart.Spec.Devices.Constraints[0].MatchAttribute, apart.Spec.Devices.Constraints[0].DistinctAttribute = nil,
		apart.Spec.Devices.Constraints[0].MatchAttribute
	some := claim(-1, 4, 3, 1)
	some.Spec.Devices.Constraints[0].Requests = []string{"r0", "r2"}
	for name, test := range map[string]struct {
		claims []*resourceapi.ResourceClaim
		want   *placement.Waiting
	}{
		"several shares of a GPU": {[]*resourceapi.ResourceClaim{claim(-1, 2, 1)},
			&placement.Waiting{Claim: "claim", GiB: 3, Shares: 2}},
		"a GPU that is ahead": {[]*resourceapi.ResourceClaim{claim(0, 4), holding("gpu-0-share", 4)},
			&placement.Waiting{Claim: "claim", GiB: 4, Shares: 1}},
		"several GPUs": {[]*resourceapi.ResourceClaim{apart}, &placement.Waiting{Claim: "claim", GiB: 4, Shares: 1}},
		"several shares of one GPU of several": {[]*resourceapi.ResourceClaim{some},
			&placement.Waiting{Claim: "claim", GiB: 5, Shares: 2}},
		// Whether there are CPUs beside them, only the scheduler knows.
		"shares with CPUs": {[]*resourceapi.ResourceClaim{cpus}, &placement.Waiting{Claim: "claim", GiB: 3, Shares: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, published("1", ahead, behind), test.claims, []*corev1.Pod{waitingPod(refused)},
				func(s *site) { s.told("at once", test.want) })
		})
	}
}

func TestNobodyIsToldInVain(t *testing.T) {
	elsewhere := waitingPod(refused)
	elsewhere.Spec.NodeSelector = map[string]string{"kind": "other"}
	model := claim(-1, 4)
	model.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.attributes["gpu.aliyun.com"].model == "NVIDIA-A10"`}}}
	only := func(claims ...*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim { return claims }
	for name, test := range map[string]struct {
		slice  *resourceapi.ResourceSlice
		claims []*resourceapi.ResourceClaim
		pod    *corev1.Pod
	}{
		"no room at all": {published("1", ahead, behind), only(claim(0, 12), holding("gpu-0-share", 4)),
			waitingPod(refused)},
		"too much of one GPU":  {published("1", behind, behind), only(claim(-1, 8, 8)), waitingPod(refused)},
		"another model":        {published("1", behind, behind), only(model), waitingPod(refused)},
		"nothing is held back": {published("1"), only(claim(-1, 2, 1)), waitingPod(refused)},
		"another node":         {published("1", behind, behind), only(claim(-1, 2, 1)), elsewhere},
		"no claim yet":         {published("1", behind, behind), nil, waitingPod(refused)},
		"waits for something else": {published("1", behind, behind), only(claim(-1, 2, 1)),
			waitingPod("0/1 nodes are available: 1 Insufficient cpu.")},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, test.slice, test.claims, []*corev1.Pod{test.pod}, func(s *site) {
				time.Sleep(time.Minute)
				s.told("ever", nil)
			})
		})
	}
}

// What the scheduler says of a pod of a gang does not name GPUs.
func TestAGang(t *testing.T) {
	pod := waitingPod("pod group is unschedulable, minCount (3) cannot be satisfied")
	pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("gang")}
	run(t, published("1", behind, behind), []*resourceapi.ResourceClaim{claim(-1, 7)}, []*corev1.Pod{pod},
		func(s *site) { s.told("at once", &placement.Waiting{Claim: "claim", GiB: 7, Shares: 1}) })
}
