// SPDX-License-Identifier: Apache-2.0

package cpusets

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// asking is a pod that the policy has looked at, with containers of so many CPUs.
func asking(name string, cpus ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
		Annotations: map[string]string{ack.AnnotationCPUSet: "true", v1alpha1.AnnotationCPUSet: "asked"}}}
	for _, amount := range cpus {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Resources: corev1.ResourceRequirements{Limits: list, Requests: list.DeepCopy()}})
	}
	return pod
}

func TestWhatIsMissing(t *testing.T) {
	const noLimit = "no container has a CPU limit that is a whole number from 1 to 4096"
	with := func(pod *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
		change(pod)
		return pod
	}
	refer := func(container int, name, request string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[container].Resources.Claims = []corev1.ResourceClaim{{Name: name, Request: request}}
		}
	}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"no claim":                 {asking("p", "4"), unclaimed},
		"of several containers":    {asking("p", "500m", "4"), unclaimed},
		"a claim":                  {with(asking("p", "4"), refer(0, "gpushare-cpus-0", "")), ""},
		"of the second container":  {with(asking("p", "500m", "4"), refer(1, "gpushare-cpus-1", "")), ""},
		"moved by a webhook":       {with(asking("p", "500m", "4"), refer(1, "gpushare-cpus-0", "")), ""},
		"a claim with GPUs":        {with(asking("p", "4"), refer(0, "gpushare", "cpus")), ""},
		"a claim for GPUs alone":   {with(asking("p", "4"), refer(0, "gpushare", "main")), unclaimed},
		"a claim of somebody else": {with(asking("p", "4"), refer(0, "cpus", "")), unclaimed},
		"no limit":                 {asking("p"), noLimit},
		"half of a CPU":            {asking("p", "500m", "1500m"), noLimit},
		"more than any has":        {asking("p", "5k"), noLimit},
		"a smaller request": {with(asking("p", "4"), func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
		}), noLimit},
		"virtual nodes": {with(asking("p", "4"), func(p *corev1.Pod) { p.Annotations[ack.AnnotationBurst] = "eci" }),
			"by its annotation alibabacloud.com/burst-resource: eci it may run on a virtual node"},
		"not looked at": {with(asking("p", "4"), func(p *corev1.Pod) { delete(p.Annotations, v1alpha1.AnnotationCPUSet) }),
			""},
	} {
		pods := cache.New(cache.Options{Client: fake.NewClientset()}).Reader().UnscheduledPods()
		expect.NoError(t, pods.Put(test.pod))
		// What the cache keeps of it is enough.
		kept, _ := pods.Get(cache.Key(test.pod))
		got := missing(kept)
		if !strings.HasPrefix(got, test.want) || (test.want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestPodsAreTold(t *testing.T) {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: legacy.ClassCPUs}}
	for name, test := range map[string]struct {
		classes []runtime.Object
		cpus    string
		want    string
	}{
		"no class": {nil, "4", "The pod runs without exclusive CPUs: the cluster has no DeviceClass dra.cpu. Its " +
			"administrator installs dra-driver-cpu"},
		"a class that came later": {[]runtime.Object{class}, "4", v1alpha1.ControllerName + " had not yet seen " +
			"DeviceClass dra.cpu when it was created"},
		"a limit": {[]runtime.Object{class}, "500m", "no container has a CPU limit"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, ctx := ktesting.NewTestContext(t)
				ctx, cancel := context.WithCancel(ctx)
				client, events := fake.NewClientset(test.classes...), record.NewFakeRecorder(10)
				known := cache.New(cache.Options{Client: client})
				work := New(Config{Cache: known.Reader(), Events: report.New(events, clock.RealClock{})})
				var running sync.WaitGroup
				running.Go(func() { known.Run(ctx) })
				synctest.Wait()
				// The pod has come and gone before anybody works.
				apitest.Create(t, client, asking("p", test.cpus))
				synctest.Wait()
				apitest.Delete[*corev1.Pod](t, client, "ns", "p")
				synctest.Wait()
				running.Go(func() { work.Run(ctx, 1) })
				synctest.Wait()
				select {
				case event := <-events.Events:
					if !strings.HasPrefix(event, "Warning GPUCPUsNotGiven ") || !strings.Contains(event, test.want) {
						t.Errorf("Event %q, want %q", event, test.want)
					}
				default:
					t.Error("no Event")
				}
				if len(events.Events) > 0 {
					t.Errorf("another Event: %q", <-events.Events)
				}
				cancel()
				running.Wait()
			})
		})
	}
}
