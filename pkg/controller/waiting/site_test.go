// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"cmp"
	"context"
	"fmt"
	"strings"
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
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/waiting/preempt"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// site is an API server with nodes of two A10 each, and the controller, in a synctest bubble.
type site struct {
	*testing.T
	client    *fake.Clientset
	recorder  *record.FakeRecorder
	placement score.Setting
	// planned is Nominations.Planned.
	planned func(*corev1.Pod) string
	// reads is the client by which pods are explained, where that is another.
	reads     Client
	nominator *Nominator
	// preemptions says how pods are evicted, where they are; metadata is of namespaces.
	preemptions func(*cache.Cache) *preempt.Config
	metadata    metadata.Interface
	stop        func()
	mu          sync.Mutex
	outcomes    map[Outcome]int
}

func run(t *testing.T, m mode.Mode, test func(s *site), nodes ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &site{T: t, client: fake.NewClientset(), recorder: record.NewFakeRecorder(1000), placement: score.Best,
			outcomes: map[Outcome]int{}}
		classes, err := deviceclasses.All()
		expect.NoError(t, err)
		apitest.Create(s, s.client, classes...)
		for _, name := range nodes {
			s.node(name, m)
		}
		s.start()
		test(s)
		s.stop()
	})
}

func (s *site) node(name string, m mode.Mode) {
	s.Helper()
	s.nodeOf(2, name, m)
}

// nodeOf makes a node of so many GPUs.
func (s *site) nodeOf(gpus int, name string, m mode.Mode) {
	s.Helper()
	machine := &gpu.Machine{}
	for i := range gpus {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "NVIDIA-A10",
			MemoryMiB: 23028})
	}
	pool := v1alpha1.PoolName(name)
	apitest.Create(s, s.client, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"on": name}},
		Status:     corev1.NodeStatus{Allocatable: amounts("16", "64Gi", "110")}})
	var options []devices.Options
	for _, served := range m.ServedModes() {
		options = append(options, devices.Options{Pool: pool, Mode: served, Slots: 20})
	}
	built := devices.Build(machine, options[0])
	if m == mode.Dynamic {
		built = devices.BuildDynamic(machine, options)
	}
	for i, slice := range built.Pools[pool].Slices {
		apitest.Create(s, s.client, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name + strings.Repeat("-", i)},
			Spec:       devices.SliceSpec(name, pool, built.Pools[pool], slice)})
	}
}

func amounts(cpu, memory, pods string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse(pods)}
}

// start starts a controller, as a new leader does.
func (s *site) start() {
	s.Helper()
	_, ctx := ktesting.NewTestContext(s.T)
	ctx, cancel := context.WithCancel(ctx)
	known := cache.New(cache.Options{Client: s.client, Metadata: s.metadata})
	reader := known.Reader()
	var preemptions *preempt.Config
	if s.preemptions != nil {
		preemptions = s.preemptions(known)
	}
	r := New(Config{Cache: reader, Client: cmp.Or(s.reads, Client(s.client.ResourceV1())),
		Engine: scheduling.NewEngine(scheduling.ExpressionsMost),
		Events: report.New(s.recorder, clock.RealClock{}), Clock: clock.RealClock{},
		Nominations: &Nominations{Client: s.client.ResourceV1(), Pods: apitest.PatchingPods(s.client), Placement: s.placement,
			Planned: s.planned, Outcome: func(o Outcome) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.outcomes[o]++
			}},
		Preemptions: preemptions})
	s.nominator = r.nominator
	var running sync.WaitGroup
	running.Go(func() { known.Run(ctx) })
	running.Go(func() {
		_, err := reader.WaitForSync(ctx, "waiting", 0)
		expect.Error(s, err)
		r.Controller().Run(ctx, 2)
	})
	s.stop = func() {
		cancel()
		running.Wait()
	}
	// The controller begins when it has seen that the caches are filled.
	time.Sleep(time.Minute)
	synctest.Wait()
}

// claimOf is a claim for GPUs of a class, shares of so much memory or, without, whole ones.
func claimOf(class, memory string, count int64) resourceapi.ResourceClaimSpec {
	r := &resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: count,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount}
	if memory != "" {
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			v1alpha1.CapMemory: resource.MustParse(memory)}}
	}
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: r}}}}
}

// waits makes a pod with a claim that asks for so many whole GPUs, or one share.
func (s *site) waits(name string, spec resourceapi.ResourceClaimSpec, change ...func(*corev1.Pod)) {
	s.Helper()
	apitest.Create(s, s.client,
		&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: spec})
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To(name)}},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for _, c := range change {
		c(p)
	}
	_, err := s.client.CoreV1().Pods("ns").Create(s.Context(), p, metav1.CreateOptions{})
	expect.NoError(s, err)
}

// change changes a pod as others do, by a client: the server keeps who wrote which field.
func (s *site) change(name string, change func(*corev1.Pod)) {
	s.Helper()
	pod := apitest.Get[*corev1.Pod](s, s.client, "ns", name)
	change(pod)
	pod.ResourceVersion += "+"
	_, err := s.client.CoreV1().Pods("ns").Update(s.Context(), pod, metav1.UpdateOptions{})
	expect.NoError(s, err)
}

// podNow is a pod when nothing is under way.
func (s *site) podNow(name string) *corev1.Pod {
	s.Helper()
	synctest.Wait()
	return apitest.Get[*corev1.Pod](s, s.client, "ns", name)
}

// takes allocates devices of a node to a claim of a pod.
func (s *site) takes(claim, node, pod string, taken ...string) {
	s.Helper()
	allocation := &resourceapi.AllocationResult{}
	for _, device := range taken {
		allocation.Devices.Results = append(allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: v1alpha1.DriverName, Pool: v1alpha1.PoolName(node), Device: device})
	}
	apitest.Change(s, s.client, "ns", claim, func(c *resourceapi.ResourceClaim) {
		c.Status.Allocation = allocation
		c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod,
			UID: types.UID("uid-" + pod)}}
		c.ResourceVersion += "+"
	})
}

// holds has a pod run on a node that holds some of its devices.
func (s *site) holds(node, pod string, taken ...string) {
	s.Helper()
	s.waits(pod, claimOf("exclusive.gpu.aliyun.com", "", int64(len(taken))), func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	})
	s.takes(pod, node, pod, taken...)
	synctest.Wait()
}

// nominationOf is the node that a pod is nominated to, when nothing is under way.
func (s *site) nominationOf(name string) string {
	s.Helper()
	return s.podNow(name).Status.NominatedNodeName
}

// nominated checks which node a pod is nominated to.
func (s *site) nominated(when, name, want string) {
	s.Helper()
	expect.Equal(s, want, s.nominationOf(name), "%s: pod %s is nominated to", when, name)
}

// refused is what the scheduler writes when it finds no node.
func refused(pod *corev1.Pod) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable}}
}
