// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// What one nomination takes in a cluster of 1000 nodes with 8 GPUs, each beside those before it, from an empty cluster
// to a full one and again.
func BenchmarkNominate(b *testing.B) {
	for _, of := range []struct {
		mode  mode.Mode
		claim resourceapi.ResourceClaimSpec
	}{
		{mode.Exclusive, claimOf(whole, "", 1)},
		{mode.Share, claimOf(share, "6Gi", 1)},
		{mode.Topology, linkedClaim(4)},
	} {
		b.Run(string(of.mode), func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			n := clusterOf(ctx, b, of.mode, 1000)
			w := &wish{claims: []*resourceapi.ResourceClaim{{Spec: of.claim}},
				requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}
			question, err := scheduling.Question(&corev1.Pod{}, w.claims)
			expect.NoError(b, err)
			w.kind = kindID{question: question, cpu: 1000}
			i, none := 0, 0
			defer processorTime(b)()
			for b.Loop() {
				i++
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}}
				expect.NoError(b, n.learn(ctx, w, &state{}))
				p, err := n.chooser.best(ctx, pod, w, score.Best)
				expect.NoError(b, err)
				if p.node == "" {
					if none++; none > 10 {
						b.Fatal("no node has room")
					}
					for _, uid := range slices.Collect(maps.Keys(n.chooser.promises)) {
						n.chooser.promise(promise{uid: uid})
					}
					continue
				}
				none = 0
				n.chooser.promise(p)
			}
		})
	}
}

// linkedClaim asks for a linked set of that many GPUs.
func linkedClaim(gpus int) resourceapi.ResourceClaimSpec {
	claim := claimOf("topology.gpu.aliyun.com", "", 1)
	claim.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf(`device.attributes["gpu.aliyun.com"].gpuCount == %d`, gpus)}}}
	return claim
}

// processorTime begins to count that of the process, which a busy machine makes no longer; the end reports it.
func processorTime(b *testing.B) (end func()) {
	b.Helper()
	used := func() int64 {
		var u unix.Rusage
		expect.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/1000/float64(b.N), "cpu-µs/op") }
}

func machineOf8() *gpu.Machine {
	machine := &gpu.Machine{}
	for i := range 8 {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "NVIDIA-A10",
			MemoryMiB: 23028})
	}
	for i := range 8 {
		for j := i / 4 * 4; j < i; j++ {
			machine.Links = append(machine.Links, gpu.Link{A: j, B: i, Kind: gpu.LinkNVLink, Lanes: 2, Generation: 2, GBps: 50})
		}
	}
	return machine
}

func clusterOf(ctx context.Context, b testing.TB, m mode.Mode, nodes int) *Nominator {
	b.Helper()
	machine := machineOf8()
	classes, err := deviceclasses.All()
	expect.NoError(b, err)
	var objects []runtime.Object
	for _, class := range classes {
		objects = append(objects, class)
	}
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		pool := v1alpha1.PoolName(name)
		built := devices.Build(machine, devices.Options{Pool: pool, Mode: m, Slots: 20}).Pools[pool]
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{Allocatable: amounts("64", "256Gi", "110")}})
		for j, slice := range built.Slices {
			objects = append(objects, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(name, j)},
				Spec: devices.SliceSpec(name, pool, built, slice)})
		}
	}
	n := nominating(ctx, b, objects)
	expect.NoError(b, n.refresh(ctx))
	return n
}

// nominating returns what nominates nodes in a cluster with these objects.
func nominating(ctx context.Context, b testing.TB, objects []runtime.Object) *Nominator {
	b.Helper()
	client := fake.NewClientset(objects...)
	known := cache.New(cache.Options{Client: client})
	reader := known.Reader()
	n := New(Config{Cache: reader, Client: client.ResourceV1(), Engine: scheduling.NewEngine(scheduling.ExpressionsMost),
		Events: report.New(record.NewFakeRecorder(0), clock.RealClock{}), Clock: clock.RealClock{},
		Nominations: &Nominations{Client: client.ResourceV1(), Pods: apitest.PatchingPods(client), Placement: score.Best,
			Outcome: func(Outcome) {}}}).nominator
	go known.Run(ctx)
	if synced, err := reader.WaitForSync(ctx, "waiting", 0); !synced || err != nil {
		b.Fatal("not synced", err)
	}
	return n
}
