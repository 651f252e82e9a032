// SPDX-License-Identifier: Apache-2.0

package podgroups

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// member is a pod that the policy gave to gang g.
func member(name, least string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now(),
			Labels: map[string]string{ack.LabelPodGroup: "g", ack.LabelMinAvailable: least}},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, SchedulingGroup: &corev1.PodSchedulingGroup{
			PodGroupName: ptr.To("g")}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

// withoutGroup is a pod that the policy looked at, whose group the API server dropped.
func withoutGroup(p *corev1.Pod) {
	p.Spec.SchedulingGroup = nil
	p.Annotations = map[string]string{v1alpha1.AnnotationGang: "g"}
}

// site is an API server and the controller, in a synctest bubble.
type site struct {
	*testing.T
	client *fake.Clientset
	events *record.FakeRecorder
	mu     sync.Mutex
	refuse error
	served bool
	// apart is how far the API server's clock is ahead of the controller's.
	apart time.Duration
}

// ServerResourcesForGroupVersion is Discovery.
func (s *site) ServerResourcesForGroupVersion(version string) (*metav1.APIResourceList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.served || version != schedulingapi.SchemeGroupVersion.String() {
		return nil, apierrors.NewNotFound(schedulingapi.Resource(""), version)
	}
	return &metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "podgroups"}}}, nil
}

func run(t *testing.T, served bool, objects []runtime.Object, test func(s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		s := &site{T: t, client: fake.NewClientset(objects...), events: record.NewFakeRecorder(1000)}
		apitest.Answer(s.client, "create", "podgroups", func(a k8stesting.Action) (bool, runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			// The API server's own time of creation, which the fake one does not write.
			a.(k8stesting.CreateAction).GetObject().(*schedulingapi.PodGroup).CreationTimestamp =
				metav1.NewTime(time.Now().Add(s.apart))
			return s.refuse != nil, nil, s.refuse
		})
		s.serve(served)
		known := cache.New(cache.Options{Client: s.client})
		work := New(Config{Cache: known.Reader(), Client: s.client.SchedulingV1beta1(), Discovery: s,
			Changes: apitest.PatchingPods(s.client), Events: report.New(s.events, clock.RealClock{}), Clock: clock.RealClock{}})
		var running sync.WaitGroup
		running.Go(func() { known.Run(ctx) })
		synctest.Wait()
		running.Go(func() { work.Run(ctx, 2) })
		synctest.Wait()
		test(s)
		cancel()
		running.Wait()
	})
}

func (s *site) serve(served bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served = served
}

func (s *site) create(pods ...*corev1.Pod) {
	s.Helper()
	apitest.Create(s, s.client, pods...)
	synctest.Wait()
}

func (s *site) update(pod *corev1.Pod) {
	s.Helper()
	apitest.Update(s, s.client, pod)
	synctest.Wait()
}

func (s *site) remove(pod string) {
	s.Helper()
	apitest.Delete[*corev1.Pod](s, s.client, "ns", pod)
	synctest.Wait()
}

func (s *site) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// has checks the gang's PodGroup: its minCount, 0 if there is none.
func (s *site) has(want int32) {
	s.Helper()
	group, err := s.client.SchedulingV1beta1().PodGroups("ns").Get(s.Context(), "g", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if want != 0 {
			s.Errorf("there is no PodGroup, want one of at least %d", want)
		}
		return
	}
	expect.NoError(s, err)
	expect.Equal(s, want, group.Spec.SchedulingPolicy.Gang.MinCount, "minCount of the PodGroup")
}

func (s *site) said() []string {
	var events []string
	for len(s.events.Events) > 0 {
		events = append(events, <-s.events.Events)
	}
	return events
}

func TestPodGroupFollowsItsPods(t *testing.T) {
	run(t, true, nil, func(s *site) {
		high := func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }
		s.create(member("a", "2", high))
		s.has(2)
		group, err := s.client.SchedulingV1beta1().PodGroups("ns").Get(s.Context(), "g", metav1.GetOptions{})
		if err != nil || group.Spec.PriorityClassName != "high" {
			s.Errorf("its priority class is %q (%v), want that of the pods", group.Spec.PriorityClassName, err)
		}
		s.after(time.Second)
		// A changed template makes new pods, a changed label is a wish as well.
		s.create(member("b", "3", high))
		s.has(3)
		s.update(member("b", "1", high))
		s.has(1)
		s.update(member("b", "many", high))
		s.has(2)
		s.remove("a")
		s.update(member("b", "1", high, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
		s.has(2)
		s.after(grace + time.Second)
		s.has(0)
		expect.Equal(s, nil, s.said(), "told")
	})
}

// A kubelet writes mirrors of its static pods into any namespace. They say nothing of the gangs there.
func TestMirrorsAreOfNoGang(t *testing.T) {
	mirror := func(p *corev1.Pod) {
		p.Spec.NodeName = "n1"
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, corev1.MirrorPodAnnotationKey, "hash")
	}
	run(t, true, nil, func(s *site) {
		s.create(member("a", "2"), member("b", "2"))
		s.has(2)
		s.after(time.Second)
		s.create(member("mirror", "9999", mirror))
		s.has(2)
	})
}

// A Job that is applied again, or whose pods come again, uses the PodGroup that is there.
func TestPodGroupOutlivesItsPodsForAWhile(t *testing.T) {
	run(t, true, nil, func(s *site) {
		s.create(member("a", "1"))
		s.remove("a")
		s.after(grace / 2)
		s.create(member("b", "4"))
		s.has(4)
		s.after(10 * grace)
		s.has(4)
	})
}

func TestPodGroupsOfOthersStay(t *testing.T) {
	others := &schedulingapi.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}}
	others.Spec.SchedulingPolicy.Gang = &schedulingapi.GangSchedulingPolicy{MinCount: 7}
	run(t, true, []runtime.Object{others}, func(s *site) {
		s.create(member("a", "2"))
		s.has(7)
		s.remove("a")
		s.after(time.Hour)
		s.has(7)
	})
}

// A controller that starts finds the PodGroups whose pods went meanwhile.
func TestPodGroupsWithoutPodsAreFound(t *testing.T) {
	left := &schedulingapi.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g",
		Labels: map[string]string{v1alpha1.LabelManagedBy: "gpu-compat-controller"}}}
	left.Spec.SchedulingPolicy.Gang = &schedulingapi.GangSchedulingPolicy{MinCount: 2}
	run(t, true, []runtime.Object{left}, func(s *site) {
		s.after(grace + time.Second)
		s.has(0)
	})
}

// Somebody removes the PodGroup of pods that wait.
func TestPodGroupComesBack(t *testing.T) {
	run(t, true, nil, func(s *site) {
		s.create(member("a", "2"))
		apitest.Delete[*schedulingapi.PodGroup](s, s.client, "ns", "g")
		s.after(lookAgain + time.Second)
		s.has(2)
	})
}

func TestClustersWithoutPodGroupsSaySo(t *testing.T) {
	run(t, false, nil, func(s *site) {
		s.create(member("left-alone", "2", func(p *corev1.Pod) { p.Spec.SchedulingGroup = nil }))
		expect.Equal(s, nil, s.said(), "told to a pod that the policy left alone")
		for i := range mostTold + 5 {
			s.create(member(fmt.Sprintf("p%02d", i), "2", withoutGroup))
		}
		events := s.said()
		if len(events) < mostTold || !strings.Contains(events[0], "GenericWorkload") {
			s.Errorf("told %q, want what to enable", events)
		}
		s.serve(true)
		s.after(lookAgain + time.Second)
		// Those that are there stay alone; new ones do not.
		s.has(0)
		if events := s.said(); len(events) == 0 || !strings.Contains(events[0], "create it again") {
			s.Errorf("told %q, want that the pods have to be created again", events)
		}
		s.create(member("new", "2"))
		s.has(2)
	})
}

func TestRefusedPodGroupsAreTold(t *testing.T) {
	run(t, true, nil, func(s *site) {
		s.mu.Lock()
		s.refuse = apierrors.NewForbidden(schedulingapi.Resource("podgroups"), "g", errors.New("no such PriorityClass"))
		s.mu.Unlock()
		s.create(member("a", "2"))
		if events := s.said(); len(events) != 1 || !strings.Contains(events[0], "no such PriorityClass") {
			s.Errorf("told %q, want why the pod waits", events)
		}
		s.mu.Lock()
		s.refuse = nil
		s.mu.Unlock()
		s.after(time.Minute)
		s.has(2)
	})
}

// Each look tells the same few pods of a large gang.
func TestFewPodsOfALargeGangAreTold(t *testing.T) {
	run(t, true, nil, func(s *site) {
		s.mu.Lock()
		s.refuse = apierrors.NewForbidden(schedulingapi.Resource("podgroups"), "g", errors.New("no such PriorityClass"))
		s.mu.Unlock()
		for i := range 5 * mostTold {
			s.create(member(fmt.Sprintf("p%02d", i), "2"))
		}
		s.after(time.Minute)
		expect.Equal(s, mostTold, len(s.said()), "pods told")
	})
}

func TestWhyAPodIsAlone(t *testing.T) {
	for text, pod := range map[string]*corev1.Pod{
		`is "0", which is not a number from 1`: member("a", "0", withoutGroup),
		`is "", which is not a number`:         member("a", "", withoutGroup),
		"cannot be the name of a PodGroup": member("a", "2", withoutGroup,
			func(p *corev1.Pod) { p.Labels[ack.LabelPodGroup] = "Some_Gang" }),
		"create it again": member("a", "2", withoutGroup),
	} {
		expect.Says(t, whyAlone(pod), text)
	}
}
