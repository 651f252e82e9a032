// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
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
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
)

// oldPod runs on the node without a claim. limits are alternately a resource and its
// amount, the GPU is as in the annotation of the first version; "" for none.
func oldPod(name, g string, limits ...string) *corev1.Pod {
	list := corev1.ResourceList{}
	for i := 0; i < len(limits); i += 2 {
		list[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "old", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Limits: list}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if g != "" {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "ALIYUN_COM_GPU_MEM_IDX", g)
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "topology.kubernetes.io/gpu-group", g)
	}
	return pod
}

// start runs the watch until the test ends.
func start(ctx context.Context, t *testing.T, u *watcher) {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		u.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-stopped
	})
}

func TestPodsOfTheNodeAreWatched(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client := fake.NewClientset(oldPod("a", "0", "aliyun.com/gpu-mem", "4"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "other", UID: "other"}, Spec: corev1.PodSpec{NodeName: "n1"},
	})
	var selectors []string
	client.PrependReactor("list", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		selectors = append(selectors, action.(k8stesting.ListAction).GetListRestrictions().Fields.String())
		return false, nil, nil
	})
	changed := make(chan struct{}, 100)
	u, err := newWatcher(Options{Client: client, NodeName: "n1", Picture: pods.New(ended),
		Kubelet:  podresources.Client{Socket: filepath.Join(t.TempDir(), "none.sock")},
		OnChange: func() { changed <- struct{}{} }, OnUnread: func(error) {}}, opened(t, t.TempDir()))
	expect.NoError(t, err)
	m := &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0", MemoryMiB: 16130}},
		Faults: []gpu.Fault{{Index: 1, UUID: "GPU-1"}}}
	_, err = u.now(ctx, m)
	expect.ErrorIs(t, err, held.ErrPodsUnread)
	start(ctx, t, u)
	holds := func(want string) {
		t.Helper()
		for {
			got, err := u.Reserved(ctx, m)
			expect.NoError(t, err)
			g := got.GPU("GPU-0")
			if text := fmt.Sprintf("%d %t %v", g.Units, g.Whole, g.Pods); text == want {
				return
			}
			select {
			case <-changed:
			case <-t.Context().Done():
				t.Fatalf("it holds %+v, want %s", g, want)
			}
		}
	}
	holds("4 false [old/a]")
	if len(selectors) == 0 || selectors[0] != "spec.nodeName=n1" {
		t.Errorf("pods were listed by %q", selectors)
	}
	// The GPU of a fault is a GPU, too.
	expect.NoError(t, client.Tracker().Add(oldPod("b", "1", "aliyun.com/gpu-mem", "4")))
	ended := oldPod("a", "0", "aliyun.com/gpu-mem", "4")
	ended.Status.Phase = corev1.PodFailed
	_, err = client.CoreV1().Pods("old").UpdateStatus(ctx, ended, metav1.UpdateOptions{})
	expect.NoError(t, err)
	holds("0 false []")
	// A kubelet that does not answer leaves it unknown.
	expect.NoError(t, client.Tracker().Add(oldPod("n", "", "nvidia.com/gpu", "1")))
	holds("0 true [old/n]")
}

func TestPodsThatCannotBeRead(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client := fake.NewClientset()
	client.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(resourceapi.Resource("pods"), "", nil)
	})
	failed := make(chan error, 100)
	u, err := newWatcher(Options{Client: client, NodeName: "n1", Picture: pods.New(ended), Kubelet: &kubelet{},
		OnChange: func() {}, OnUnread: func(err error) { failed <- err }}, opened(t, t.TempDir()))
	expect.NoError(t, err)
	start(ctx, t, u)
	if err := <-failed; !apierrors.IsForbidden(err) {
		t.Errorf("told %v", err)
	}
}

// node is a watched node in a bubble of synctest.
type node struct {
	*watcher
	client  *fake.Clientset
	kubelet *kubelet
	// runs are the UIDs of pods with processes; changes counts how often it was told of one.
	runs    sync.Map
	unread  atomic.Bool // whether there are such cannot be read
	changes atomic.Int64
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{client: fake.NewClientset(), kubelet: &kubelet{}}
	running := func(uid types.UID) (bool, error) {
		if n.unread.Load() {
			return false, errors.New("too many open files")
		}
		_, runs := n.runs.Load(uid)
		return runs, nil
	}
	var err error
	n.watcher, err = newWatcher(Options{Client: n.client, NodeName: "n1", Picture: pods.New(processes(running)),
		Kubelet: n.kubelet, OnChange: func() { n.changes.Add(1) }, OnUnread: func(err error) { t.Error(err) }},
		opened(t, t.TempDir()))
	expect.NoError(t, err)
	_, ctx := ktesting.NewTestContext(t)
	start(ctx, t, n.watcher)
	synctest.Wait()
	return n
}

// add makes a pod with a GPU of NVIDIA's device plugin.
func (n *node) add(t *testing.T, name string, uid types.UID) {
	t.Helper()
	pod := oldPod(name, "", "nvidia.com/gpu", "1")
	pod.UID = uid
	expect.NoError(t, n.client.Tracker().Add(pod))
	synctest.Wait()
}

func (n *node) delete(t *testing.T, name string) {
	t.Helper()
	expect.NoError(t, n.client.CoreV1().Pods("old").Delete(t.Context(), name, metav1.DeleteOptions{}))
	synctest.Wait()
}

// has checks which pods have GPU-0, and which GPU-1.
func (n *node) has(t *testing.T, want string) {
	t.Helper()
	got, err := n.Reserved(t.Context(), &gpu.Machine{GPUs: gpusOfNode})
	expect.NoError(t, err)
	expect.Equal(t, want, fmt.Sprint(got.GPU("GPU-0").Pods, got.GPU("GPU-1").Pods), "GPUs are held by")
}

// A pod that was deleted by force is stopped only then, and holds its GPU until it has ended.
func TestPodThatIsDeletedByForceHoldsItsGPUUntilItHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.kubelet.gave("nvidia.com/gpu", map[string]string{"a": "GPU-0"})
		n.add(t, "a", "a")
		n.runs.Store(types.UID("a"), true)
		n.has(t, "[old/a] []")
		n.kubelet.gave("nvidia.com/gpu", nil)
		n.delete(t, "a")
		n.has(t, "[old/a] []")
		time.Sleep(time.Hour)
		n.unread.Store(true)
		time.Sleep(time.Minute)
		n.has(t, "[old/a] []")
		n.unread.Store(false)
		n.changes.Store(0)
		n.runs.Clear()
		time.Sleep(2 * time.Second)
		n.has(t, "[] []")
		expect.Equal(t, 1, n.changes.Load(), "times told that the pod has ended")
		// One that has ended before it is deleted is gone at once.
		n.kubelet.gave("nvidia.com/gpu", map[string]string{"b": "GPU-1"})
		n.add(t, "b", "b")
		n.has(t, "[] [old/b]")
		n.delete(t, "b")
		n.has(t, "[] []")
	})
}

// What the kubelet said of a pod is nothing that it says of the next one of that name.
func TestPodThatIsMadeAnewUnderItsName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.kubelet.gave("nvidia.com/gpu", map[string]string{"train-0": "GPU-0"})
		n.add(t, "train-0", "1")
		n.add(t, "other", "2") // of which it has nothing to tell yet
		n.has(t, "[old/other old/train-0] [old/other]")
		time.Sleep(goodFor)
		n.has(t, "[old/other old/train-0] [old/other]")
		asked := n.kubelet.asked
		time.Sleep(goodFor / 10)
		n.delete(t, "train-0")
		n.kubelet.gave("nvidia.com/gpu", map[string]string{"train-0": "GPU-1", "other": "GPU-0"})
		n.add(t, "train-0", "3")
		for range 3 {
			n.has(t, "[old/other] [old/train-0]")
		}
		expect.Equal(t, asked+1, n.kubelet.asked, "times the kubelet was asked, with one more pod")
		time.Sleep(2 * goodFor)
		n.has(t, "[old/other] [old/train-0]")
	})
}

// After a watch that was lost, the next pod of a name is told as an update of the one before. That one is gone, but for
// a static pod, which is the same under its next mirror, and one that runs still.
func TestPodThatWasMadeAnewWhileTheWatchWasLost(t *testing.T) {
	mirror := func(uid types.UID) *corev1.Pod { return mirrored(share("a", "0"), uid) }
	pod := func(uid types.UID) *corev1.Pod {
		p := share("a", "0")
		p.UID = uid
		return p
	}
	for name, tc := range map[string]struct {
		pod   func(types.UID) *corev1.Pod
		runs  types.UID
		units int64
	}{
		"a static pod":                {mirror, "static", 4},
		"a pod that runs still":       {pod, "1", 8},
		"a pod that has ended before": {pod, "2", 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.runs.Store(tc.runs, true)
				n.kubelet.gave("aliyun.com/gpu-mem", map[string]string{"a": "GPU-0"})
				expect.NoError(t, n.client.Tracker().Add(tc.pod("1")))
				synctest.Wait()
				_, err := n.Reserved(t.Context(), &gpu.Machine{GPUs: gpusOfNode})
				expect.NoError(t, err)
				pods := corev1.SchemeGroupVersion.WithResource("pods")
				expect.NoError(t, n.client.Tracker().Update(pods, tc.pod("2"), "old"))
				synctest.Wait()
				got, err := n.Reserved(t.Context(), &gpu.Machine{GPUs: gpusOfNode})
				if err != nil || got.GPU("GPU-0").Units != tc.units {
					t.Errorf("%d units are held, %v; want %d", got.GPU("GPU-0").Units, err, tc.units)
				}
				n.observed.mu.Lock()
				defer n.observed.mu.Unlock()
				_, known := n.observed.seen["1"]
				expect.Equal(t, tc.units == 8, known, "it is known of the pod before")
			})
		})
	}
}
