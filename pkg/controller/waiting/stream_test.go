// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// stream is a cluster in mode dynamic, as Alibaba's trace has it, of which the cache is told what the API server would
// tell it: pods of 126 kinds that come, are nominated, placed where they are nominated, and end.
type stream struct {
	*Nominator
	*rand.Rand
	b     *testing.B
	nodes []streamNode
	kinds []streamKind
	// running are the pods on nodes, the oldest first.
	running []streamPod
	came    int
	// built are the slices that nodes publish, by shape and order, as the API server sends them.
	built map[string][][]byte
}

type streamNode struct {
	name string
	// shape is its place in streamShapes, first the GPU that comes first in its slices.
	shape, first int
}

type streamKind struct {
	cpu, memory int64
	claim       resourceapi.ResourceClaimSpec
}

type streamPod struct {
	pod   *corev1.Pod
	claim *resourceapi.ResourceClaim
	node  int
}

// What the controller takes for a pod, from the pod's creation to its end, without the API server's messages: each is
// nominated beside those before it, gets what was promised to it, and its node publishes its GPUs in another order. The
// cluster is full, so that one pod ends for one that comes.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{300, 1200} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			s := newStream(ctx, b, size)
			for full := 0; full < 10; full++ {
				if s.come(ctx) {
					full = 0
				}
			}
			defer processorTime(b)()
			for b.Loop() {
				s.end()
				s.come(ctx)
			}
		})
	}
}

func newStream(ctx context.Context, b *testing.B, size int) *stream {
	b.Helper()
	s := &stream{Rand: rand.New(rand.NewPCG(1, 1)), b: b, built: map[string][][]byte{}}
	classes, err := deviceclasses.All()
	s.must(err)
	var objects []runtime.Object
	for _, class := range classes {
		objects = append(objects, class)
	}
	for i := range size {
		of := streamShapes[i%len(streamShapes)]
		name := fmt.Sprintf("node-%d", i)
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Allocatable: amounts(fmt.Sprint(of.cpus), fmt.Sprintf("%dGi", 4*of.cpus), "1000")}})
		s.nodes = append(s.nodes, streamNode{name: name, shape: i % len(streamShapes)})
	}
	s.Nominator = nominating(ctx, b, objects)
	for i := range s.nodes {
		s.publish(&s.nodes[i])
	}
	s.addKinds()
	return s
}

// streamShapes are what the nodes of the trace are like: model, GPUs, CPUs.
var streamShapes = []struct {
	model string
	gpus  int
	cpus  int64
}{{"G2", 8, 96}, {"T4", 2, 96}, {"G2", 8, 128}, {"P100", 2, 64}, {"G3", 8, 128}, {"V100M16", 4, 32}, {"V100M32", 8, 96},
	{"T4", 4, 96}, {"V100M16", 8, 96}, {"P100", 1, 64}}

func (s *stream) must(err error) {
	s.b.Helper()
	expect.NoError(s.b, err)
}

// publish has the cache know what a node publishes, which is made once for all that are alike.
func (s *stream) publish(n *streamNode) {
	s.b.Helper()
	key := fmt.Sprint(n.shape, n.first)
	pool := v1alpha1.PoolName(n.name)
	if s.built[key] == nil {
		of := streamShapes[n.shape]
		machine := &gpu.Machine{DriverVersion: "580.95.05", CUDADriverVersion: "13.0"}
		var order []int
		for i := range of.gpus {
			machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, Minor: i, UUID: fmt.Sprintf("GPU-%s-%d", n.name, i),
				Model: of.model, ProductName: of.model, MemoryMiB: 100 << 10, PCIBusID: fmt.Sprintf("0000:%02x:00.0", i+1)})
			order = append(order, (i+n.first)%of.gpus)
		}
		var options []devices.Options
		for _, m := range mode.Dynamic.ServedModes() {
			options = append(options, devices.Options{Pool: pool, Mode: m, Slots: 20, Order: order})
		}
		built := devices.BuildDynamic(machine, options).Pools[pool]
		for _, slice := range built.Slices {
			spec := devices.SliceSpec(n.name, pool, built, slice)
			encoded, err := spec.Marshal()
			s.must(err)
			s.built[key] = append(s.built[key], encoded)
		}
	}
	for i, encoded := range s.built[key] {
		s.came++
		var spec resourceapi.ResourceSliceSpec
		s.must(spec.Unmarshal(encoded))
		for j := range spec.Devices {
			for k := range spec.Devices[j].Taints { // as the API server does
				spec.Devices[j].Taints[k].TimeAdded = &metav1.Time{Time: time.Unix(int64(s.came), 0)}
			}
		}
		spec.NodeName, spec.Pool.Name = &n.name, pool
		s.must(s.chooser.caches.Slices.Put(&resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(n.name, i), ResourceVersion: fmt.Sprint(s.came)}, Spec: spec}))
	}
	s.chooser.changed(n.name)
}

// addKinds adds the kinds of the pods: the first are the most frequent ones.
func (s *stream) addKinds() {
	for range 126 {
		k := streamKind{cpu: 1000 * (2 + s.Int64N(10)), memory: (8 + s.Int64N(32)) << 30}
		if s.IntN(3) == 0 {
			k.claim = claimOf("gpu.aliyun.com", "", 1<<s.IntN(4))
		} else {
			k.claim = claimOf(share, fmt.Sprintf("%dGi", 10*(1+s.IntN(9))), 1)
		}
		if s.IntN(4) == 0 {
			model := streamShapes[s.IntN(len(streamShapes))].model
			k.claim.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: fmt.Sprintf(`device.attributes["gpu.aliyun.com"].model in ["%s"]`, model)}}}
		}
		s.kinds = append(s.kinds, k)
	}
}

// come has a pod come, and reports whether it found room.
func (s *stream) come(ctx context.Context) bool {
	s.b.Helper()
	s.came++
	k := &s.kinds[int(float64(len(s.kinds))*s.Float64()*s.Float64()*s.Float64())]
	name := fmt.Sprintf("pod-%d", s.came)
	requests := corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(k.cpu, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(k.memory, resource.BinarySI)}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: requests}}}}}
	s.must(s.chooser.fleet.pods.Put(pod.DeepCopy()))
	claims := []*resourceapi.ResourceClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "gpu"}, Spec: k.claim}}
	question, err := scheduling.Question(pod, claims)
	s.must(err)
	w := &wish{claims: claims, requests: requests, kind: kindID{question: question, cpu: k.cpu, memory: k.memory}}
	s.pods[pod.UID] = &state{wish: w}
	d, err := s.decide(ctx, pod, w)
	s.must(err)
	if d.node == "" {
		delete(s.pods, pod.UID)
		s.must(s.chooser.fleet.pods.GetStore().Delete(pod))
		return false
	}
	at := slices.IndexFunc(s.nodes, func(n streamNode) bool { return n.name == d.node })
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: k.claim, Status: resourceapi.ResourceClaimStatus{Allocation: &s.chooser.promises[pod.UID].allocated[0],
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod.UID}}}}
	s.must(s.chooser.caches.Claims.Put(claim))
	s.chooser.changed(d.node)
	pod.Spec.NodeName = d.node
	s.must(s.chooser.fleet.pods.Put(pod.DeepCopy()))
	s.chooser.changed(d.node)
	s.placed(pod)
	s.bound(pod)
	s.must(s.chooser.refresh())
	s.running = append(s.running, streamPod{pod, claim, at})
	s.reorder(at)
	return true
}

// end has a pod end.
func (s *stream) end() {
	s.b.Helper()
	i := s.IntN(len(s.running))
	p := s.running[i]
	s.running = slices.Delete(s.running, i, i+1)
	s.must(s.chooser.fleet.pods.GetStore().Delete(p.pod))
	s.must(s.chooser.caches.Claims.GetStore().Delete(p.claim))
	s.chooser.changed(p.pod.Spec.NodeName)
	s.ended(p.pod)
	s.reorder(p.node)
}

// reorder has a node publish its GPUs in another order.
func (s *stream) reorder(at int) {
	n := &s.nodes[at]
	n.first = s.IntN(streamShapes[n.shape].gpus)
	s.publish(n)
}
