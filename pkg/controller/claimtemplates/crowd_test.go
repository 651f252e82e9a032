// SPDX-License-Identifier: Apache-2.0

package claimtemplates

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// Many pods have one template: what becomes of each of them costs no look at all.
func TestPodsOfATemplateThatIsThereCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		client := fake.NewClientset()
		known := cache.New(cache.Options{Client: client})
		k := newReconciler(Config{Cache: known.Reader(), Grace: time.Minute, Clock: clock.RealClock{},
			Events: report.New(record.NewFakeRecorder(10), clock.RealClock{})})
		var looks atomic.Int32
		work := manager.NewController("test", func(context.Context, string) (time.Duration, error) {
			looks.Add(1)
			return 0, nil
		})
		k.pods.On(k.handler(work))
		template, err := wanted("ns/" + three)
		expect.NoError(t, err)
		template.UID = "u1"
		expect.NoError(t, k.templates.Put(template))
		k.settled.Store(cache.Key(template), template.UID)
		var running sync.WaitGroup
		running.Go(func() { k.pods.RunWithContext(ctx) })
		running.Go(func() { work.Run(ctx, 1) })
		synctest.Wait()

		const crowd = 50
		pods := client.CoreV1().Pods("ns")
		for i := range crowd {
			_, err := pods.Create(ctx, pod("ns", fmt.Sprint("p", i), three), metav1.CreateOptions{})
			expect.NoError(t, err)
		}
		change := func(phase corev1.PodPhase) {
			t.Helper()
			for i := range crowd {
				p := pod("ns", fmt.Sprint("p", i), three)
				p.Status.Phase, p.ResourceVersion = phase, string(phase)
				_, err := pods.UpdateStatus(ctx, p, metav1.UpdateOptions{})
				expect.NoError(t, err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		change(corev1.PodPending)
		change(corev1.PodRunning)
		if n := looks.Load(); n > 0 {
			t.Errorf("%d looks at the template while %d pods came and started", n, crowd)
		}
		change(corev1.PodSucceeded)
		if n := looks.Load(); n == 0 || n > 2 {
			t.Errorf("%d looks at the template as %d pods ended, want one or two", n, crowd)
		}
		cancel()
		running.Wait()
	})
}

// As many templates as are needed no longer, the pods of their namespace are not listed for each.
func TestTemplatesThatGoTogetherAreOneList(t *testing.T) {
	const crowd = 40
	var templates []runtime.Object
	for i := range crowd {
		template, err := wanted(fmt.Sprintf("ns/gpushare.mem.main.%d", i+1))
		expect.NoError(t, err)
		template.UID = types.UID(template.Name)
		templates = append(templates, template)
	}
	s := newSite(t, templates...)
	var lists atomic.Int64
	apitest.Answer(s.client, "list", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() == "ns" {
			lists.Add(1)
		}
		return false, nil, nil
	})
	s.create(pod("ns", "p", three))
	s.start()
	s.comesToHave("ns/" + three)
	if n := lists.Load(); n == 0 || n > crowd/4 {
		t.Errorf("the pods were listed %d times for %d templates, want a few", n, crowd)
	}
}
