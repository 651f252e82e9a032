// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// server is an API server that completes the names of slices and numbers their versions.
func server(t *testing.T) *fake.Clientset {
	t.Helper()
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}})
	made := 0
	client.PrependReactor("create", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		slice := action.(k8stesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		made++
		slice.Name = fmt.Sprintf("%s%d", slice.GenerateName, made)
		slice.UID, slice.ResourceVersion = "slice-uid", fmt.Sprint(made)
		return false, nil, nil
	})
	// By its version the controller tells what it wrote from what it read before.
	client.PrependReactor("update", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		made++
		action.(k8stesting.UpdateAction).GetObject().(*resourceapi.ResourceSlice).ResourceVersion = fmt.Sprint(made)
		return false, nil, nil
	})
	return client
}

// writes are the changes that slices had.
func writes(client *fake.Clientset) (verbs []string) {
	for _, a := range client.Actions() {
		if a.GetResource().Resource == "resourceslices" && a.GetVerb() != "list" && a.GetVerb() != "watch" {
			verbs = append(verbs, a.GetVerb())
		}
	}
	return verbs
}

func devicesOf(name string) []resourceapi.Device {
	return []resourceapi.Device{{
		Name: name, AllowMultipleAllocations: ptr.To(true),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"uuid": {StringValue: ptr.To("GPU-1")}},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse("32510Mi")}},
		Taints: []resourceapi.DeviceTaint{{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule}},
		ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "gpu-1",
			Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("1Gi")}}}},
	}}
}

// The controller of the kubelet's helper changes nothing of what was written first, and writes what changes later.
func TestControllerAdoptsFirstSlices(t *testing.T) { synctest.Test(t, testAdoption) }

func testAdoption(t *testing.T) {
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{
		{Devices: devicesOf("gpu-0")}, {Devices: devicesOf("gpu-1")},
		{SharedCounters: []resourceapi.CounterSet{{Name: "gpu-1", Counters: map[string]resourceapi.Counter{
			"memory": {Value: resource.MustParse("32510Mi")}}}}},
	}}
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"n1/gpu": pool}}
	_, ctx := ktesting.NewTestContext(t)
	client := server(t)
	expect.NoError(t, WriteFirst(ctx, client, "n1", "node-uid", resources))
	want := []string{"create", "create", "create"}
	expect.Equal(t, want, writes(client), "the first writes")
	controller, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: v1alpha1.DriverName, KubeClient: client, Resources: resources.DeepCopy(),
		Owner:        &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "node-uid"},
		ErrorHandler: func(_ context.Context, err error, msg string) { t.Errorf("%s: %v", msg, err) },
	})
	expect.NoError(t, err)
	defer controller.Stop()
	// It looks again half a minute after it has read them.
	time.Sleep(45 * time.Second)
	expect.Equal(t, want, writes(client), "the controller does not take the first slices for its own; writes")
	changed := resources.DeepCopy()
	changed.Pools["n1/gpu"].Slices[1].Devices[0].Taints = nil
	controller.Update(changed)
	synctest.Wait()
	expect.Equal(t, append(want, "update"), writes(client), "writes after a change")
}

// Slices that are there are the controller's: a second set would be devices that exist twice.
func TestFirstSlicesAreWrittenOnce(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client := server(t)
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		"n1/gpu": {Slices: []resourceslice.Slice{{Devices: devicesOf("gpu-0")}}}}}
	for range 2 {
		expect.NoError(t, WriteFirst(ctx, client, "n1", "node-uid", resources))
	}
	expect.Equal(t, []string{"create"}, writes(client), "writes")
}

// usedBy makes a claim of so many pods, and the pods.
func usedBy(n int) (*resourceapi.ResourceClaim, *fake.Clientset) {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "shared"}}
	client := fake.NewClientset()
	for i := range n {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("pod-%03d", i),
			UID: types.UID(fmt.Sprint(i))}}
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		if i%2 == 0 {
			_ = client.Tracker().Add(pod)
		}
	}
	return c, client
}

func TestPodsOfAClaimWithManyUsers(t *testing.T) {
	c, client := usedBy(256)
	pods, err := Reader{Client: client}.Pods(t.Context(), c)
	if err != nil || len(pods) != 128 {
		t.Fatalf("%d pods, want the 128 that exist: %v", len(pods), err)
	}
	for i, pod := range pods {
		if want := fmt.Sprintf("pod-%03d", 2*i); pod.Name != want {
			t.Errorf("pod %d is %s, want %s: what a claim's pods make of it must not depend on who answers first", i, pod.Name,
				want)
		}
	}
}

// The reads wait for each other here: one after the other they would never end.
func TestReadsAreSideBySideAndBounded(t *testing.T) {
	var running, most atomic.Int64
	full := make(chan struct{})
	isFull := sync.OnceFunc(func() { close(full) })
	_, err := readEach(t.Context(), make([]int, 4*readsAtOnce), func(ctx context.Context, _ int) (int, error) {
		defer running.Add(-1)
		now := running.Add(1)
		for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
		}
		if now == readsAtOnce {
			isFull()
		}
		select {
		case <-full:
			return 0, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	})
	if err != nil || most.Load() != readsAtOnce {
		t.Errorf("at most %d reads were side by side, want %d: %v", most.Load(), readsAtOnce, err)
	}
}

func TestReadsEndWithTheKubeletsCall(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := readEach(ctx, make([]int, 256), func(ctx context.Context, _ int) (int, error) {
		cancel(fmt.Errorf("the kubelet gave up"))
		<-ctx.Done()
		return 0, context.Cause(ctx)
	})
	expect.Error(t, err, "the kubelet gave up")
}

// Every slice of a pool is asked for, and what is dropped of any is told.
func TestPreflightFindsWhatTheAPIServerDrops(t *testing.T) {
	pool := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"n1/gpu": {Slices: []resourceslice.Slice{
		{Devices: []resourceapi.Device{{
			Name: "gpu-0", AllowMultipleAllocations: ptr.To(true),
			ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "cards"}},
		}}},
		{SharedCounters: []resourceapi.CounterSet{{Name: "cards"}}},
	}}}}
	for name, tc := range map[string]struct {
		drop func(*resourceapi.ResourceSliceSpec)
		want string
	}{
		"nothing":  {func(*resourceapi.ResourceSliceSpec) {}, ""},
		"counters": {func(s *resourceapi.ResourceSliceSpec) { s.SharedCounters = nil }, "DRAPartitionableDevices"},
		"consumption": {func(s *resourceapi.ResourceSliceSpec) {
			eachDevice(s, func(d *resourceapi.Device) { d.ConsumesCounters = nil })
		}, "DRAPartitionableDevices"},
		"several claims": {func(s *resourceapi.ResourceSliceSpec) {
			eachDevice(s, func(d *resourceapi.Device) { d.AllowMultipleAllocations = nil })
		}, "DRAConsumableCapacity"},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			client := fake.NewClientset()
			client.PrependReactor("create", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
				slice := action.(k8stesting.CreateAction).GetObject().(*resourceapi.ResourceSlice).DeepCopy()
				expect.Equal(t, 2, slice.Spec.Pool.ResourceSliceCount, "a slice says that its pool has")
				tc.drop(&slice.Spec)
				return true, slice, nil
			})
			err := Preflight(ctx, client, "n1", pool)
			var missing *MissingFeatureError
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (!errors.As(err, &missing) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want one that names %s", err, tc.want)
			}
		})
	}
}

func eachDevice(s *resourceapi.ResourceSliceSpec, change func(*resourceapi.Device)) {
	for i := range s.Devices {
		change(&s.Devices[i])
	}
}

func TestFeaturesOfAPool(t *testing.T) {
	shared := resourceslice.Slice{Devices: []resourceapi.Device{{AllowMultipleAllocations: ptr.To(true)}}}
	counters := resourceslice.Slice{SharedCounters: []resourceapi.CounterSet{{Name: "cards"}}}
	plain := resourceslice.Slice{Devices: []resourceapi.Device{{Name: "gpu-0"}}}
	for _, tc := range []struct {
		slices []resourceslice.Slice
		want   Features
	}{
		{[]resourceslice.Slice{plain}, Features{}},
		{[]resourceslice.Slice{plain, shared}, Features{Shares: true}},
		{[]resourceslice.Slice{plain, counters}, Features{Counters: true}},
		{[]resourceslice.Slice{shared, counters}, Features{Shares: true, Counters: true}},
	} {
		resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{"p": {Slices: tc.slices}}}
		expect.Equal(t, tc.want, FeaturesOf(resources), "features")
	}
}
