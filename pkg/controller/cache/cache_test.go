// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// Who loses a right later is not ready, though it goes on.
func TestInformerThatIsRefusedLaterIsSaid(t *testing.T) {
	c := New(Options{Client: fake.NewClientset()})
	reader := c.Reader()
	reader.Nodes()
	if len(reader.needs) != 1 || c.Err() != nil {
		t.Fatalf("a reader of nodes needs %d parts, %v", len(reader.needs), c.Err())
	}
	w := reader.needs[0]
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Run(ctx)
		}()
		if synced, err := reader.WaitForSync(ctx, "test", 0); err != nil || !synced {
			t.Fatalf("it does not sync: %v", err)
		}
		for _, step := range []struct {
			err   error
			after time.Duration
			want  string
		}{
			{apierrors.NewForbidden(corev1.Resource("nodes"), "", nil), 0, "uses nodes of a while ago, which cannot be " +
				"watched any more: nodes is forbidden"},
			{apierrors.NewForbidden(corev1.Resource("nodes"), "", nil), failing, "<nil>"},
			{errors.New("connection refused"), 0, "<nil>"},
		} {
			w.failed, w.at = step.err, time.Now()
			time.Sleep(step.after)
			if got := fmt.Sprint(reader.Problem()); !strings.HasPrefix(got, step.want) {
				t.Errorf("%s after %v: %q, want %q", step.after, step.err, got, step.want)
			}
		}
		cancel()
		<-done
	})
}

func TestCachesLeaveOutWhatNobodyReads(t *testing.T) {
	node := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
	}}
	_, err := withoutNotes(node)
	expect.NoError(t, err)
	if node.Annotations != nil || node.ManagedFields != nil || node.Labels["a"] != "b" {
		t.Errorf("left: %+v", node.ObjectMeta)
	}
}

// Each reader waits for what it asked for, and all watch it once.
func TestWhatIsAskedForIsNeeded(t *testing.T) {
	c := New(Options{Client: fake.NewClientset()})
	needs := func(ask func(*Reader)) (what []string) {
		r := c.Reader()
		ask(r)
		for _, p := range r.needs {
			what = append(what, p.what)
		}
		return what
	}
	for _, test := range []struct {
		ask  func(*Reader)
		want []string
	}{
		{func(r *Reader) { r.Nodes(); r.Slices() }, []string{"nodes", "ResourceSlices"}},
		{func(r *Reader) { r.Cluster() }, []string{"nodes", "ResourceSlices", "ResourceClaims", "DeviceClasses"}},
		{func(r *Reader) { r.UnscheduledPods() }, []string{"pods"}},
		{func(r *Reader) { r.StartingPods(); r.UnscheduledPods(); r.LivePods() }, []string{"pods"}},
		// The controller works without them.
		{func(r *Reader) { r.PluginPods() }, nil},
	} {
		expect.Equal(t, test.want, needs(test.ask), "a reader needs")
	}
	var all []string
	for _, p := range c.parts {
		all = append(all, p.what)
	}
	want := []string{"nodes", "ResourceSlices", "ResourceClaims", "DeviceClasses", "pods",
		"the pods of gpu-kubelet-plugin"}
	if diff := expect.Diff(want, all); diff != nil || c.Err() != nil {
		t.Errorf("%v; watched %v", c.Err(), diff)
	}
}

// A pod that gets a node goes for those who know pods without one, and comes for the others.
func TestPodThatGetsANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset()
		c := New(Options{Client: client})
		unscheduled, starting := c.Reader().UnscheduledPods(), c.Reader().StartingPods()
		var mu sync.Mutex
		var said []string
		note := func(who string) Handler[*corev1.Pod] {
			say := func(what string, pod *corev1.Pod) {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, who+" "+what+" "+pod.Name)
			}
			return Handler[*corev1.Pod]{
				Seen:    func(pod *corev1.Pod) { say("sees", pod) },
				Changed: func(_, pod *corev1.Pod) { say("changed", pod) },
				Gone:    func(pod *corev1.Pod) { say("lost", pod) },
			}
		}
		unscheduled.On(note("unscheduled"))
		starting.On(note("starting"))
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Run(ctx)
		}()
		synctest.Wait()
		step := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(said)
			expect.Equal(t, want, said, "said")
			said = nil
		}
		pods := client.CoreV1().Pods("ns")
		pod, err := pods.Create(ctx, starts("p", ""), metav1.CreateOptions{})
		expect.NoError(t, err)
		step("unscheduled sees p")
		if _, there := unscheduled.Get("ns/p"); !there || len(starting.List()) > 0 {
			t.Error("it has no node, and is not among those without")
		}
		pod.Spec.NodeName = "n1"
		if pod, err = pods.Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		step("starting sees p", "unscheduled lost p")
		if _, there := unscheduled.Get("ns/p"); there || len(unscheduled.List()) > 0 || len(starting.OnNode("n1")) != 1 {
			t.Error("it has a node, and is not among those with one")
		}
		if _, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		step("starting changed p")
		expect.NoError(t, pods.Delete(ctx, "p", metav1.DeleteOptions{}))
		step("starting lost p")
		cancel()
		<-done
	})
}

func starts(name, node string) *corev1.Pod {
	claim := "c"
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PodSpec{NodeName: node,
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
}

// Of CPUs next to nothing is kept but of pods that ask for CPUs of their own.
func TestWhatIsKeptOfContainers(t *testing.T) {
	amounts := func(more corev1.ResourceList) corev1.ResourceList {
		list := corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("1Gi")}
		for name, amount := range more {
			list[name] = amount
		}
		return list
	}
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	whole := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "a", Image: "i", Resources: corev1.ResourceRequirements{Requests: amounts(nil), Limits: amounts(nil)}},
		{Name: "b", Resources: corev1.ResourceRequirements{Requests: amounts(gpus), Limits: amounts(gpus)}},
	}}}
	kept := func() []corev1.Container {
		slim := &corev1.Pod{}
		new(Cache).keepPod(whole, slim)
		return slim.Spec.Containers
	}
	want := []corev1.Container{{Name: "b", Resources: corev1.ResourceRequirements{Requests: gpus}}}
	expect.Equal(t, want, kept(), "of a pod that asks for a GPU")
	whole.Annotations = map[string]string{v1alpha1.AnnotationCPUSet: "", "other": "x"}
	cpus := func() corev1.ResourceList { return corev1.ResourceList{"cpu": resource.MustParse("4")} }
	both := cpus()
	both["nvidia.com/gpu"] = resource.MustParse("1")
	want = []corev1.Container{
		{Name: "a", Resources: corev1.ResourceRequirements{Requests: cpus(), Limits: cpus()}},
		{Name: "b", Resources: corev1.ResourceRequirements{Requests: both, Limits: cpus()}},
	}
	expect.Equal(t, want, kept(), "of a pod that asks for CPUs of its own, too")
}

// All that a node can allocate is kept only for who asks for it.
func TestWhatIsKeptOfNodes(t *testing.T) {
	all := corev1.ResourceList{"cpu": resource.MustParse("4"), "nvidia.com/gpu": resource.MustParse("1")}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"a": "b"}},
		Status: corev1.NodeStatus{Capacity: all, Allocatable: all, Images: make([]corev1.ContainerImage, 1)}}
	for allocatable, want := range map[bool]corev1.ResourceList{
		true: all, false: {"nvidia.com/gpu": resource.MustParse("1")},
	} {
		kept := KeepNode(node, allocatable)
		expect.Equal(t, want, kept.Allocatable, "allocatable")
		if len(kept.Annotations)+len(kept.Capacity) > 0 {
			t.Errorf("kept: %+v", kept)
		}
	}
}

func TestLittleIsKeptOfAConvertedPod(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image"}}}}
	p.Annotations = map[string]string{"mine": "x"}
	p.Annotations[ack.AnnotationMemory] = strings.Repeat("x", 1<<18)
	p.CreationTimestamp = metav1.Unix(95, 0)
	slim, err := slimPod(keepConverted)(p)
	kept, ok := slim.(*corev1.Pod)
	if err != nil || !ok {
		t.Fatalf("kept: %T, %v", slim, err)
	}
	if !kept.CreationTimestamp.Equal(&p.CreationTimestamp) {
		t.Errorf("created at %v, and by what is kept at %v", p.CreationTimestamp, kept.CreationTimestamp)
	}
	if len(kept.Annotations) != 1 || len(kept.Annotations[ack.AnnotationMemory]) > annotationMost {
		t.Errorf("%d annotations are kept, of one %d bytes", len(kept.Annotations),
			len(kept.Annotations[ack.AnnotationMemory]))
	}
	expect.Equal(t, []corev1.Container{{Name: "main"}}, kept.Spec.Containers, "containers")
}
