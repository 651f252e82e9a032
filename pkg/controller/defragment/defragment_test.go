// SPDX-License-Identifier: Apache-2.0

package defragment

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	events "k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

var engine = scheduling.NewEngine(100)

// site is an API server with nodes of one shared GPU of 16 GiB each, and the controller, in a synctest bubble.
type site struct {
	*testing.T
	client   *fake.Clientset
	recorder *events.FakeRecorder
	config   Config
	// evicted are the pods that were, refuse what an eviction is answered.
	evicted []string
	refuse  map[string]error
	stop    func()
}

// run makes pods large, of 16 GiB, which waits, and small and big on nodes n1 and n2, of 6 and 8 GiB.
func run(t *testing.T, setting Setting, most int, test func(*site)) {
	t.Helper()
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "driver",
			Name: v1alpha1.ControllerName}}}
		for _, class := range classes {
			objects = append(objects, class)
		}
		for _, name := range []string{"n1", "n2"} {
			objects = append(objects, node(name)...)
		}
		s := &site{T: t, client: fake.NewClientset(objects...), recorder: events.NewFakeRecorder(100),
			refuse: map[string]error{}}
		s.config = Config{Setting: setting, Most: most}
		apitest.Answer(s.client, "create", "pods", s.onEviction)
		s.pod("small", "n1", "6Gi")
		s.pod("big", "n2", "8Gi")
		s.pod("large", "", "16Gi")
		s.start()
		test(s)
		s.stop()
	})
}

func node(name string) []runtime.Object {
	machine := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-" + name, Model: "V100", MemoryMiB: 16384}}}
	pool := v1alpha1.PoolName(name)
	built := devices.Build(machine, devices.Options{Pool: pool, Mode: mode.Share, Slots: 20}).Pools[pool]
	return []runtime.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"),
			corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("110")}}},
		&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: devices.SliceSpec(name, pool, built, built.Slices[0])}}
}

// pod makes one of a ReplicaSet of the name until the first dash, with a share; it waits where it has no node.
func (s *site) pod(name, on, gib string) {
	s.Helper()
	app, _, _ := strings.Cut(name, "-")
	amounts := map[resourceapi.QualifiedName]resource.Quantity{v1alpha1.CapMemory: resource.MustParse(gib)}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name,
		OwnerReferences: []metav1.OwnerReference{{Kind: "Pod", Name: name, UID: types.UID(name)}}},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "share." + v1alpha1.DriverName, Count: 1,
				AllocationMode: resourceapi.DeviceAllocationModeExactCount,
				Capacity:       &resourceapi.CapacityRequirements{Requests: amounts}}}}}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: types.UID(name),
		CreationTimestamp: metav1.Now(), OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: app,
			UID: types.UID("set-" + app), Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{NodeName: on, SchedulerName: corev1.DefaultSchedulerName,
			Containers:     []corev1.Container{{Name: "main"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
	if on != "" {
		pod.Status.Phase = corev1.PodRunning
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod.UID}}
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: v1alpha1.DriverName,
				Pool: v1alpha1.PoolName(on), Device: "gpu-0-share", ConsumedCapacity: amounts, ShareID: &pod.UID}}}}
	}
	apitest.Create(s, s.client, claim)
	apitest.Create(s, s.client, pod)
}

func (s *site) gone(name string) {
	s.Helper()
	apitest.Delete[*corev1.Pod](s, s.client, "a", name)
	apitest.Delete[*resourceapi.ResourceClaim](s, s.client, "a", name)
}

func (s *site) onEviction(action k8stesting.Action) (bool, runtime.Object, error) {
	create, is := action.(k8stesting.CreateAction)
	if !is || action.GetSubresource() != "eviction" {
		return false, nil, nil
	}
	eviction, is := create.GetObject().(*policyv1.Eviction)
	if !is {
		return false, nil, nil
	}
	if err := s.refuse[eviction.Name]; err != nil || len(eviction.DeleteOptions.DryRun) > 0 {
		return true, nil, err
	}
	s.evicted = append(s.evicted, eviction.Name)
	apitest.Change(s, s.client, "a", eviction.Name, func(pod *corev1.Pod) {
		pod.DeletionTimestamp, pod.Finalizers = ptr.To(metav1.Now()), []string{"kept"}
	})
	return true, nil, nil
}

// start starts a controller, as a new leader does.
func (s *site) start() {
	s.Helper()
	_, ctx := ktesting.NewTestContext(s.T)
	ctx, cancel := context.WithCancel(ctx)
	known := cache.New(cache.Options{Client: s.client})
	cfg := s.config
	cfg.Cache, cfg.Pods, cfg.Claims, cfg.Rules = known.Reader(), s.client.CoreV1(), s.client.ResourceV1(),
		s.client.ResourceV1()
	cfg.Leases, cfg.Engine, cfg.Clock = s.client.CoordinationV1().Leases("driver"), engine, clock.RealClock{}
	cfg.Events, cfg.Moved = report.New(s.recorder, clock.RealClock{}), func(Outcome) {}
	d := New(cfg)
	done := make(chan struct{})
	go known.Run(ctx)
	go func() {
		defer close(done)
		if synced, err := cfg.Cache.WaitForSync(ctx, "defragment", 0); err != nil || !synced {
			return
		}
		d.Controller().Run(ctx, 1)
	}()
	s.stop = func() {
		cancel()
		<-done
	}
	synctest.Wait()
}

// after checks which pods were evicted until then.
func (s *site) after(d time.Duration, evicted ...string) {
	s.Helper()
	time.Sleep(d)
	synctest.Wait()
	expect.Equal(s, evicted, s.evicted, "evicted")
}

// told checks that the Events since the last call hold these texts.
func (s *site) told(want ...string) {
	s.Helper()
	for _, text := range want {
		if len(s.recorder.Events) == 0 {
			s.Fatalf("no Event, want %q", text)
		}
		expect.Says(s, <-s.recorder.Events, text)
	}
	if len(s.recorder.Events) > 0 {
		s.Errorf("another Event: %q", <-s.recorder.Events)
	}
}

func TestDryRunTellsOnce(t *testing.T) {
	run(t, DryRun, 10, func(s *site) {
		s.after(10 * time.Minute)
		s.told("GPUWouldMove With the setting DEFRAGMENT=evict, the controller would evict the pod from node n1: node n2 " +
			"has room for it. Gain: waiting pods with room +1, free GPUs +1")
	})
}

// A pod goes once; while its successor waits, nobody does, and so for an hour where one move is allowed.
func TestEvictsWithinTheLimit(t *testing.T) {
	run(t, Evict, 1, func(s *site) {
		s.after(time.Minute, "small")
		s.told("GPUMoved The controller evicted the pod from node n1: node n2 has room for its replacement. Gain: " +
			"waiting pods with room +1")
		s.gone("small")
		s.pod("small-2", "", "6Gi")
		s.after(10*time.Minute, "small")
		s.gone("small-2")
		s.pod("small-3", "n1", "6Gi")
		s.after(40*time.Minute, "small")
		s.after(20*time.Minute, "small", "small-3")
	})
}

// While pods of the last batch wait there is no further one, though the limit lets more go.
func TestNobodyGoesWhileTheLastBatchWaits(t *testing.T) {
	run(t, Evict, 10, func(s *site) {
		s.after(time.Minute, "small")
		s.gone("small")
		s.pod("small-2", "", "6Gi")
		apitest.Create(s, s.client, node("n3")...)
		s.pod("other", "n3", "1Gi")
		s.after(10*time.Minute, "small")
		s.gone("small-2")
		s.pod("small-3", "n1", "6Gi")
		s.after(time.Minute, "small", "other")
	})
}

// Whoever asks for more pods than there is room for keeps nobody else's from being moved.
func TestMorePodsOfTheSameOwnerKeepNobody(t *testing.T) {
	run(t, Evict, 10, func(s *site) {
		s.after(time.Minute, "small")
		s.gone("small")
		s.pod("small-2", "n1", "6Gi")
		s.pod("small-3", "", "64Gi")
		apitest.Create(s, s.client, node("n3")...)
		s.pod("other", "n3", "1Gi")
		s.after(2*time.Minute, "small", "other")
	})
}

// The next leader evicts nobody again, nor the pod that was made in its place, nor more than the rest of the number.
func TestRestart(t *testing.T) {
	run(t, Evict, 10, func(s *site) {
		s.after(time.Minute, "small")
		s.stop()
		s.start()
		s.after(30*time.Minute, "small")
		// The one in its place has landed where it was: another pod goes.
		s.gone("small")
		s.pod("small-2", "n1", "6Gi")
		s.after(20*time.Minute, "small", "big")
	})
	run(t, Evict, 1, func(s *site) {
		s.after(time.Minute, "small")
		s.stop()
		s.gone("small")
		s.pod("stranger", "n1", "6Gi")
		s.start()
		s.after(30*time.Minute, "small")
		s.after(30*time.Minute, "small", "stranger")
	})
}

// Nobody goes, and nothing is written down, before the cluster lets all of a batch go; others go in the place of one
// that it keeps.
func TestWhoIsRefusedStays(t *testing.T) {
	run(t, Evict, 10, func(s *site) {
		refused := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "small", nil)
		s.refuse["small"], s.refuse["big"] = refused, refused
		s.after(4 * time.Minute)
		lease, err := s.client.CoordinationV1().Leases("driver").Get(s.Context(), v1alpha1.ControllerName,
			metav1.GetOptions{})
		if err != nil || lease.Annotations[v1alpha1.AnnotationMoved] != "" {
			t.Errorf("error %v; written down is %q, though nobody goes", err, lease.Annotations)
		}
		delete(s.refuse, "big")
		s.after(3*time.Minute, "big")
	})
}

func TestPlannedNodes(t *testing.T) {
	d := &Defragmenter{pods: cache.New(cache.Options{Client: fake.NewClientset()}).Reader().LivePods()}
	at := time.Unix(1000, 0)
	d.record.Store(&record{[]moved{{at, "small", "set-small", "n2"}, {at, "else", "set-else", "n3"}}})
	pod := func(uid, owner types.UID, created int64) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, CreationTimestamp: metav1.Unix(created, 0),
			OwnerReferences: []metav1.OwnerReference{{UID: owner, Controller: ptr.To(true)}}}}
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"made in its place":   {pod("new", "set-small", 1000), "n2"},
		"the pod itself":      {pod("small", "set-small", 900), ""},
		"an older one":        {pod("old", "set-small", 999), ""},
		"another owner's":     {pod("new", "set-other", 1000), ""},
		"that of another one": {pod("new", "set-else", 1001), "n3"},
	} {
		expect.Equal(t, tc.want, d.Planned(tc.pod), "%s: it is expected on", name)
	}
}
