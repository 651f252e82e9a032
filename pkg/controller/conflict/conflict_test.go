// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/reporttest"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// site is an API server with node n1 and its two GPUs, and a keeper that looks when
// the test says so, by a clock that the test moves.
type site struct {
	t        *testing.T
	ctx      context.Context
	client   *fake.Clientset
	recorder *record.FakeRecorder
	clock    *clocktesting.FakePassiveClock
	keeper   *keeper
	// evictions are those that the API server was asked for, refusal its answer.
	evictions []*policyv1.Eviction
	conflict  error
}

func newSite(t *testing.T, objects ...runtime.Object) *site {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	s := &site{
		t: t, ctx: ctx, client: fake.NewClientset(objects...), recorder: record.NewFakeRecorder(10),
		clock: clocktesting.NewFakePassiveClock(time.Now()),
	}
	s.client.PrependReactor("create", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(k8stesting.CreateAction)
		if !ok || action.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		if eviction, ok := create.GetObject().(*policyv1.Eviction); ok {
			s.evictions = append(s.evictions, eviction)
		}
		return true, nil, s.conflict
	})
	s.keeper = newKeeper(Config{
		Cache:  cache.New(cache.Options{Client: s.client}).Reader(),
		Claims: s.client.ResourceV1(), Core: s.client.CoreV1(), Jobs: s.client.BatchV1(),
		Events: report.New(s.recorder, s.clock), Clock: s.clock, Evict: true,
	})
	for _, slice := range published(twoGPUs, "n1", devices.Options{Mode: mode.Share, Slots: 20}) {
		if err := s.keeper.slices.Put(slice); err != nil {
			t.Fatal(err)
		}
	}
	for _, object := range objects {
		switch object := object.(type) {
		case *corev1.Pod:
			s.cached(object)
		case *resourceapi.ResourceClaim:
			s.cachedClaim(object)
		}
	}
	return s
}

// cached brings the pod into the cache as its informer would.
func (s *site) cached(pod *corev1.Pod) {
	s.t.Helper()
	if err := s.keeper.pods.Put(pod); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) cachedClaim(claim *resourceapi.ResourceClaim) {
	s.t.Helper()
	if err := s.keeper.claims.Put(claim); err != nil {
		s.t.Fatal(err)
	}
}

// look lets time pass and has the keeper look.
func (s *site) look(after time.Duration) time.Duration {
	s.t.Helper()
	s.clock.SetTime(s.clock.Now().Add(after))
	again, err := s.keeper.sync(s.ctx, "n1")
	if err != nil {
		s.t.Fatal(err)
	}
	return again
}

// looksUntilItActs lets the keeper find out and lets Patience pass.
func (s *site) looksUntilItActs() time.Duration {
	s.t.Helper()
	s.look(0)
	s.look(Starting)
	s.notEvicted()
	reporttest.Told(s.t, s.recorder)
	return s.look(Patience)
}

func (s *site) notEvicted() {
	s.t.Helper()
	if len(s.evictions) > 0 {
		s.t.Fatalf("it evicted %v", s.evictions)
	}
}

// evicted checks which pods were evicted, and forgets it.
func (s *site) evicted(names ...string) {
	s.t.Helper()
	var got []string
	for _, eviction := range s.evictions {
		got = append(got, eviction.Name)
	}
	if diff := cmp.Diff(names, got); diff != "" {
		s.t.Errorf("evicted pods (-want +got):\n%s", diff)
	}
	s.evictions = nil
}

func ownedBy(apiVersion, kind, name string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(name), Controller: ptr.To(true)}}
	}
}

var ofReplicaSet = ownedBy("apps/v1", "ReplicaSet", "web")

// twice are two pods that were allocated the same GPU; the first one runs.
func twice(changes ...func(*corev1.Pod)) []runtime.Object {
	return []runtime.Object{
		podOf("old", running), claimOf("old", "gpu-0-share", "12Gi"), podOf("new", changes...),
		claimOf("new", "gpu-0-share", "7Gi"),
	}
}

func TestPodOfAnOwnerIsEvicted(t *testing.T) {
	s := newSite(t, twice(ofReplicaSet)...)
	s.looksUntilItActs()
	if len(s.evictions) != 1 {
		t.Fatalf("%d evictions, want 1", len(s.evictions))
	}
	got := s.evictions[0]
	if want := (&metav1.Preconditions{UID: ptr.To(types.UID("new")),
		ResourceVersion: ptr.To("1")}); got.Namespace != "default" || got.Name != "new" || got.DeleteOptions == nil ||
		!cmp.Equal(got.DeleteOptions.Preconditions, want) {
		t.Errorf("eviction %+v, want that of default/new with %v", got, want)
	}
	reporttest.Told(t, s.recorder, "Warning GPUCardTaken The scheduler allocated the pod a GPU that others hold",
		"GPU 0 (GPU-0): 7 GiB asked for, but 12 of 15 GiB are already granted", "It was evicted: ReplicaSet web makes "+
			"another")
}

func TestPatienceBeginsAnewWhenItWasNotRefusedMeanwhile(t *testing.T) {
	s := newSite(t, twice(ofReplicaSet)...)
	s.look(0)
	s.look(Starting)
	// The other goes, and one that comes in its place takes the GPU again.
	if err := s.client.CoreV1().Pods("default").Delete(s.ctx, "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.look(Patience)
	if _, err := s.client.CoreV1().Pods("default").Create(s.ctx, podOf("old", running),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.look(Patience)
	s.look(Patience / 2)
	s.notEvicted()
	s.look(Patience / 2)
	s.evicted("new")
}

func TestWhatTheCacheSaysIsNotEnough(t *testing.T) {
	s := newSite(t, twice(ofReplicaSet, running)...)
	s.cached(podOf("new", ofReplicaSet))
	s.looksUntilItActs()
	s.notEvicted()
}

func TestPodsThatStartAreNotLookedAt(t *testing.T) {
	s := newSite(t, twice(ofReplicaSet)...)
	s.look(0)
	s.look(Starting - 1)
	s.cached(podOf("new", ofReplicaSet, pulling))
	if again := s.look(1); again != 0 {
		t.Errorf("it looks again after %s though no pod waits", again)
	}
	if actions := s.client.Actions(); len(actions) > 0 {
		t.Errorf("it asked the API server: %v", actions)
	}
}

func TestPodsOfAnOwnerAreEvictedOneByOne(t *testing.T) {
	s := newSite(t, append(twice(ofReplicaSet), podOf("next", ofReplicaSet), claimOf("next", "gpu-0-share", "7Gi"),
		podOf("other", ownedBy("apps/v1", "StatefulSet", "db")), claimOf("other", "gpu-0-share", "7Gi"))...)
	s.looksUntilItActs()
	s.evicted("new", "other")
	if err := s.keeper.pods.GetIndexer().Delete(podOf("new")); err != nil {
		t.Fatal(err)
	}
	if err := s.client.CoreV1().Pods("default").Delete(s.ctx, "new", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.look(interval)
	s.evicted("next", "other")
}

func TestPodsThatAreOnlyTold(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train", UID: "train"},
		Spec: batchv1.JobSpec{BackoffLimit: ptr.To(int32(0))}}
	shared := claimOf("shared", "gpu-0-share", "7Gi")
	shared.OwnerReferences = nil
	for name, test := range map[string]struct {
		objects []runtime.Object
		change  func(*site)
		want    string
	}{
		"nothing makes it anew": {twice(), func(*site) {}, "delete the pod and create it again; nothing else makes it " +
			"anew"},
		"the setting is off": {twice(ofReplicaSet), func(s *site) { s.keeper.Evict = false }, "delete the pod: " +
			"ReplicaSet web makes another"},
		"its claim is not its own": {append(twice(ofReplicaSet, using("shared")), shared), func(*site) {}, "ResourceClaim " +
			"shared is not this pod's own"},
		"a step of a workflow": {twice(ownedBy("argoproj.io/v1alpha1", "Workflow", "train")), func(*site) {},
			"not known what Workflow train makes of a pod that is deleted"},
		"a worker of Kubeflow": {twice(ownedBy("kubeflow.org/v1", "PyTorchJob", "train")), func(*site) {},
			"start the PyTorchJob again"},
		"a Job of others": {twice(ownedBy("batch.volcano.sh/v1alpha1", "Job", "train")), func(*site) {},
			"not known what Job train makes"},
		"a StatefulSet of others": {twice(ownedBy("apps.kruise.io/v1beta1", "StatefulSet", "db")), func(*site) {},
			"not known what StatefulSet db makes"},
		"a kind of no group": {twice(ownedBy("a/b/c", "ReplicaSet", "web")), func(*site) {},
			"not known what ReplicaSet web makes"},
		"its Job would fail": {append(twice(ownedBy("batch/v1", "Job", "train")), job), func(*site) {},
			"Job train would count that as a failure, and fail"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, test.objects...)
			test.change(s)
			if again := s.looksUntilItActs(); again != seldom {
				t.Errorf("it looks again after %s, want %s", again, seldom)
			}
			reporttest.Told(t, s.recorder, "Warning GPUCardTaken", "7 GiB asked for, but 12 of 15 GiB", test.want)
			s.look(seldom)
			s.notEvicted()
			reporttest.Told(t, s.recorder)
		})
	}
}

func TestPodsThatAreReplacedAreEvicted(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train", UID: "train"}}
	for name, objects := range map[string][]runtime.Object{
		"a Job":         append(twice(ownedBy("batch/v1", "Job", "train")), job),
		"a StatefulSet": twice(ownedBy("apps/v1", "StatefulSet", "db")),
		"a DaemonSet":   twice(ownedBy("apps/v1", "DaemonSet", "agent")),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, objects...)
			s.looksUntilItActs()
			s.evicted("new")
		})
	}
}
