// SPDX-License-Identifier: Apache-2.0

package overquota_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/overquota"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const keyGiB = corev1.ResourceName(quota.ClassGiB + ".deviceclass.resource.k8s.io/devices")

// site is an API server and the controller, in a synctest bubble.
type site struct {
	*testing.T
	client *fake.Clientset
	events *record.FakeRecorder

	mu sync.Mutex
	// touched are the pods that were changed, in order; looked is how often quotas were
	// listed.
	touched []string
	looked  int
	refuse  error
}

func run(t *testing.T, test func(s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		s := &site{T: t, client: fake.NewClientset(), events: record.NewFakeRecorder(1000)}
		apitest.Answer(s.client, "patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if patch, ok := a.(k8stesting.PatchAction); ok {
				s.touched = append(s.touched, patch.GetName())
			}
			return s.refuse != nil, nil, s.refuse
		})
		apitest.Answer(s.client, "list", "resourcequotas", func(k8stesting.Action) (bool, runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.looked++
			return false, nil, nil
		})
		known := cache.New(cache.Options{Client: s.client})
		work := overquota.New(overquota.Config{
			Cache: known.Reader(), Quotas: s.client.CoreV1(), Templates: s.client.ResourceV1(), Claims: s.client.ResourceV1(),
			Changes: apitest.PatchingPods(s.client), Clock: clock.RealClock{},
			Events: report.New(s.events, clock.RealClock{}, report.RepeatAfter(time.Hour)),
		})
		var running sync.WaitGroup
		running.Go(func() { known.Run(ctx) })
		running.Go(func() { work.Run(ctx, 2) })
		synctest.Wait()
		test(s)
		cancel()
		running.Wait()
	})
}

// pod is one for which a claim is to be made of a template.
func pod(name, template string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name),
			CreationTimestamp: metav1.NewTime(time.Now().Truncate(time.Second))},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
			{Name: "gpushare", ResourceClaimTemplateName: &template}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func (s *site) create(pods ...*corev1.Pod) {
	s.Helper()
	for _, p := range pods {
		apitest.Create(s, s.client, p)
		// The fake watch has a small buffer: the informer reads the event before the next one comes.
		synctest.Wait()
	}
}

// quota sets how many GiB the namespace ns may have, and has.
func (s *site) quota(hard, used int64) {
	s.Helper()
	s.quotaOf("ns", hard, used)
}

func (s *site) quotaOf(namespace string, hard, used int64) {
	s.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gpu"}}
	q.Spec.Hard = corev1.ResourceList{keyGiB: *resource.NewQuantity(hard, resource.DecimalSI)}
	q.Status.Hard = q.Spec.Hard
	q.Status.Used = corev1.ResourceList{keyGiB: *resource.NewQuantity(used, resource.DecimalSI)}
	quotas := s.client.CoreV1().ResourceQuotas(namespace)
	_, err := quotas.Update(s.Context(), q, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = quotas.Create(s.Context(), q, metav1.CreateOptions{})
	}
	expect.NoError(s, err)
}

// made is that the pod's claim was created.
func (s *site) made(p *corev1.Pod) {
	s.Helper()
	p = p.DeepCopy()
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{
		{Name: "gpushare", ResourceClaimName: ptr.To(p.Name + "-gpushare")}}
	apitest.Update(s, s.client, p)
}

// after checks which pods were changed within the next time, and which Events there are.
func (s *site) after(d time.Duration, touched, events []string) {
	s.Helper()
	time.Sleep(d)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	expect.Equal(s, touched, s.touched, "changed")
	s.touched = nil
	var told []string
	for len(s.events.Events) > 0 {
		told = append(told, <-s.events.Events)
	}
	expect.Equal(s, events, told, "told")
}

func short(hard, used, asked int64) string {
	return fmt.Sprintf("Warning GPUQuotaExceeded The pod's claim is not created: ResourceQuota gpu allows the "+
		"namespace %d "+
		"GiB of GPU memory, of which %d are used, and the pod asks for %d: it goes on by itself when enough of them are "+
		"free again", hard, used, asked)
}

// A pod that a quota keeps from running is told so, and goes on within seconds when others
// have ended.
func TestPodGoesOnWhenTheQuotaHasRoom(t *testing.T) {
	run(t, func(s *site) {
		s.quota(10, 8)
		p := pod("p", "gpushare.mem.main.3")
		s.create(p)
		s.after(2*time.Second, nil, nil)
		s.after(2*time.Second, nil, []string{short(10, 8, 3)})
		s.after(time.Minute, nil, nil)
		s.quota(10, 5)
		s.after(6*time.Second, []string{"p"}, nil)
		s.made(p)
		s.after(time.Hour, nil, nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.looked > 20 {
			t.Errorf("looked at the quotas %d times, most of them for nobody", s.looked)
		}
	})
}

// Without the quota nothing keeps the pod from running, and nobody else wakes it.
func TestPodGoesOnWhenTheQuotaIsDeleted(t *testing.T) {
	run(t, func(s *site) {
		s.quota(10, 10)
		p := pod("p", "gpushare.mem.main.3")
		s.create(p)
		s.after(4*time.Second, nil, []string{short(10, 10, 3)})
		apitest.Delete[*corev1.ResourceQuota](s, s.client, "ns", "gpu")
		// This one waits for something else.
		s.create(pod("q", "gpushare.mem.main.3"))
		s.after(6*time.Second, []string{"p"}, nil)
		s.made(p)
		s.after(time.Hour, nil, nil)
	})
}

// Pods that the API server does not let change, as by a policy, keep no other one waiting.
func TestPodsThatCannotBeChangedHoldUpNobody(t *testing.T) {
	run(t, func(s *site) {
		apitest.Answer(s.client, "patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
			if patch, ok := a.(k8stesting.PatchAction); !ok || patch.GetName() == "z" {
				return false, nil, nil
			}
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("expected by the test"))
		})
		s.quota(100, 0)
		for i := range 20 {
			s.create(pod(fmt.Sprintf("a%d", i), "gpushare.mem.main.3"))
		}
		s.create(pod("z", "gpushare.mem.main.3"))
		s.after(6*time.Second, []string{"z"}, nil)
	})
}

// The oldest that fits goes first; who would not fit beside it is not woken.
func TestOnlyThoseThatFitAreWoken(t *testing.T) {
	run(t, func(s *site) {
		s.quota(10, 10)
		a, b, c := pod("a", "gpushare.mem.main.8"), pod("b", "gpushare.mem.main.3"), pod("c", "gpushare.mem.main.2")
		s.create(c, b, a)
		s.after(4*time.Second, nil, []string{short(10, 10, 8), short(10, 10, 3), short(10, 10, 2)})
		s.quota(10, 5)
		s.after(6*time.Second, []string{"b", "c"}, nil)
		s.made(b)
		s.made(c)
		s.quota(10, 10)
		// Numbers that change are told after five minutes, however often they do.
		s.after(2*time.Minute, nil, nil)
		for used := int64(3); used < 10; used++ {
			s.quota(10, used)
			s.after(20*time.Second, nil, nil)
		}
		s.after(time.Minute, nil, []string{short(10, 9, 8)})
		s.quota(10, 8)
		s.after(4*time.Minute, nil, nil)
		s.after(2*time.Minute, nil, []string{short(10, 8, 8)})
	})
}

// What a pod waits for may be something else: it is changed less and less often.
func TestPodThatWaitsForSomethingElse(t *testing.T) {
	run(t, func(s *site) {
		s.quota(10, 0)
		s.create(pod("p", "gpushare.mem.main.3"))
		s.after(10*time.Minute, slices.Repeat([]string{"p"}, 7), nil)
		s.after(10*time.Minute, slices.Repeat([]string{"p"}, 4), nil)
	})
}

func TestPodsThatAreNoneOfItsBusiness(t *testing.T) {
	bound := pod("bound", "gpushare.mem.main.30")
	bound.Spec.NodeName = "n1"
	ending := pod("ending", "gpushare.mem.main.30")
	ending.DeletionTimestamp, ending.Finalizers = &metav1.Time{Time: time.Now()}, []string{"a/b"}
	has := pod("has", "gpushare.mem.main.30")
	has.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpushare", ResourceClaimName: ptr.To("c")}}
	own := pod("own", "")
	own.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpushare", ResourceClaimName: ptr.To("c")}
	for _, p := range []*corev1.Pod{bound, ending, has, own,
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "none"}}} {
		t.Run(p.Name, func(t *testing.T) {
			run(t, func(s *site) {
				s.quota(10, 0)
				s.create(p)
				s.after(time.Hour, nil, nil)
				expect.Equal(t, 0, s.looked, "times looked at the quotas")
			})
		})
	}
}

// A quota of something else, or none, is no reason to change pods.
func TestWithoutAQuotaOfClaims(t *testing.T) {
	run(t, func(s *site) {
		s.create(pod("p", "gpushare.mem.main.3"))
		s.after(time.Hour, nil, nil)
		if s.looked > 61 {
			t.Errorf("looked at the quotas %d times in an hour", s.looked)
		}
	})
}

// A template that a user wrote counts as well; one that is missing is what the pod waits
// for.
func TestTemplatesOfUsers(t *testing.T) {
	run(t, func(s *site) {
		s.quota(10, 8)
		s.create(pod("p", "mine"))
		s.after(10*time.Second, nil, nil)
		template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mine"}}
		template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{
			{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "share.gpu.aliyun.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2,
				Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
					"memory": resource.MustParse("4Gi")}},
			}}}
		apitest.Create(s, s.client, template)
		s.after(10*time.Second, nil, []string{short(10, 8, 8)})
	})
}

// What the API server refuses is tried again, and a pod that is gone is no error.
func TestWhatTheAPIServerRefuses(t *testing.T) {
	run(t, func(s *site) {
		s.quota(10, 0)
		s.refuse = apierrors.NewServiceUnavailable("expected by the test")
		s.create(pod("p", "gpushare.mem.main.3"))
		time.Sleep(20 * time.Second)
		s.mu.Lock()
		n := len(s.touched)
		s.touched, s.refuse = nil, nil
		s.mu.Unlock()
		if n < 2 {
			t.Errorf("tried %d times", n)
		}
		time.Sleep(2 * time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		expect.Equal(t, true, slices.Contains(s.touched, "p"), "tried again: %v", s.touched)
	})
}

// kube-controller-manager makes a pod's claims one after the other, and says so in the pod's
// status after the last: what it made before one was refused is used, and not waited for.
func TestPodWithSeveralTemplates(t *testing.T) {
	run(t, func(s *site) {
		s.quota(10, 8)
		p := pod("p", "gpushare.mem.main.3")
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "more",
			ResourceClaimTemplateName: ptr.To("gpushare.mem.main.4")})
		// These are others' claims, or for something else.
		s.claim("others", "gpushare", pod("q", ""))
		s.claim("another", "another", p)
		s.create(p)
		s.after(4*time.Second, nil, []string{short(10, 8, 7)})
		s.claim("first", "gpushare", p)
		s.after(6*time.Minute, nil, []string{short(10, 8, 4)})
		s.quota(10, 6)
		s.after(6*time.Second, []string{"p"}, nil)
	})
}

// claim makes a claim as kube-controller-manager makes one for a pod's claim of that name.
func (s *site) claim(name, of string, p *corev1.Pod) {
	s.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
		Annotations:     map[string]string{resourceapi.PodResourceClaimAnnotation: of},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))}}}
	apitest.Create(s, s.client, c)
}

// A namespace with thousands that wait leaves the others their Events.
func TestNamespacesAreToldOfSoManyPods(t *testing.T) {
	run(t, func(s *site) {
		s.quota(10, 10)
		s.quotaOf("other", 10, 10)
		for i := range 150 {
			s.create(pod(fmt.Sprintf("p%d", i), "gpushare.mem.main.3"))
		}
		other := pod("last", "gpushare.mem.main.3")
		other.Namespace = "other"
		s.create(other)
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		expect.Equal(s, 101, len(s.events.Events), "Events, 100 of the one namespace and 1 of the other")
	})
}
