// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	gocmp "cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// site is an API server with node n1, whose two whole GPUs pods a (priority 5) and b
// (priority 4) hold, and the controller, in a synctest bubble. Further nodes are held by one
// pod of their name each, with priority 4. What it evicts stays,
// terminating.
type site struct {
	*testing.T
	nodes    int
	client   *fake.Clientset
	metadata *metadatafake.FakeMetadataClient
	recorder *record.FakeRecorder
	// refuse is what evictions are answered.
	refuse error
	// keep is what those of single pods are answered.
	keep map[string]error
	// refuseLater is what those are answered that are no dry runs, onTry what happens at those
	// that are. pods is the client for pods where that is another.
	refuseLater error
	onTry       func()
	// noRules is why the DeviceTaintRules cannot be listed.
	noRules error
	pods    Client
	// tried are the pods whose eviction was tried, evicted those that were, kept those in keep.
	tried, evicted, kept []string
	// graces are what those were evicted with.
	graces map[string]*int64
	// stop ends the controller.
	stop func()
}

func run(t *testing.T, test func(s *site), more ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		stage := newStage(t)
		stage.node("n1", mode.Exclusive)
		stage.runs("n1", podOf("a", 5), "gpu")
		stage.runs("n1", podOf("b", 4), "gpu")
		for _, name := range more {
			stage.node(name, mode.Exclusive)
			stage.runs(name, podOf(name, 4), "gpu", "gpu")
		}
		var objects []runtime.Object
		for _, n := range stage.nodes {
			name := v1alpha1.PoolName(n.Name)
			pool := resourcesOf(n.Name, mode.Exclusive).Pools[name]
			objects = append(objects, n.Node, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: n.Name},
				Spec: devices.SliceSpec(n.Name, name, pool, pool.Slices[0])})
			for i, pod := range n.pods {
				objects = append(objects, pod, n.claims[i])
			}
		}
		for _, class := range stage.classes {
			objects = append(objects, class)
		}
		s := &site{T: t, nodes: len(stage.nodes), client: fake.NewClientset(objects...),
			metadata: namespaces(t, "ns", "team-a"), recorder: record.NewFakeRecorder(1000), graces: map[string]*int64{}}
		apitest.Answer(s.client, "create", "pods", s.onEviction)
		apitest.Answer(s.client, "list", "devicetaintrules", func(k8stesting.Action) (bool, runtime.Object, error) {
			return s.noRules != nil, nil, s.noRules
		})
		s.start()
		test(s)
		s.stop()
	})
}

func (s *site) onEviction(action k8stesting.Action) (bool, runtime.Object, error) {
	create, ok := action.(k8stesting.CreateAction)
	if !ok || action.GetSubresource() != "eviction" {
		return false, nil, nil
	}
	eviction, ok := create.GetObject().(*policyv1.Eviction)
	if !ok {
		return false, nil, nil
	}
	if s.keep[eviction.Name] != nil {
		s.kept = append(s.kept, eviction.Name)
		return true, nil, s.keep[eviction.Name]
	}
	if len(eviction.DeleteOptions.DryRun) > 0 {
		s.tried = append(s.tried, eviction.Name)
		if s.onTry != nil {
			s.onTry()
		}
		return true, nil, s.refuse
	}
	if err := gocmp.Or(s.refuse, s.refuseLater); err != nil {
		return true, nil, err
	}
	s.evicted = append(s.evicted, eviction.Name)
	s.graces[eviction.Name] = eviction.DeleteOptions.GracePeriodSeconds
	return true, nil, nil
}

// patience is after how long it is known that a pod waits.
const patience = 5 * time.Second

// start starts a controller, as a new leader does.
func (s *site) start() {
	s.Helper()
	_, ctx := ktesting.NewTestContext(s.T)
	ctx, cancel := context.WithCancel(ctx)
	known := cache.New(cache.Options{Client: s.client, Metadata: s.metadata})
	reader := known.Reader()
	waits := map[types.UID]*Wait{}
	p := New(Config{
		Cache:    reader,
		Client:   gocmp.Or(s.pods, Client(s.client.CoreV1())),
		ClaimsOf: s.client.ResourceV1(),
		Rules:    s.client.ResourceV1(),
		Groups:   s.client.SchedulingV1beta1(),
		Engine:   engine,
		Events:   report.New(s.recorder, clock.RealClock{}),
		Clock:    clock.RealClock{},
		Waits: func() map[types.UID]*Wait {
			for _, pod := range reader.LivePods().List() {
				if waits[pod.UID] == nil && time.Since(pod.CreationTimestamp.Time) >= patience {
					waits[pod.UID] = &Wait{}
				}
			}
			return waits
		},
	}, func() {})
	done := make(chan struct{})
	go known.Run(ctx)
	go func() {
		defer close(done)
		_, err := reader.WaitForSync(ctx, "preempt", 0)
		expect.Error(s, err)
		for ctx.Err() == nil {
			if _, err := p.Round(ctx); err != nil {
				s.Log(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(interval):
			}
		}
	}()
	s.stop = func() {
		cancel()
		<-done
	}
	// A change between the list of a fake client and its watch would never be seen.
	synctest.Wait()
}

// waits makes a pod that asks for GPUs and that the scheduler refused.
func (s *site) waits(pod *corev1.Pod, gpus int) {
	s.Helper()
	withClaim(pod)
	pod.CreationTimestamp = metav1.Time{Time: time.Now()}
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		Message:            fmt.Sprintf("0/%d nodes are available: %d cannot allocate all claims.", s.nodes, s.nodes),
		LastTransitionTime: metav1.Time{Time: time.Now()},
	}}}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + "-gpu", UID: pod.UID + "-gpu"},
		Spec:       resourceapi.ResourceClaimSpec{Devices: asking([]string{"gpu", "gpu"}[:gpus]...)},
	}
	apitest.Create[runtime.Object](s, s.client, claim, pod)
}

// change changes a pod as others do.
func (s *site) change(name string, change func(*corev1.Pod)) {
	s.Helper()
	apitest.Change(s, s.client, "ns", name, change)
}

// gone has a pod end, and its claim freed.
func (s *site) gone(name string) {
	s.Helper()
	apitest.Delete[*corev1.Pod](s, s.client, "ns", name)
	apitest.Delete[*resourceapi.ResourceClaim](s, s.client, "ns", name+"-gpu")
}

// after checks which pods were evicted until then.
func (s *site) after(d time.Duration, evicted ...string) {
	s.Helper()
	time.Sleep(d)
	synctest.Wait()
	expect.Equal(s, evicted, slices.Clone(s.evicted), "evicted")
}

// told checks that the Events since the last call hold these texts.
func (s *site) told(want ...string) {
	s.Helper()
	var got []string
	for len(s.recorder.Events) > 0 {
		got = append(got, <-s.recorder.Events)
	}
	if len(got) != len(want) {
		s.Fatalf("Events %q, want %q", got, want)
	}
	for i := range want {
		expect.Says(s, got[i], want[i])
	}
}

// namespaces are namespaces that take part.
func namespaces(t *testing.T, names ...string) *metadatafake.FakeMetadataClient {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	expect.NoError(t, metav1.AddMetaToScheme(scheme))
	var objects []runtime.Object
	for _, name := range names {
		objects = append(objects, &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: taking}})
	}
	return metadatafake.NewSimpleMetadataClient(scheme, objects...)
}
