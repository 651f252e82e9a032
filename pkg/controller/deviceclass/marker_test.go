// SPDX-License-Identifier: Apache-2.0

package deviceclass

import (
	"context"
	"testing"
	"testing/synctest"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// The policy's parameter is there while the DeviceClass of the driver for CPUs is, and says
// what that says.
func TestMarkerFollowsTheClassOfCPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		client := fake.NewClientset(&resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "another.gpu.aliyun.com",
			Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ControllerName}}})
		classes := client.ResourceV1().DeviceClasses()
		known := cache.New(cache.Options{Client: client})
		reader := known.Reader()
		work := New(Config{Cache: reader, Client: client.ResourceV1(), Clock: clock.RealClock{},
			Events: report.New(record.NewFakeRecorder(10), clock.RealClock{})})
		go known.Run(ctx)
		if synced, err := reader.WaitForSync(ctx, "deviceclass", 0); err != nil || !synced {
			t.Fatalf("the cache does not fill: %v", err)
		}
		go work.Run(ctx, 1)

		marker := func() *resourceapi.DeviceClass {
			t.Helper()
			synctest.Wait()
			class, err := classes.Get(ctx, legacy.ClassCPUsMarker, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			expect.NoError(t, err)
			return class
		}
		if got := marker(); got != nil {
			t.Fatalf("without the driver for CPUs: %v", got)
		}
		selector := func(expression string) []resourceapi.DeviceSelector {
			return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
		}
		of := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: legacy.ClassCPUs},
			Spec: resourceapi.DeviceClassSpec{Selectors: selector("first"), ExtendedResourceName: ptr.To("example.com/cpu")}}
		apitest.Create(t, client, of)
		made := marker()
		if made == nil {
			t.Fatal("none was made when the driver's class came")
		}
		if made.Labels[v1alpha1.LabelCPUClass] != legacy.ClassCPUs ||
			made.Labels[v1alpha1.LabelManagedBy] != v1alpha1.ControllerName {
			t.Errorf("its labels are %v", made.Labels)
		}
		expect.Equal(t, resourceapi.DeviceClassSpec{Selectors: selector("first")}, made.Spec, "made")
		of.Spec.Selectors = selector("second")
		apitest.Update(t, client, of)
		expect.Equal(t, selector("second"), marker().Spec.Selectors, "after a change")
		// What somebody removes comes back.
		apitest.Delete[*resourceapi.DeviceClass](t, client, "", legacy.ClassCPUsMarker)
		if marker() == nil {
			t.Error("it was removed, and not made again")
		}
		apitest.Delete[*resourceapi.DeviceClass](t, client, "", of.Name)
		if got := marker(); got != nil {
			t.Errorf("the driver's class is gone, and it is there: %v", got)
		}
		if _, err := classes.Get(ctx, "another.gpu.aliyun.com", metav1.GetOptions{}); err != nil {
			t.Errorf("another class of the controller: %v", err)
		}
		cancel()
	})
}

// One that somebody else made is left alone, with the driver for CPUs and without.
func TestMarkerOfSomebodyElse(t *testing.T) {
	theirs := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: legacy.ClassCPUsMarker,
		Labels: map[string]string{v1alpha1.LabelManagedBy: "gitops"}}}
	of := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: legacy.ClassCPUs}}
	for name, objects := range map[string][]*resourceapi.DeviceClass{"with": {theirs, of}, "without": {theirs}} {
		_, ctx := ktesting.NewTestContext(t)
		client := fake.NewClientset()
		reader := cache.New(cache.Options{Client: client}).Reader()
		for _, object := range objects {
			expect.NoError(t, reader.Classes().Put(object))
		}
		r := newReconciler(Config{Cache: reader, Client: client.ResourceV1(), Clock: clock.RealClock{},
			Events: report.New(record.NewFakeRecorder(10), clock.RealClock{})})
		if _, err := r.reconcile(ctx, all); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if wrote := client.Actions(); len(wrote) > 0 {
			t.Errorf("%s the driver for CPUs: wrote %v", name, wrote)
		}
	}
	expect.Equal(t, map[string]string{v1alpha1.LabelManagedBy: "gitops"}, theirs.Labels, "labels of the cache's object")
}
