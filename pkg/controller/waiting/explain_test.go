// SPDX-License-Identifier: Apache-2.0

package waiting_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/waiting"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	refused = "0/1 nodes are available: 1 cannot allocate all claims."
	never   = "the pod can never be scheduled on this cluster as it is: "
	tooMuch = never + "request gpu: 90Gi of memory asked for; the largest GPU that matches has 22Gi (node n1, NVIDIA-A10)"
)

// claim is one for a share.
func claim(memory string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "share.gpu.aliyun.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
				Capacity: &resourceapi.CapacityRequirements{
					Requests: map[resourceapi.QualifiedName]resource.Quantity{v1alpha1.CapMemory: resource.MustParse(memory)}},
			},
		}}}},
	}
}

// pod is one that the scheduler refused for a reason.
func pod(reason string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1"},
		Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("c")}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: reason},
		}},
	}
}

func slice(memoryMiB int64) *resourceapi.ResourceSlice { return sliceIn(mode.Share, memoryMiB) }

func sliceIn(m mode.Mode, memoryMiB int64) *resourceapi.ResourceSlice {
	return sliceOf(devices.Options{Mode: m}, memoryMiB)
}

// sliceOf is a slice of GPUs with so much memory.
func sliceOf(o devices.Options, memoryMiB ...int64) *resourceapi.ResourceSlice {
	machine := &gpu.Machine{}
	for i, memory := range memoryMiB {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "NVIDIA-A10",
			MemoryMiB: memory})
	}
	o.Pool, o.Slots = v1alpha1.PoolName("n1"), 20
	version := fmt.Sprintf("%d-%s-%v", len(memoryMiB), o.Mode, memoryMiB)
	pool := devices.Build(machine, o).Pools[o.Pool]
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", ResourceVersion: version},
		Spec: devices.SliceSpec("n1", o.Pool, pool, pool.Slices[0])}
}

// site is an API server with a node with one shared A10, and the controller, in a
// synctest bubble.
type site struct {
	*testing.T
	client   *fake.Clientset
	recorder *record.FakeRecorder
	// nodes are those beside n1.
	nodes []*corev1.Node
	// slow is how long, in ns, it takes to read what is free.
	slow atomic.Int64
	// busy counts what keeps the controller busy.
	busy atomic.Int32
}

// slowRules are read after some ns.
type slowRules struct {
	waiting.Client
	after *atomic.Int64
}

func (r slowRules) DeviceTaintRules() typedresourcev1.DeviceTaintRuleInterface {
	time.Sleep(time.Duration(r.after.Load()))
	return r.Client.DeviceTaintRules()
}

// run calls the test with a site on which the controller runs.
func run(t *testing.T, test func(s *site), nodes ...*corev1.Node) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		classes, err := deviceclasses.All()
		expect.NoError(t, err)
		client := fake.NewClientset(slice(23028))
		apitest.Create(t, client, classes...)
		s := &site{T: t, client: client, recorder: record.NewFakeRecorder(1000), nodes: nodes}
		running := s.start(ctx)
		test(s)
		cancel()
		running.Wait()
	})
}

func nodeOf(name string, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{"example.com/plugged": resource.MustParse("1")}}}
}

func (s *site) start(ctx context.Context) *sync.WaitGroup {
	s.Helper()
	apitest.Create(s, s.client, append([]*corev1.Node{nodeOf("n1", map[string]string{"on": "n1"})}, s.nodes...)...)
	known := cache.New(cache.Options{Client: s.client})
	work := waiting.New(waiting.Config{
		Engine: scheduling.NewEngine(scheduling.ExpressionsMost),
		Cache:  known.Reader(), Client: slowRules{s.client.ResourceV1(), &s.slow},
		Events: report.New(s.recorder, clock.RealClock{}, report.RepeatAfter(waiting.RepeatAfter)),
		Clock:  clock.RealClock{},
		Busy: func() func() {
			s.busy.Add(1)
			return func() { s.busy.Add(-1) }
		},
	}).Controller()
	var running sync.WaitGroup
	running.Go(func() { known.Run(ctx) })
	running.Go(func() { work.Run(ctx, 1) })
	return &running
}

// changeNode changes what n1 is like to pods.
func (s *site) changeNode(change func(*corev1.NodeSpec)) {
	s.Helper()
	apitest.Change(s, s.client, "", "n1", func(node *corev1.Node) {
		change(&node.Spec)
		node.ResourceVersion += "+"
	})
}

// create makes a claim and a pod that waits for it.
func (s *site) create(c *resourceapi.ResourceClaim, p *corev1.Pod) {
	s.Helper()
	apitest.Create[runtime.Object](s, s.client, c, p)
}

// told checks that the Events until now are these, as "Warning REASON message".
func (s *site) told(when string, want ...string) {
	s.Helper()
	synctest.Wait()
	var got []string
	for len(s.recorder.Events) > 0 {
		got = append(got, <-s.recorder.Events)
	}
	expect.Equal(s, strings.Join(want, "\n"), strings.Join(got, "\n"), "%s: Events", when)
}

const warning = "Warning " + v1alpha1.ReasonClaimWaiting + " "

func TestPodIsToldAfterAWhileAndThenNowAndAgain(t *testing.T) {
	run(t, func(s *site) {
		s.create(claim("90Gi"), pod(refused))
		time.Sleep(4 * time.Second)
		s.told("at first")
		time.Sleep(2 * time.Second)
		s.told("after a while", warning+tooMuch)
		time.Sleep(4 * time.Minute)
		s.told("while it holds")
		time.Sleep(2 * time.Minute)
		s.told("after more than five minutes", warning+tooMuch)
	})
}

// A program that says so has all processors meanwhile: nominations do not wait for a pod that is explained.
func TestControllerIsBusyWhileAPodIsExplained(t *testing.T) {
	run(t, func(s *site) {
		s.slow.Store(int64(time.Second))
		s.hold(slice(23028))
		s.create(claim("22Gi"), pod(refused))
		for _, moment := range []struct {
			when  string
			after time.Duration
			want  int32
		}{
			{"while the pod may still be placed", 4 * time.Second, 0},
			{"while it is explained", 1500 * time.Millisecond, 1},
			{"when it was told", time.Second, 0},
		} {
			time.Sleep(moment.after)
			synctest.Wait()
			expect.Equal(t, moment.want, s.busy.Load(), "%s: what keeps the controller busy", moment.when)
		}
	})
}

func TestChangesAreTold(t *testing.T) {
	run(t, func(s *site) {
		s.hold(slice(23028))
		s.create(claim("22Gi"), pod(refused))
		busy := warning + "request gpu: the GPUs that match are all taken or too full: 1 GPU on node n1. Nearest: node n1 " +
			"(memory: asked 22Gi, largest free 0 on gpu-0)"
		time.Sleep(time.Minute)
		s.told("with a GPU of the size", busy)
		apitest.Update(s, s.client, slice(16130))
		time.Sleep(time.Minute)
		s.told("with a smaller one", warning+never+"request gpu: 22Gi of memory asked for; the largest GPU that matches "+
			"has 15Gi (node n1, NVIDIA-A10)")
		apitest.Delete[*resourceapi.DeviceClass](s, s.client, "", "share.gpu.aliyun.com")
		time.Sleep(time.Minute)
		s.told("without the class", warning+"request gpu: DeviceClass share.gpu.aliyun.com does not exist (kubectl get "+
			"deviceclasses lists those that do); there are GPUs in the mode share")
		apitest.Delete[*corev1.Pod](s, s.client, "ns", "p")
		time.Sleep(time.Hour)
		s.told("when the pod is gone")
	})
}

// The scheduler allocates the claim, cannot reserve it twice, and tries again for ever.
func TestOneClaimByTwoNames(t *testing.T) {
	run(t, func(s *site) {
		waits := pod(`running PreBind plugin "DynamicResources": claim ns/c got allocated elsewhere in the meantime`)
		waits.Spec.ResourceClaims = append(waits.Spec.ResourceClaims,
			corev1.PodResourceClaim{Name: "again", ResourceClaimName: ptr.To("c")})
		s.create(claim("2Gi"), waits)
		time.Sleep(time.Minute)
		s.told("after a while", warning+"its resourceClaims gpu and again are one ResourceClaim, c, which the scheduler "+
			"cannot reserve for a pod twice: name it once, and let several containers use that name")
	})
}

// Who asked in the manner of ACK finds the words of its scheduler, too.
func TestPodsAsOnACKAreToldInItsWords(t *testing.T) {
	gpus := func(count int64) *resourceapi.ResourceClaim {
		c := claim("1Gi")
		request := c.Spec.Devices.Requests[0].Exactly
		request.DeviceClassName, request.Count, request.Capacity = "single.topology.gpu.aliyun.com", count, nil
		return c
	}
	counted := func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
		c.Spec.Devices.Requests = quota.Counted(c.Spec.Devices.Requests)
		return c
	}
	const busy = "request gpu: the GPUs that match are all taken or too full: 1 GPU on node n1"
	const full = ". Nearest: node n1 (memory: asked 22Gi, largest free 0 on gpu-0)"
	for name, test := range map[string]struct {
		claim *resourceapi.ResourceClaim
		mode  mode.Mode
		want  string
	}{
		"too much": {claim("90Gi"), mode.Share, tooMuch + ". On ACK: node(s) didn't have enough device resources to " +
			"allocate"},
		"too full": {claim("22Gi"), mode.Share, busy + full + ". On ACK: node(s) didn't have enough device resources to " +
			"allocate"},
		"too full, counted by a quota": {counted(claim("22Gi")), mode.Share, strings.Replace(busy, "gpu", "gpu/share", 1) +
			strings.Replace(full, "memory", "request gpu/share: memory", 1) + ". On ACK: node(s) didn't have enough device " +
			"resources to allocate"},
		"another mode": {claim("3Gi"), mode.Topology, never + "request gpu: no node offers GPUs of class " +
			"share.gpu.aliyun.com; there are GPUs in the mode topology. On ACK: node(s) owns gpu resources are not matched " +
			"that pod requests"},
		"too many GPUs": {gpus(2), mode.Topology, never + "request gpu: 2 GPUs of class single.topology.gpu.aliyun.com " +
			"asked for; no node has more than 1 that match (node n1). On ACK: not enough gpus with topology on the node"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				apitest.Update(s, s.client, sliceIn(test.mode, 23028))
				test.claim.Labels = map[string]string{v1alpha1.LabelLegacy: "true"}
				s.hold(sliceIn(test.mode, 23028))
				s.create(test.claim, pod(refused))
				time.Sleep(time.Minute)
				s.told("after a while", warning+test.want)
			})
		})
	}
}

// A share and a whole GPU: a node has one or the other, but for one in mode dynamic.
func TestPodsThatAskForAShareAndAWholeGPUAreTold(t *testing.T) {
	run(t, func(s *site) {
		both := asking(refused, "nvidia.com/gpu=1")
		both.Spec.ResourceClaims = pod(refused).Spec.ResourceClaims
		c := claim("3Gi")
		c.Labels = map[string]string{v1alpha1.LabelLegacy: "true"}
		s.create(c, both)
		time.Sleep(time.Minute)
		s.told("after a while", warning+"claim of the scheduler's own, request nvidia.com/gpu of container main: no node "+
			"offers GPUs of class exclusive.gpu.aliyun.com; there are GPUs in the mode share. The pod asks for a share of a "+
			"GPU (aliyun.com/gpu-mem) and for whole GPUs: a node that gives it both is in mode dynamic. On ACK: node(s) owns "+
			"gpu resources are not matched that pod requests")
	})
}

// asking is a pod without claims whose container asks for resources, as most published
// manifests do.
func asking(said string, resources ...string) *corev1.Pod {
	p := pod(said)
	p.Spec.ResourceClaims = nil
	requests := corev1.ResourceList{}
	for _, r := range resources {
		name, amount, _ := strings.Cut(r, "=")
		requests[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: requests}}}
	return p
}

func TestPodsWithoutClaimsAreTold(t *testing.T) {
	selecting := asking("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
		"nvidia.com/gpu=1")
	selecting.Spec.NodeSelector = map[string]string{"nvidia.com/gpu.product": "NVIDIA-A10"}
	const gpu = "request nvidia.com/gpu of container main: "
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		mode mode.Mode
		want string
	}{
		"whole GPUs, of which all are taken": {asking(refused, "nvidia.com/gpu=1"), mode.Exclusive, gpu + "the GPUs that " +
			"match are all taken or too full: 1 GPU on node n1. Nearest: node n1 (" + gpu + "taken: gpu-0)"},
		"more than any node has": {asking(refused, "nvidia.com/gpu=9"), mode.Exclusive, gpu +
			"9 GPUs of class exclusive.gpu.aliyun.com asked for; no node has more than 1 that match (node n1)"},
		"whole GPUs, and none is": {asking(refused, "nvidia.com/gpu=1"), mode.Share, gpu + "no node offers " +
			"GPUs of class exclusive.gpu.aliyun.com; there are GPUs in the mode share"},
		"a class by its resource": {asking(refused, "deviceclass.resource.kubernetes.io/share.gpu.aliyun.com=1"),
			mode.Exclusive, "request deviceclass.resource.kubernetes.io/share.gpu.aliyun.com of container main: no node " +
				"offers GPUs of class share.gpu.aliyun.com; there are GPUs in the mode exclusive"},
		"HAMi": {asking("0/1 nodes are available: 1 Insufficient nvidia.com/gpumem.", "nvidia.com/gpu=1",
			"nvidia.com/gpumem=3000"), mode.Exclusive,
			"container main asks for nvidia.com/gpu, nvidia.com/gpumem, which no node serves. Write these limits instead: " +
				"aliyun.com/gpu-mem: 3 (GiB). docs/legacy.md lists the requests that are served. With the option " +
				"other-manifests, the API server converts nvidia.com/gpumem of container main when it creates the pod: " +
				"docs/other-manifests.md"},
		"NVIDIA's labels": {selecting, mode.Exclusive, gpu + "the GPUs that match are on nodes that the pod's " +
			"nodeSelector, its affinity or its other claims exclude: n1." +
			" no node has the label nvidia.com/gpu.product: select aliyun.accelerator/nvidia_name: NVIDIA-A10"},
		"what a device plugin serves": {asking("0/1 nodes are available: 1 Insufficient example.com/plugged.",
			"example.com/plugged=1"), mode.Exclusive, ""},
		"whole GPUs that are free": {asking("0/1 nodes are available: 1 Insufficient cpu.", "nvidia.com/gpu=1"),
			mode.Exclusive, ""},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(s *site) {
				apitest.Update(s, s.client, sliceIn(test.mode, 23028))
				s.hold(sliceIn(test.mode, 23028))
				s.create(claim("1Gi"), test.pod)
				time.Sleep(time.Minute)
				if test.want == "" {
					s.told("after a while")
				} else {
					s.told("after a while", warning+test.want)
				}
			})
		})
	}
}
