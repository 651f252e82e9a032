// SPDX-License-Identifier: Apache-2.0

package podannotations

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

var allocatedAt = time.Unix(1700000000, 0)

// pod has containers of these names, an init container that uses the share of the first, and a sidecar, "side".
func pod(containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u1",
		Annotations: map[string]string{"mine": "stays"}}}
	for _, name := range containers {
		p.Spec.Containers = append(p.Spec.Containers, using(name, name))
	}
	first, side := using("first", containers[0], "side"), using("side", "side")
	side.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	p.Spec.InitContainers = []corev1.Container{first, side}
	return p
}

// using is a container that uses these requests of the claim.
func using(name string, requests ...string) corev1.Container {
	c := corev1.Container{Name: name}
	for _, request := range requests {
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: legacy.ClaimName, Request: request})
	}
	return c
}

func result(request, device string, amounts ...string) resourceapi.DeviceRequestAllocationResult {
	r := resourceapi.DeviceRequestAllocationResult{Request: request, Driver: v1alpha1.DriverName, Pool: "n1/gpu",
		Device: device}
	names := []resourceapi.QualifiedName{v1alpha1.CapMemory, v1alpha1.CapCores}
	for i, amount := range amounts {
		if r.ConsumedCapacity == nil {
			r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
		}
		r.ConsumedCapacity[names[i]] = resource.MustParse(amount)
	}
	return r
}

func claim(results ...resourceapi.DeviceRequestAllocationResult) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c",
			Labels: map[string]string{v1alpha1.LabelLegacy: "true"}},
		Status: resourceapi.ResourceClaimStatus{
			Allocation: &resourceapi.AllocationResult{
				AllocationTimestamp: &metav1.Time{Time: allocatedAt},
				Devices:             resourceapi.DeviceAllocationResult{Results: results},
			},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u1"}},
		},
	}
}

func TestAnnotationsOfAnAllocation(t *testing.T) {
	admin, others := result("main", "gpu-0-share", "0", "0"), result("main", "gpu-0", "1Gi")
	admin.AdminAccess, others.Driver = ptr.To(true), "gpu.example.com"
	at := strconv.FormatInt(allocatedAt.UnixNano(), 10)
	whole := func(allocated, gpus, list string) map[string]string {
		return map[string]string{
			ack.AnnotationTopology: fmt.Sprintf(`{"allocatedGPUs":%s,"visibleGPUs":%s,"assumeTime":%s,"assigned":true}`,
				allocated, list, at),
			ack.AnnotationGroup: gpus, ack.AnnotationVisible: gpus,
		}
	}
	for name, test := range map[string]struct {
		containers []string
		results    []resourceapi.DeviceRequestAllocationResult
		want       map[string]string
		v1         map[string]string // what is added in the first version
	}{
		"two containers on one GPU": {
			[]string{"c0", "c1"},
			[]resourceapi.DeviceRequestAllocationResult{result("c0", "gpu-1-share", "1Gi"), result("c1", "gpu-1-share", "7Gi")},
			map[string]string{ack.AnnotationMemory: `{"0":{"1":1},"1":{"1":7}}`},
			map[string]string{ack.AnnotationV1Index: "1", ack.AnnotationV1Pod: "8", ack.AnnotationV1GPU: "15",
				ack.AnnotationV1Assigned: "true", ack.AnnotationV1AssumeTime: at},
		},
		"a container without": {
			[]string{"proxy", "main"}, []resourceapi.DeviceRequestAllocationResult{result("main", "gpu-0-mps", "3Gi")},
			map[string]string{ack.AnnotationMemory: `{"1":{"0":3}}`},
			map[string]string{ack.AnnotationV1Index: "0", ack.AnnotationV1Pod: "3", ack.AnnotationV1GPU: "15",
				ack.AnnotationV1Assigned: "true", ack.AnnotationV1AssumeTime: at},
		},
		"memory and compute": {
			[]string{"main"}, []resourceapi.DeviceRequestAllocationResult{result("main", "gpu-0-core-mem", "6Gi", "100")},
			map[string]string{ack.AnnotationMemory: `{"0":{"0":6}}`, ack.AnnotationCores: `{"0":{"0":100}}`},
			map[string]string{ack.AnnotationV1Index: "0", ack.AnnotationV1Pod: "6", ack.AnnotationV1GPU: "15",
				ack.AnnotationV1Assigned: "true", ack.AnnotationV1AssumeTime: at},
		},
		"shares of several GPUs": {
			[]string{"main"},
			[]resourceapi.DeviceRequestAllocationResult{
				result("main", "gpu-0-share", "2Gi"), result("main", "gpu-1-share", "2Gi"), result("main", "gpu-2-share", "2Gi"),
				result("main", "gpu-3-share", "2Gi"),
			},
			map[string]string{ack.AnnotationMemory: `{"0":{"0":2,"1":2,"2":2,"3":2}}`}, nil,
		},
		"a linked set": {
			[]string{"main"}, []resourceapi.DeviceRequestAllocationResult{result("main/linked", "gpus-0-3")},
			whole(`{"0":["0","3"]}`, "0,3", `["0","3"]`), nil,
		},
		"single GPUs, two containers": {
			[]string{"a", "b"}, []resourceapi.DeviceRequestAllocationResult{result("a/any", "gpu-10-topology"),
				result("b", "gpu-2-topology")},
			whole(`{"0":["10"],"1":["2"]}`, "2,10", `["2","10"]`), nil,
		},
		"a sidecar": {
			[]string{"a", "b"}, []resourceapi.DeviceRequestAllocationResult{result("a", "gpu-0-share", "3Gi"),
				result("side", "gpu-0-share", "1Gi")},
			map[string]string{ack.AnnotationMemory: `{"0":{"0":3},"3":{"0":1}}`},
			map[string]string{ack.AnnotationV1Index: "0", ack.AnnotationV1Pod: "4", ack.AnnotationV1GPU: "15",
				ack.AnnotationV1Assigned: "true", ack.AnnotationV1AssumeTime: at},
		},
		"a request of no container": {[]string{"main"},
			[]resourceapi.DeviceRequestAllocationResult{result("other", "gpu-0-share", "1Gi")}, nil, nil},
		"a whole GPU": {[]string{"main"}, []resourceapi.DeviceRequestAllocationResult{result("main", "gpu-0")},
			nil, nil},
		"nothing that counts": {[]string{"main"}, []resourceapi.DeviceRequestAllocationResult{admin, others}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[string]string{}
			maps.Copy(want, test.want)
			got, err := For(pod(test.containers...), claim(test.results...), nil)
			expect.NoError(t, err)
			expect.Equal(t, want, got, "annotations")
			maps.Copy(want, test.v1)
			got, err = For(pod(test.containers...), claim(test.results...), func(int) (int64, bool) { return 15, true })
			expect.NoError(t, err)
			expect.Equal(t, want, got, "annotations with the first version")
		})
	}
}

// Which container has a request is what the containers say, by however many requests: where names are long, the
// template calls containers by their place among those that ask, and another container may be called so.
func TestRequestsAreOfTheContainersThatUseThem(t *testing.T) {
	p := pod("1", "long", "longer")
	for i, requests := range [][]string{nil, {"0-card0", "0-card1"}, {"1-card0", "1-card1"}} {
		p.Spec.Containers[i] = using(p.Spec.Containers[i].Name, requests...)
	}
	got, err := For(p, claim(result("0-card0", "gpu-1-share", "4Gi"), result("1-card0", "gpu-1-share", "1Gi"),
		result("0-card1", "gpu-3-share", "4Gi"), result("1-card1", "gpu-3-share", "1Gi")), nil)
	expect.NoError(t, err)
	expect.Equal(t, map[string]string{ack.AnnotationMemory: `{"1":{"1":4,"3":4},"2":{"1":1,"3":1}}`}, got, "annotations")
}

func TestDevicesOfNobodyAreAnError(t *testing.T) {
	if _, err := For(pod("main"), claim(result("main", "card-0")), nil); err == nil {
		t.Error("no error for a device that no version has published")
	}
}

// site is an API server with pods, and the controller's work on them.
func site(t *testing.T, v1 bool, pods ...*corev1.Pod) (*reconciler, func() map[string]string) {
	t.Helper()
	client := fake.NewClientset()
	apitest.Create(t, client, pods...)
	a := newReconciler(Config{Cache: cache.New(cache.Options{Client: client}).Reader(), Live: client.CoreV1(),
		Changes: apitest.PatchingPods(client), V1: v1})
	slice := &view.Slice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Node: "n1",
		GPUs: []view.GPU{{Index: 1, MemoryMiB: 16130}}}
	expect.NoError(t, a.slices.GetStore().Add(slice))
	annotations := func() map[string]string {
		return apitest.Get[*corev1.Pod](t, client, "default", "p").Annotations
	}
	return a, annotations
}

func TestPodsAreAnnotated(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	copied := pod("main")
	copied.Annotations[ack.AnnotationMemory] = `{"0":{"0":9}}`
	copied.Annotations[ack.AnnotationCores] = `{"0":{"0":20}}`
	a, annotations := site(t, true, copied)
	c := claim(result("main", "gpu-1-share", "3Gi"))
	for range 2 {
		expect.NoError(t, a.reconcile(ctx, c))
	}
	want := map[string]string{
		"mine": "stays", ack.AnnotationMemory: `{"0":{"1":3}}`,
		ack.AnnotationV1Index: "1", ack.AnnotationV1Pod: "3", ack.AnnotationV1GPU: "15", ack.AnnotationV1Assigned: "true",
		ack.AnnotationV1AssumeTime: strconv.FormatInt(allocatedAt.UnixNano(), 10),
	}
	expect.Equal(t, want, annotations(), "annotations")
}

func TestOtherPodsAreLeftAlone(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	a, annotations := site(t, false, pod("main"))
	another, notAllocated, gone := claim(result("main", "gpu-1-share", "3Gi")), claim(),
		claim(result("main", "gpu-1-share", "3Gi"))
	another.Status.ReservedFor[0].UID = "u0"
	notAllocated.Status.Allocation = nil
	gone.Status.ReservedFor[0].Name = "q"
	for _, c := range []*resourceapi.ResourceClaim{another, notAllocated, gone} {
		expect.Error(t, a.reconcile(ctx, c))
	}
	expect.Equal(t, map[string]string{"mine": "stays"}, annotations(), "annotations")
}

func TestOnlyWhatIsWantedStays(t *testing.T) {
	memory := map[string]string{ack.AnnotationMemory: "a"}
	for name, test := range map[string]struct {
		annotations, want map[string]string
		changes           map[string]*string
	}{
		"none yet": {nil, memory, map[string]*string{ack.AnnotationMemory: ptr.To("a")}},
		"as they are": {map[string]string{ack.AnnotationMemory: "a", "mine": "x"}, memory,
			map[string]*string{}},
		"a copy's": {map[string]string{ack.AnnotationMemory: "b", ack.AnnotationCores: "c"}, memory,
			map[string]*string{ack.AnnotationMemory: ptr.To("a"), ack.AnnotationCores: nil}},
		"of a pod with whole GPUs": {map[string]string{ack.AnnotationMemory: "a", ack.AnnotationTopology: "c",
			ack.AnnotationGroup: "d", ack.AnnotationVisible: "e"}, memory,
			map[string]*string{ack.AnnotationTopology: nil, ack.AnnotationGroup: nil, ack.AnnotationVisible: nil}},
		"the first version, not now": {map[string]string{ack.AnnotationMemory: "a", ack.AnnotationV1Index: "0",
			ack.AnnotationV1Assigned: "true"}, memory,
			map[string]*string{ack.AnnotationV1Index: nil, ack.AnnotationV1Assigned: nil}},
		"nothing to say": {map[string]string{ack.AnnotationMemory: "a"}, nil, map[string]*string{}},
	} {
		expect.Equal(t, test.changes, change(test.annotations, test.want), "%s: changes", name)
	}
}

// A GPU that no ResourceSlice has keeps back the first version alone, until one has it.
func TestFirstVersionComesWithTheGPU(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	client := fake.NewClientset(pod("main"), claim(result("main", "gpu-0-share", "3Gi")))
	known := cache.New(cache.Options{Client: client})
	reader := known.Reader()
	work := New(Config{Cache: reader, Live: client.CoreV1(), Changes: apitest.PatchingPods(client), V1: true})
	go known.Run(ctx)
	if synced, err := reader.WaitForSync(ctx, "podannotations", 0); err != nil || !synced {
		t.Fatalf("the cache does not fill: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		work.Run(ctx, 1)
	}()
	defer func() {
		cancel()
		<-done
	}()
	comeToHave := func(want map[string]string) {
		t.Helper()
		var diff error
		if err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, 30*time.Second, true,
			func(ctx context.Context) (bool, error) {
				p, err := client.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{})
				if err == nil {
					diff = expect.Diff(want, p.Annotations)
				}
				return diff == nil, err
			}); err != nil {
			t.Fatalf("%v; annotations %v", err, diff)
		}
	}
	want := map[string]string{"mine": "stays", ack.AnnotationMemory: `{"0":{"0":3}}`}
	comeToHave(want)
	pool := v1alpha1.PoolName("n1")
	machine := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-0", Model: "Tesla-V100-SXM2-16GB", MemoryMiB: 16130}}}
	built := devices.Build(machine, devices.Options{Pool: pool, Mode: mode.Share, Slots: 20}).Pools[pool]
	apitest.Create(t, client, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: devices.SliceSpec("n1", pool, built, built.Slices[0])})
	maps.Copy(want, map[string]string{
		ack.AnnotationV1Index: "0", ack.AnnotationV1Pod: "3", ack.AnnotationV1GPU: "15", ack.AnnotationV1Assigned: "true",
		ack.AnnotationV1AssumeTime: strconv.FormatInt(allocatedAt.UnixNano(), 10),
	})
	comeToHave(want)
}

// A pod that was not converted may use the whole claim, or call it by another name.
func TestContainersOfTheRequestsNames(t *testing.T) {
	p := pod("a", "b")
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	p.Spec.Containers[1].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu", Request: "b"}}
	got, err := For(p, claim(result("a", "gpu-1-share", "4Gi"), result("b", "gpu-1-share", "1Gi")), nil)
	expect.NoError(t, err)
	expect.Equal(t, map[string]string{ack.AnnotationMemory: `{"0":{"1":4},"1":{"1":1}}`}, got, "annotations")
}
