// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	if got := writes(client); len(got) != 1 {
		t.Errorf("writes: %q, want one", got)
	}
}
