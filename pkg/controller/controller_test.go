// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/defragment"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/probes"
)

// site is an API server with one node that publishes one A10, and more GPUs.
func site(t *testing.T, more ...gpu.GPU) (*fake.Clientset, *metadatafake.FakeMetadataClient) {
	t.Helper()
	name, pool := "n1", v1alpha1.PoolName("n1")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u1"}}
	machine := &gpu.Machine{GPUs: append([]gpu.GPU{{UUID: "GPU-0", Model: "NVIDIA-A10", MemoryMiB: 23028}}, more...)}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: &name, Pool: resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1},
		Devices: devices.Build(machine, devices.Options{Pool: pool, Mode: mode.Share,
			Slots: 20}).Pools[pool].Slices[0].Devices,
	}}
	scheme := metadatafake.NewTestScheme()
	expect.NoError(t, metav1.AddMetaToScheme(scheme))
	return fake.NewClientset(node, slice), metadatafake.NewSimpleMetadataClient(scheme, &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: node.ObjectMeta,
	})
}

// options are those of a controller that has one client for all.
func options(client kubernetes.Interface, metadata metadata.Interface, change func(*Options)) Options {
	checks := &probes.Checks{}
	o := Options{Client: client, Events: client, Waiting: client, Gangs: client, Nominations: client,
		Metadata: metadata, Annotations: metadata, Syncs: metadata, Nominate: metadata,
		Defragment: defragment.Off, Checks: checks,
		Metrics: metrics.NewController(prometheus.NewRegistry(), checks.Each)}
	change(&o)
	return o
}

func TestRunDoesWhatItIsToldAndEnds(t *testing.T) {
	for name, does := range map[string]struct{ labels, classes bool }{
		"labels and classes": {true, true}, "labels": {labels: true}, "classes": {classes: true},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			client, metadata := site(t)
			returned := make(chan error, 1)
			go func() {
				returned <- Run(ctx, options(client, metadata, func(o *Options) {
					o.NodeLabels, o.DeviceClasses, o.ClassGrace = does.labels, does.classes, time.Minute
				}))
			}()
			did := func(ctx context.Context) (labels, classes bool, err error) {
				node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
				if err != nil {
					return false, false, err
				}
				list, err := client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
				if err != nil {
					return false, false, err
				}
				return node.Labels["aliyun.accelerator/nvidia_name"] == "NVIDIA-A10", len(list.Items) > 0, nil
			}
			err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 30*time.Second, true,
				func(ctx context.Context) (bool, error) {
					labels, classes, err := did(ctx)
					return labels == does.labels && classes == does.classes, err
				})
			if err != nil {
				t.Errorf("labels and classes: %v", err)
			}
			cancel()
			expect.Error(t, <-returned)
			if labels, classes, err := did(t.Context()); err != nil || labels != does.labels || classes != does.classes {
				t.Errorf("labels %v, classes %v (%v): want %+v", labels, classes, err, does)
			}
		})
	}
}

// What was told last is written although the API server is slow: nobody tells it again.
func TestLastEventsAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		client, metadata := site(t, gpu.GPU{Index: 1, UUID: "GPU-1", Model: "Tesla-T4", MemoryMiB: 15360})
		var written atomic.Bool
		// A client of its own: it has a lock while it sleeps.
		slow := fake.NewClientset()
		slow.PrependReactor("create", "events", func(action k8stesting.Action) (bool, runtime.Object, error) {
			time.Sleep(3 * time.Second)
			event, ok := action.(k8stesting.CreateAction).GetObject().(*corev1.Event)
			written.Store(ok && event.Reason == v1alpha1.ReasonModelsDiffer)
			return true, event, nil
		})
		returned := make(chan error, 1)
		go func() {
			returned <- Run(ctx, options(client, metadata, func(o *Options) { o.Events, o.NodeLabels = slow, true }))
		}()
		time.Sleep(time.Second)
		cancel()
		expect.Error(t, <-returned)
		expect.Equal(t, true, written.Load(), "it is written, before Run returns, that the models of the node's GPUs differ")
	})
}

// Who does not preempt reads nothing for it, for which it might have no permission.
func TestPreemptionIsOffByDefault(t *testing.T) {
	for _, on := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			ctx, cancel := context.WithCancel(ctx)
			client, metadata := site(t)
			returned := make(chan error, 1)
			go func() { returned <- Run(ctx, options(client, metadata, func(o *Options) { o.Preemption = on })) }()
			time.Sleep(time.Minute)
			synctest.Wait()
			budgets := slices.ContainsFunc(client.Actions(), func(a k8stesting.Action) bool {
				return a.GetResource().Resource == "poddisruptionbudgets"
			})
			expect.Equal(t, on, budgets, "it reads PodDisruptionBudgets")
			cancel()
			expect.Error(t, <-returned)
		})
	}
}

// legacyPolicy makes the policy that refuses pods without claims, and its binding.
func legacyPolicy(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	named := metav1.ObjectMeta{Name: LegacyPolicy}
	admission := client.AdmissionregistrationV1()
	_, err := admission.ValidatingAdmissionPolicies().Create(t.Context(),
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: named}, metav1.CreateOptions{})
	expect.NoError(t, err)
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(t.Context(),
		&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: named,
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: LegacyPolicy, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			}}, metav1.CreateOptions{})
	expect.NoError(t, err)
}

// shows waits until the node shows so much memory.
func shows(ctx context.Context, t *testing.T, client kubernetes.Interface, want string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			memory := node.Status.Allocatable["aliyun.com/gpu-mem"]
			return memory.String() == want, nil
		})
	if err != nil {
		t.Errorf("the node does not show aliyun.com/gpu-mem %s: %v", want, err)
	}
}

// watches waits until objects of the resource are watched: a fake client tells nobody what changes between list and
// watch.
func watches(ctx context.Context, t *testing.T, client *fake.Clientset, resource string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) {
			watching := func(a k8stesting.Action) bool { return a.Matches("watch", resource) }
			return slices.ContainsFunc(client.Actions(), watching), nil
		})
	expect.NoErrorf(t, err, "nobody watches %s", resource)
}

func TestNodesShowAmountsWhileThePolicyRefusesPodsWithoutClaims(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client, metadata := site(t)
	legacyPolicy(t, client)
	returned := make(chan error, 1)
	go func() {
		returned <- Run(ctx, options(client, metadata, func(o *Options) {
			o.LegacyPolicy, o.PodAnnotations = LegacyPolicy, true
		}))
	}()
	shows(ctx, t, client, "22")
	watches(ctx, t, client, "validatingadmissionpolicybindings")
	expect.NoError(t, client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, LegacyPolicy,
		metav1.DeleteOptions{}))
	shows(ctx, t, client, "0")
	cancel()
	expect.Error(t, <-returned)
}

// Who no longer wants amounts gets rid of those that there are, before the policy goes.
func TestNodesStopShowingAmountsWithoutAPolicy(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client, metadata := site(t)
	legacyPolicy(t, client)
	for _, run := range []struct{ policy, want string }{{LegacyPolicy, "22"}, {"", "0"}} {
		ctx, cancel := context.WithCancel(ctx)
		returned := make(chan error, 1)
		go func() {
			returned <- Run(ctx, options(client, metadata, func(o *Options) { o.LegacyPolicy = run.policy }))
		}()
		shows(ctx, t, client, run.want)
		cancel()
		expect.Error(t, <-returned)
	}
}

// What one controller must not read keeps no other from its work, and is said.
func TestLoopThatCannotKnowTheClusterKeepsNoOtherWaiting(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client, metadata := site(t)
	forbidden := apierrors.NewForbidden(admissionv1.SchemeGroupVersion.WithResource(
		"validatingadmissionpolicies").GroupResource(), "", errors.New("expected by the test"))
	client.PrependReactor("list", "validatingadmissionpolicies",
		func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden })
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var checks probes.Checks
	returned := make(chan error, 1)
	go func() {
		returned <- Run(ctx, options(client, metadata, func(o *Options) {
			o.LegacyPolicy, o.NodeLabels, o.Checks = "other", true, &checks
		}))
	}()
	report := ""
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
			if err != nil || node.Labels["aliyun.accelerator/nvidia_name"] != "NVIDIA-A10" {
				return false, err
			}
			var well bool
			report, well = checks.Run()
			return !well && strings.Contains(report, "[+]nodelabels ok") && strings.Contains(report, "forbidden"), nil
		})
	if want := "[-]nodestatus: waits for ValidatingAdmissionPolicy other, which cannot be listed: "; err != nil ||
		!strings.Contains(report, want) {
		t.Errorf("%v; it says %q, want %q", err, report, want)
	}
	cancel()
	expect.Error(t, <-returned)
}

// Another replica may be able to. The five seconds are real: what apimachinery keeps of earlier errors is
// outside of any bubble.
func TestRunEndsWhenALoopCannotBegin(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client, metadata := site(t)
	forbidden := apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("expected by the test"))
	client.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil,
			forbidden
	})
	err := Run(ctx, options(client, metadata, func(o *Options) { o.SyncDeadline = 5 * time.Second }))
	if !errors.Is(err, forbidden) || !strings.Contains(err.Error(), "has not begun after 5s: it waits for ") {
		t.Errorf("Run: %v", err)
	}
}
