// SPDX-License-Identifier: Apache-2.0

package podsync_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podsync"
)

// pod is one whose claim the kubelet of n1 was to have prepared.
func pod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1", Annotations: map[string]string{"mine": "stays"}},
		Spec: corev1.PodSpec{
			NodeName: "n1", ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("c")}},
			Containers: []corev1.Container{{Name: "main"}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodPending, StartTime: &metav1.Time{Time: time.Unix(0, 0)},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
			}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func hasSandbox(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue }

func claimOf(driver string) *resourceapi.ResourceClaim {
	result := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: driver, Pool: "n1/gpu", Device: "gpu-0"}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{result},
	}}
	return claim
}

// site is an API server and the controller, in a synctest bubble.
type site struct {
	*testing.T
	client *fake.Clientset
	start  time.Time

	mu sync.Mutex
	// at is when the pod's annotation was changed.
	at []time.Duration
	// refuse is what the API server answers to a patch.
	refuse error
}

func run(t *testing.T, claim *resourceapi.ResourceClaim, test func(s *site)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		s := &site{T: t, client: fake.NewClientset(claim), start: time.Now()}
		apitest.Answer(s.client, "patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.at = append(s.at, time.Since(s.start))
			return s.refuse != nil, nil, s.refuse
		})
		known := cache.New(cache.Options{Client: s.client, Namespace: "kube-system"})
		work := podsync.New(podsync.Config{Cache: known.Reader(), Client: apitest.PatchingPods(s.client),
			Clock: clock.RealClock{}})
		var running sync.WaitGroup
		running.Go(func() { known.Run(ctx) })
		running.Go(func() { work.Run(ctx, 2) })
		synctest.Wait()
		test(s)
		cancel()
		running.Wait()
	})
}

func (s *site) create(p *corev1.Pod) {
	s.Helper()
	apitest.Create(s, s.client, p)
}

func (s *site) update(change func(*corev1.Pod)) {
	s.Helper()
	apitest.Update(s, s.client, pod(change))
}

func (s *site) remove() {
	s.Helper()
	apitest.Delete[*corev1.Pod](s, s.client, "ns", "p")
}

func (s *site) read() *corev1.Pod {
	s.Helper()
	return apitest.Get[*corev1.Pod](s, s.client, "ns", "p")
}

// synced checks when the pod was synced until now, counted from the beginning.
func (s *site) synced(when string, want ...time.Duration) {
	s.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	expect.Equal(s, want, s.at, "%s: synced after", when)
}

func seconds(all ...int) []time.Duration {
	var out []time.Duration
	for _, n := range all {
		out = append(out, time.Duration(n)*time.Second)
	}
	return out
}

func TestPodWithoutASandboxIsSyncedLessAndLessOften(t *testing.T) {
	run(t, claimOf(v1alpha1.DriverName), func(s *site) {
		s.create(pod())
		time.Sleep(1900 * time.Millisecond)
		s.synced("before two seconds")
		time.Sleep(time.Second)
		s.synced("after two", seconds(2)...)
		first := s.read().Annotations
		value := first[v1alpha1.AnnotationSyncRequested]
		if first["mine"] != "stays" || value == "" || len(first) != 2 {
			t.Errorf("annotations %v", first)
		}
		time.Sleep(2 * time.Second)
		if s.read().Annotations[v1alpha1.AnnotationSyncRequested] == value {
			t.Errorf("the annotation stays %s: the kubelet sees no change", value)
		}
		time.Sleep(time.Hour)
		s.synced("after an hour", seconds(2, 4, 6, 9, 13, 20, 30, 45, 70, 100)...)
	})
}

func TestPodThatStartsIsLeftAlone(t *testing.T) {
	run(t, claimOf(v1alpha1.DriverName), func(s *site) {
		s.create(pod())
		time.Sleep(3 * time.Second)
		s.update(hasSandbox)
		time.Sleep(time.Hour)
		s.synced("after an hour", seconds(2)...)
	})
}

func TestPodsThatAreNoneOfItsBusiness(t *testing.T) {
	ours := claimOf(v1alpha1.DriverName)
	for name, test := range map[string]struct {
		claim  *resourceapi.ResourceClaim
		change func(*corev1.Pod)
	}{
		"without claims":                 {ours, func(p *corev1.Pod) { p.Spec.ResourceClaims = nil }},
		"with a claim of another driver": {claimOf("nic.example.com"), func(*corev1.Pod) {}},
		"that the kubelet has not seen":  {ours, func(p *corev1.Pod) { p.Status.StartTime = nil }},
		"that wait for a node":           {ours, func(p *corev1.Pod) { p.Spec.NodeName = "" }},
		"with a sandbox":                 {ours, hasSandbox},
		"that have begun, with none": {ours, func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Terminated = &corev1.ContainerStateTerminated{}
		}},
		"that are deleted": {ours, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: time.Unix(0, 0)}, []string{"f"}
		}},
		"that have ended before they began": {ours, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, test.claim, func(s *site) {
				s.create(pod(test.change))
				time.Sleep(time.Hour)
				s.synced("after an hour")
			})
		})
	}
}

func TestTimeBeginsWhenTheKubeletHasSeenThePod(t *testing.T) {
	run(t, claimOf(v1alpha1.DriverName), func(s *site) {
		s.create(pod(func(p *corev1.Pod) { p.Status.StartTime = nil }))
		time.Sleep(600 * time.Second)
		s.update(func(*corev1.Pod) {})
		time.Sleep(5 * time.Second)
		s.synced("after the node is back", seconds(602, 604)...)
	})
}

func TestNamesakeBeginsAnew(t *testing.T) {
	run(t, claimOf(v1alpha1.DriverName), func(s *site) {
		s.create(pod())
		time.Sleep(200 * time.Second)
		s.synced("the first", seconds(2, 4, 6, 9, 13, 20, 30, 45, 70, 100)...)
		s.at = nil
		s.remove()
		s.create(pod(func(p *corev1.Pod) { p.UID = types.UID("u2") }))
		time.Sleep(5 * time.Second)
		s.synced("the second", seconds(202, 204)...)
	})
}

func TestWhatTheAPIServerRefuses(t *testing.T) {
	pods := corev1.Resource("pods")
	for name, test := range map[string]struct {
		refuse error
		// again says that it is tried again at once, and not only by the schedule.
		again bool
	}{
		"it is gone":               {apierrors.NewNotFound(pods, "p"), false},
		"another one has its name": {apierrors.NewConflict(pods, "p", nil), false},
		"no permission":            {apierrors.NewForbidden(pods, "p", nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, claimOf(v1alpha1.DriverName), func(s *site) {
				s.refuse = test.refuse
				s.create(pod())
				time.Sleep(3 * time.Second)
				synctest.Wait()
				s.mu.Lock()
				defer s.mu.Unlock()
				if tries := len(s.at); (tries > 1) != test.again {
					t.Errorf("tried %d times", tries)
				}
			})
		})
	}
}

// A pod whose turn came late is not synced twice in a row.
func TestSyncsAreApart(t *testing.T) {
	run(t, claimOf(v1alpha1.DriverName), func(s *site) {
		s.refuse = apierrors.NewForbidden(corev1.Resource("pods"), "p", nil)
		s.create(pod())
		time.Sleep(5 * time.Second)
		synctest.Wait()
		s.mu.Lock()
		s.refuse, s.at = nil, nil
		s.mu.Unlock()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.at) < 3 {
			t.Fatalf("synced after %v", s.at)
		}
		for i, at := range s.at[1:] {
			if between := at - s.at[i]; between < 2*time.Second {
				t.Errorf("synced after %v, %s in a row", s.at, between)
			}
		}
	})
}

// plugin makes the node agent of a node, or changes whether it is ready.
func (s *site) plugin(node string, ready bool) {
	s.Helper()
	api := s.client.CoreV1().Pods("kube-system")
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "plugin-" + node,
		Labels: map[string]string{"app.kubernetes.io/component": "gpu-kubelet-plugin"}},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "plugin", Ready: ready}}}}
	_, err := api.Update(s.Context(), p, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(s.Context(), p, metav1.CreateOptions{})
	}
	expect.NoError(s, err)
	synctest.Wait()
}

// A plugin that ends again and again is away for longer each time. When it is back, pods do
// not wait for the next time that they are due, which may be half a minute away, or never
// come.
func TestPodsAreSyncedWhenThePluginIsBack(t *testing.T) {
	before := seconds(2, 4, 6, 9, 13, 20, 30, 45, 70, 100)
	for name, test := range map[string]struct {
		node string
		back []int // seconds, at which the plugin is ready again
		want []time.Duration
	}{
		"between two times":       {"n1", []int{15}, seconds(2, 4, 6, 9, 13, 15, 20, 30, 45, 70, 100)},
		"of another node":         {"n2", []int{15}, before},
		"before the first time":   {"n1", []int{1}, seconds(1, 3, 5, 7, 9, 13, 20, 30, 45, 70, 100)},
		"a moment after a time":   {"n1", []int{21}, seconds(2, 4, 6, 9, 13, 20, 22, 30, 45, 70, 100)},
		"a moment before a time":  {"n1", []int{19}, seconds(2, 4, 6, 9, 13, 19, 21, 30, 45, 70, 100)},
		"after the last time":     {"n1", []int{300}, append(seconds(2, 4, 6, 9, 13, 20, 30, 45, 70, 100), seconds(300)...)},
		"and away, and back":      {"n1", []int{15, 25}, seconds(2, 4, 6, 9, 13, 15, 20, 25, 30, 45, 70, 100)},
		"and back within moments": {"n1", []int{15, 16}, seconds(2, 4, 6, 9, 13, 15, 17, 20, 30, 45, 70, 100)},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, claimOf(v1alpha1.DriverName), func(s *site) {
				s.plugin("n1", true)
				s.plugin("n2", true)
				s.plugin("n1", false)
				s.plugin("n2", false)
				s.create(pod())
				for _, at := range test.back {
					s.plugin(test.node, false)
					time.Sleep(time.Until(s.start.Add(time.Duration(at) * time.Second)))
					s.plugin(test.node, true)
				}
				time.Sleep(time.Hour)
				s.synced("after an hour", test.want...)
			})
		})
	}
}
