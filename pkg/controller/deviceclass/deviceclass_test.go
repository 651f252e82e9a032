// SPDX-License-Identifier: Apache-2.0

package deviceclass

import (
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const grace = 10 * time.Minute

// site is an API server and the controller at it.
type site struct {
	t          *testing.T
	client     *fake.Clientset
	clock      *clocktesting.FakePassiveClock
	recorder   *record.FakeRecorder
	reconciler *reconciler
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, client: fake.NewClientset(), clock: clocktesting.NewFakePassiveClock(time.Now()),
		recorder: record.NewFakeRecorder(10)}
	s.restart()
	return s
}

// restart begins with a process that remembers nothing.
func (s *site) restart() {
	s.reconciler = newReconciler(Config{Cache: cache.New(cache.Options{Client: s.client}).Reader(),
		Client: s.client.ResourceV1(), Events: report.New(s.recorder, s.clock), Models: true, Grace: grace,
		Clock: s.clock})
}

// sync lets the controller see what is there now, and returns when it wants to be called
// again.
func (s *site) sync() time.Duration {
	s.t.Helper()
	_, ctx := ktesting.NewTestContext(s.t)
	published, err := s.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	expect.NoError(s.t, err)
	var kept []view.Slice
	for i := range published.Items {
		kept = append(kept, *view.Read(&published.Items[i]))
	}
	refill(s.t, s.reconciler.slices, kept)
	classes, err := s.client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	expect.NoError(s.t, err)
	refill(s.t, s.reconciler.classes, classes.Items)
	again, err := s.reconciler.reconcile(ctx, all)
	expect.NoError(s.t, err)
	return again
}

func refill[T any](t *testing.T, of toolscache.SharedIndexInformer, items []T) {
	t.Helper()
	var objects []any
	for i := range items {
		objects = append(objects, &items[i])
	}
	expect.NoError(t, of.GetStore().Replace(objects, ""))
}

// publish makes a node publish GPUs of a model in a mode; no model, none.
func (s *site) publish(node, model string, m mode.Mode) {
	s.t.Helper()
	if model == "" {
		_ = s.client.ResourceV1().ResourceSlices().Delete(s.t.Context(), node, metav1.DeleteOptions{})
		return
	}
	s.publishMachine(node, m, &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-" + node, Model: model, MemoryMiB: 1024}}})
}

// publishMachine makes a node publish a machine's GPUs in a mode.
func (s *site) publishMachine(node string, m mode.Mode, machine *gpu.Machine) {
	s.t.Helper()
	name := v1alpha1.PoolName(node)
	_ = s.client.ResourceV1().ResourceSlices().Delete(s.t.Context(), node, metav1.DeleteOptions{})
	pool := devices.Build(machine, devices.Options{Pool: name, Mode: m, Slots: 20}).Pools[name]
	apitest.Create(s.t, s.client, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: devices.SliceSpec(node, name, pool, pool.Slices[0])})
}

func (s *site) pass(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }

// has checks the names of all classes, of which each is short for NAME.gpu.aliyun.com.
func (s *site) has(want ...string) {
	s.t.Helper()
	expect.Equal(s.t, append([]string{}, want...), s.names(), "classes")
}

// names are those of all classes, as for has.
func (s *site) names() []string {
	s.t.Helper()
	list, err := s.client.ResourceV1().DeviceClasses().List(s.t.Context(), metav1.ListOptions{})
	expect.NoError(s.t, err)
	got := []string{}
	for _, class := range list.Items {
		got = append(got, strings.TrimSuffix(class.Name, ".gpu.aliyun.com"))
	}
	return got
}

func (s *site) event(want string) {
	s.t.Helper()
	got := ""
	select {
	case got = <-s.recorder.Events:
	default:
	}
	expect.Says(s.t, got, want)
}

func TestClassesComeAndGoWithTheGPUs(t *testing.T) {
	s := newSite(t)
	s.sync()
	s.has()
	s.publish("a", "NVIDIA-A10", mode.Share)
	s.publish("b", "NVIDIA-A10", mode.Exclusive)
	s.publish("c", "Tesla-T4", mode.Share)
	s.sync()
	s.has("exclusive.nvidia-a10", "nvidia-a10", "share.nvidia-a10", "share.tesla-t4", "tesla-t4")

	s.publish("b", "", "")
	expect.Equal(t, grace, s.sync(), "called again after")
	s.has("exclusive.nvidia-a10", "nvidia-a10", "share.nvidia-a10", "share.tesla-t4", "tesla-t4")
	s.pass(grace / 2)
	s.publish("c", "", "")
	expect.Equal(t, grace/2, s.sync(), "called again after")
	s.pass(grace / 2)
	s.sync()
	s.has("nvidia-a10", "share.nvidia-a10", "share.tesla-t4", "tesla-t4")
	s.publish("a", "", "")
	s.pass(grace / 2)
	s.sync()
	s.has("nvidia-a10", "share.nvidia-a10")
	s.pass(grace)
	s.sync()
	s.has()
}

// The classes of MIG profiles come with the instances and go, in time, with them, as those of models.
func TestClassesOfProfiles(t *testing.T) {
	s := newSite(t)
	cut := func(profiles ...string) {
		t.Helper()
		machine := &gpu.Machine{Partitioned: []gpu.Partitioned{{
			GPU: gpu.GPU{UUID: "GPU-a", Model: "A100", MemoryMiB: 81920}}}}
		for i, profile := range profiles {
			machine.Partitioned[0].Instances = append(machine.Partitioned[0].Instances, gpu.Instance{
				UUID: fmt.Sprintf("MIG-%d", i), Profile: profile, Start: i, Size: 1, MemoryMiB: 9728})
		}
		s.publishMachine("a", mode.Exclusive, machine)
	}
	cut("1g.10gb", "1g.10gb", "1g.10gb+me")
	s.sync()
	s.has("1g.10gb.me.mig", "1g.10gb.mig")
	class, err := s.client.ResourceV1().DeviceClasses().Get(t.Context(), "1g.10gb.me.mig.gpu.aliyun.com",
		metav1.GetOptions{})
	if err != nil || class.Spec.ExtendedResourceName == nil ||
		*class.Spec.ExtendedResourceName != "nvidia.com/mig-1g.10gb.me" {
		t.Errorf("%+v, %v", class, err)
	}
	cut("3g.40gb", "1g.10gb+me")
	expect.Equal(t, grace, s.sync(), "called again after")
	s.has("1g.10gb.me.mig", "1g.10gb.mig", "3g.40gb.mig")
	s.pass(grace)
	s.sync()
	s.has("1g.10gb.me.mig", "3g.40gb.mig")
}

func TestGPUsThatAreBackInTimeKeepTheirClasses(t *testing.T) {
	s := newSite(t)
	s.publish("a", "NVIDIA-A10", mode.Share)
	s.sync()
	s.publish("a", "", "")
	s.sync()
	s.pass(grace - time.Second)
	s.publish("a", "NVIDIA-A10", mode.Share)
	s.sync()
	s.publish("a", "", "")
	s.pass(time.Second)
	s.sync()
	s.has("nvidia-a10", "share.nvidia-a10")
	// A process that did not see them go waits from its start.
	s.restart()
	s.pass(grace - time.Second)
	expect.Equal(t, grace, s.sync(), "called again after")
	s.has("nvidia-a10", "share.nvidia-a10")
}

func TestClassesThatAreNamedStay(t *testing.T) {
	exactly := func(class string) []resourceapi.DeviceRequest {
		return []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}}
	}
	either := func(class string) []resourceapi.DeviceRequest {
		return []resourceapi.DeviceRequest{{Name: "r", FirstAvailable: []resourceapi.DeviceSubRequest{
			{Name: "first", DeviceClassName: "share.tesla-t4.gpu.aliyun.com"}, {Name: "second", DeviceClassName: class},
		}}}
	}
	for name, requests := range map[string][]resourceapi.DeviceRequest{
		"by a request":    exactly("share.nvidia-a10.gpu.aliyun.com"),
		"by a subrequest": either("share.nvidia-a10.gpu.aliyun.com"),
	} {
		spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}
		for _, kind := range []string{"claim", "template"} {
			t.Run(name+" of a "+kind, func(t *testing.T) {
				s := newSite(t)
				s.publish("a", "NVIDIA-A10", mode.Share)
				s.sync()
				drop := s.name(kind, spec)
				s.publish("a", "", "")
				s.sync()
				s.pass(grace)
				expect.Equal(t, grace, s.sync(), "called again after")
				s.has("share.nvidia-a10")
				drop()
				s.pass(grace)
				s.sync()
				s.has()
			})
		}
	}
}

// name makes a claim or a template, and returns what removes it.
func (s *site) name(kind string, spec resourceapi.ResourceClaimSpec) (drop func()) {
	s.t.Helper()
	meta := metav1.ObjectMeta{Namespace: "team", Name: "x"}
	if kind == "claim" {
		apitest.Create(s.t, s.client, &resourceapi.ResourceClaim{ObjectMeta: meta, Spec: spec})
		return func() { apitest.Delete[*resourceapi.ResourceClaim](s.t, s.client, "team", "x") }
	}
	apitest.Create(s.t, s.client, &resourceapi.ResourceClaimTemplate{ObjectMeta: meta,
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}})
	return func() { apitest.Delete[*resourceapi.ResourceClaimTemplate](s.t, s.client, "team", "x") }
}

func TestClassesAreRepairedAndMadeAgain(t *testing.T) {
	s := newSite(t)
	s.publish("a", "NVIDIA-A10", mode.Share)
	s.sync()
	apitest.Delete[*resourceapi.DeviceClass](t, s.client, "", "nvidia-a10.gpu.aliyun.com")
	broken := apitest.Get[*resourceapi.DeviceClass](t, s.client, "", "share.nvidia-a10.gpu.aliyun.com")
	want := broken.Spec.DeepCopy()
	broken.Spec.Selectors = nil
	apitest.Update(t, s.client, broken)
	s.sync()
	s.has("nvidia-a10", "share.nvidia-a10")
	repaired := apitest.Get[*resourceapi.DeviceClass](t, s.client, "", broken.Name)
	expect.Equal(t, want, &repaired.Spec, "repaired")
}

func TestClassesOfOthersAreLeftAlone(t *testing.T) {
	s := newSite(t)
	foreign := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nvidia-a10.gpu.aliyun.com"}}
	apitest.Create(t, s.client, foreign)
	s.publish("a", "NVIDIA-A10", mode.Share)
	s.sync()
	s.event("Normal GPUDeviceClassNotOurs")
	s.sync()
	s.event("")
	s.publish("a", "", "")
	s.sync()
	s.pass(grace)
	s.sync()
	s.has("nvidia-a10")
}

func TestTwoModelsOfOneName(t *testing.T) {
	s := newSite(t)
	s.publish("a", "nvidia-a10", mode.Share)
	s.sync()
	s.publish("b", "NVIDIA-A10", mode.Exclusive)
	s.sync()
	s.has("nvidia-a10", "share.nvidia-a10")
	s.event(fmt.Sprintf("for the model %q. There is none for the model %q", "nvidia-a10", "NVIDIA-A10"))
	s.publish("a", "", "")
	s.sync()
	s.pass(grace)
	s.sync()
	s.has()
	s.sync()
	s.has("exclusive.nvidia-a10", "nvidia-a10")
}
