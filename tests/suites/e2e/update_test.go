// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const daemonSet = "gpu-kubelet-plugin"

// updateTimeout is for the update of all nodes, one after the other.
const updateTimeout = 2 * harness.Timeout

// While the driver is updated, pods with claims come and go as if nothing was.
// It has the cluster to itself, as every test that is not parallel.
func TestRollingUpdateIsNotNoticed(t *testing.T) {
	began := metav1.Now()
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Share("gpu", "1Gi")))
	pluginPods := observePluginPods(t, "kill")
	slices := observeSlices(t)

	updated := startUpdate(t)
	waves := 0
	for ; !updated(t) || waves == 0; waves++ {
		var pods []*corev1.Pod
		var names []string
		for i := range 4 {
			for _, node := range []string{"kill", "bad"} {
				pod := harness.Pod(fmt.Sprintf("%s-%d-%d", node, waves, i), node, harness.FromTemplate("one"))
				pods, names = append(pods, pod), append(names, pod.Name)
			}
		}
		ns.Run(t, pods...)
		ns.Delete(t, names...)
	}
	t.Logf("%d waves of 8 pods during the update", waves)

	events, err := ns.Client.CoreV1().Events(ns.Name).List(t.Context(),
		metav1.ListOptions{FieldSelector: "reason=" + failedPrepare})
	expect.NoError(t, err)
	for _, event := range events.Items {
		if !harness.NotYetAuthorized(&event) {
			t.Errorf("pod %s: %s", event.InvolvedObject.Name, event.Message)
		}
	}
	if most := pluginPods.mostServing(); most < 2 {
		t.Errorf("at most %d plugins of node kill served at once, want 2: the old one went before the new one was there",
			most)
	}
	for _, gap := range slices.gaps() {
		t.Errorf("ResourceSlice during the update: %s", gap)
	}
	for _, node := range []string{"kill", "bad"} {
		cluster.LoggedNoError(t, node, began)
	}
}

// startUpdate changes the DaemonSet's pods, as a new version does, and returns a
// function that reports whether all of them are replaced.
func startUpdate(t *testing.T) (done func(t *testing.T) bool) {
	t.Helper()
	sets := cluster.Client.AppsV1().DaemonSets(harness.PluginNamespace)
	harness.Patch(t, sets, daemonSet, types.StrategicMergePatchType,
		fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"e2e-update":"%d"}}}}}`, time.Now().UnixNano()))
	deadline := time.Now().Add(updateTimeout)
	return func(t *testing.T) bool {
		t.Helper()
		set := harness.Get(t, sets, daemonSet)
		s := set.Status
		if time.Now().After(deadline) {
			t.Fatalf("the update does not end: %+v", s)
		}
		return s.ObservedGeneration == set.Generation && s.UpdatedNumberScheduled == s.DesiredNumberScheduled &&
			s.NumberAvailable == s.DesiredNumberScheduled && s.CurrentNumberScheduled == s.DesiredNumberScheduled
	}
}

// servingPods follows which pods of the plugin serve on a node.
type servingPods struct {
	mu      sync.Mutex
	serving map[types.UID]bool
	most    int
}

func observePluginPods(t *testing.T, node string) *servingPods {
	t.Helper()
	s := &servingPods{serving: map[types.UID]bool{}}
	pods := cluster.Client.CoreV1().Pods(harness.PluginNamespace)
	options := metav1.ListOptions{LabelSelector: harness.PluginSelector,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()}
	observe(t, func(ctx context.Context) (watch.Interface, error) { return pods.Watch(ctx, options) },
		func(event watch.Event) {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.serving, pod.UID)
			if event.Type != watch.Deleted && slices.ContainsFunc(pod.Status.ContainerStatuses, func(
				c corev1.ContainerStatus) bool {
				return c.Ready
			}) {
				s.serving[pod.UID] = true
			}
			s.most = max(s.most, len(s.serving))
		})
	return s
}

func (s *servingPods) mostServing() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// publishedSlices follows what happens to the driver's slices.
type publishedSlices struct {
	mu    sync.Mutex
	found []string
}

func observeSlices(t *testing.T) *publishedSlices {
	t.Helper()
	s := &publishedSlices{}
	slices := cluster.Client.ResourceV1().ResourceSlices()
	options := metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=gpu.aliyun.com"}
	observe(t, func(ctx context.Context) (watch.Interface, error) { return slices.Watch(ctx, options) },
		func(event watch.Event) {
			slice, ok := event.Object.(*resourceapi.ResourceSlice)
			if ok && (event.Type == watch.Deleted || len(slice.Spec.Devices)+len(slice.Spec.SharedCounters) == 0) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.found = append(s.found, fmt.Sprintf("%s %s with %d devices", slice.Name, event.Type, len(slice.Spec.Devices)))
			}
		})
	return s
}

func (s *publishedSlices) gaps() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.found)
}

// observe hands every event of a watch to see until the test ends. A watch that
// ends before fails the test: it may have missed what it was to see.
func observe(t *testing.T, start func(context.Context) (watch.Interface, error), see func(watch.Event)) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	w, err := start(ctx)
	if err != nil {
		cancel(nil)
		t.Fatal(err)
	}
	var ended error
	var wg sync.WaitGroup
	wg.Go(func() {
		for event := range w.ResultChan() {
			see(event)
		}
		if ctx.Err() == nil {
			ended = errors.New("a watch ended before its test")
		}
	})
	t.Cleanup(func() {
		cancel(nil)
		w.Stop()
		wg.Wait()
		if ended != nil {
			t.Error(ended)
		}
	})
}
