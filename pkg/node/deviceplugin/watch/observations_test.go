// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
)

func unlocked(context.Context) (unlock func(), err error) { return func() {}, nil }

// processes reports whether a pod has processes on the node.
type processes func(types.UID) (bool, error)

func (p processes) Running(pod types.UID) (bool, error) { return p(pod) }

var ended processes = func(types.UID) (bool, error) { return false, nil }

// opened are the observations of a process on a node whose state is in dir.
func opened(t *testing.T, dir string) *observations {
	t.Helper()
	file := newCheckpointFile(filepath.Join(dir, "unclaimed.json"))
	s, damage, err := openObservations(file, time.Time{}, unlocked)
	if err != nil || damage != nil {
		t.Fatal(err, damage)
	}
	return s
}

var gpusOfNode = []gpu.GPU{{Index: 0, UUID: "GPU-0", MemoryMiB: 16130}, {Index: 1, UUID: "GPU-1", MemoryMiB: 16130}}

// gives is the answer of a kubelet that gave the containers of these pods a share.
func gives(pods ...*corev1.Pod) deviceplugin.Kubelet {
	k := deviceplugin.Kubelet{Containers: map[deviceplugin.Container]deviceplugin.Devices{}}
	for _, p := range pods {
		k.Containers[deviceplugin.Container{Namespace: p.Namespace, Pod: p.Name, Name: "c"}] = deviceplugin.Devices{
			Resources: []corev1.ResourceName{"aliyun.com/gpu-mem"}}
	}
	return k
}

// life is a process on the node, which sees pods come and go.
type life struct {
	*watcher
	handler cache.ResourceEventHandler
}

// begins starts the life of a process with these observations.
func begins(t *testing.T, s *observations, running processes) life {
	t.Helper()
	w, err := newWatcher(Options{Client: fake.NewClientset(), NodeName: "n1", Picture: pods.New(running),
		OnChange: func() {}}, s)
	expect.NoError(t, err)
	return life{w, w.pods.Handler()}
}

// looks shows the process these pods, for the first time or again. It returns what is taken of each GPU, and what is
// taken of GPUs that are not known.
func (l life) looks(t *testing.T, kubelet deviceplugin.Kubelet, now ...*corev1.Pod) string {
	t.Helper()
	for _, p := range now {
		l.handler.OnAdd(p, true)
	}
	if !l.read.IsDone() {
		l.listed()
	}
	kubelet.Asked = time.Now()
	there, leaving := l.pods.Pods()
	held := l.observed.reserved(there, leaving, deviceplugin.Node{GPUs: gpusOfNode, Kubelet: kubelet})
	expect.NoError(t, l.observed.store(t.Context()))
	return fmt.Sprintf("%d %d", held.GPU("GPU-0").Units, held.GPU("GPU-1").Units)
}

// first is the first look of a process at the pods. Pods that are gone have ended.
func first(t *testing.T, s *observations, kubelet deviceplugin.Kubelet, now ...*corev1.Pod) string {
	t.Helper()
	return begins(t, s, ended).looks(t, kubelet, now...)
}

func share(name, g string) *corev1.Pod {
	return oldPod(name, g, "aliyun.com/gpu-mem", "4")
}

func TestWhatPodsWereFirstSeenWithOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	is := func(want string, kubelet deviceplugin.Kubelet, pods ...*corev1.Pod) {
		t.Helper()
		expect.Equal(t, want, first(t, opened(t, dir), kubelet, pods...), "units taken")
	}
	is("4 4", gives(share("a", ""), share("b", "")), share("a", "0"), share("b", "1"))
	// Its owner moves one to the other's GPU, or makes it count on all.
	is("4 4", gives(share("a", ""), share("b", "")), share("a", "1"), share("b", "1"))
	is("4 4", gives(share("a", ""), share("b", "")), share("a", ""), share("b", "0"))
	silent := deviceplugin.Kubelet{Err: errors.New("no socket")}
	is("4 4", silent, share("a", "1"), share("b", "0"))
	// A new pod of the same name is another one.
	again := share("a", "1")
	again.UID = "a2"
	is("0 8", gives(again, share("b", "")), again, share("b", "1"))
	is("0 4", gives(), share("b", "0"))
	kept, _, err := newCheckpointFile(filepath.Join(dir, "unclaimed.json")).Load()
	if err != nil || len(kept.Pods) != 1 || kept.Pods["b"].Annotations["ALIYUN_COM_GPU_MEM_IDX"] != "1" {
		t.Errorf("kept are %+v, %v: those that are gone have to go", kept, err)
	}
}

// mirrored is the pod by which a static pod is seen: the kubelet knows the latter by the UID in the annotation, and
// has it run on when its mirror is deleted.
func mirrored(pod *corev1.Pod, uid types.UID) *corev1.Pod {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, corev1.MirrorPodAnnotationKey, "static")
	pod.UID = uid
	return pod
}

// A static pod holds its GPU until it ends itself, and once, however often its mirror is deleted and made again.
func TestStaticPodOutlivesItsMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var runs atomic.Bool
		runs.Store(true)
		anew := func() life {
			return begins(t, opened(t, dir), func(uid types.UID) (bool, error) { return uid == "static" && runs.Load(), nil })
		}
		l := anew()
		before, again := mirrored(share("a", "0"), "mirror-1"), mirrored(share("a", "0"), "mirror-2")
		is := func(when, want string, kubelet deviceplugin.Kubelet, pods ...*corev1.Pod) {
			t.Helper()
			expect.Equal(t, want, l.looks(t, kubelet, pods...), "%s: taken are", when)
		}
		is("at first", "4 0", gives(before), before)
		l = anew()
		is("its mirror was made anew before the next process", "4 0", gives(again), again)
		before.UID = "mirror-3"
		l.handler.OnDelete(again)
		is("without its mirror", "4 0", gives())
		is("its mirror is back, and the kubelet is silent", "4 0", deviceplugin.Kubelet{Err: errors.New("no socket")}, before)
		is("its mirror is back", "4 0", gives(before), before)
		l.handler.OnDelete(before)
		l = anew()
		start(t.Context(), t, l.watcher)
		synctest.Wait()
		is("for the next process", "4 0", gives())
		runs.Store(false)
		time.Sleep(2 * time.Second)
		is("when it has ended", "0 0", gives())
	})
}

// A version before kept no pods; this one adds them, for when they are deleted by force.
func TestPodsOfAnEarlierVersionAreKept(t *testing.T) {
	dir, a := t.TempDir(), share("a", "0")
	before := opened(t, dir)
	first(t, before, gives(a), a)
	for uid, seen := range before.seen {
		seen.Pod = nil
		before.seen[uid] = seen
	}
	expect.NoError(t, before.file.Store(checkpointContent{before.seen}))
	first(t, opened(t, dir), gives(a), a)
	next := begins(t, opened(t, dir), func(types.UID) (bool, error) { return true, nil })
	expect.Equal(t, "4 0", next.looks(t, gives()), "taken are")
}

// A pod that was deleted by force while no process of the driver ran is in no list any more.
func TestDeletedPodsThatRunAreKnownToTheNextProcess(t *testing.T) {
	dir := t.TempDir()
	first(t, opened(t, dir), gives(share("a", ""), share("b", "")), share("a", "0"), share("b", "1"))
	for _, state := range []struct {
		running processes
		want    string
	}{
		{func(uid types.UID) (bool, error) { return uid == "a", nil }, "4 0"},
		{func(types.UID) (bool, error) { return true, podcgroup.ErrUnknown }, "0 0"},
	} {
		expect.Equal(t, state.want, begins(t, opened(t, dir), state.running).looks(t, gives()), "taken are")
	}
}

// Two instances are there at once during an update.
func TestTheFirstOfTwoProcessesCounts(t *testing.T) {
	dir := t.TempDir()
	one, two := opened(t, dir), opened(t, dir)
	expect.Equal(t, "4 0", first(t, one, gives(share("a", "")), share("a", "0")), "taken are")
	first(t, two, gives(share("a", "")), share("a", "1"))
	for _, s := range []*observations{two, opened(t, dir)} {
		expect.Equal(t, "4 0", first(t, s, gives(), share("a", "1")), "taken are")
	}
}

// Nothing is written for pods that were given nothing, of which there may be as many as
// somebody likes.
func TestPodsWithoutDevicesCostNoFile(t *testing.T) {
	dir := t.TempDir()
	p := share("a", "0")
	listed := gives(p)
	listed.Containers[deviceplugin.Container{Namespace: "old", Pod: "a", Name: "c"}] = deviceplugin.Devices{}
	l := begins(t, opened(t, dir), ended)
	expect.Equal(t, "0 0", l.looks(t, listed, p), "taken are")
	l.handler.OnDelete(p)
	expect.NoError(t, l.observed.store(t.Context()))
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("there are %v, %v", entries, err)
	}
}

func TestDamagedObservations(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "cut off": `{"pods":{"a":{"na`, "another": `[]`,
		"null": "null"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := newCheckpointFile(filepath.Join(dir, "unclaimed.json"))
			expect.NoError(t, os.WriteFile(file.Path, []byte(content), 0o600))
			// It stays lost, however often the process is killed, until it has been written anew.
			var s *observations
			for range 2 {
				var damage, err error
				s, damage, err = openObservations(file, time.Time{}, unlocked)
				if err != nil || damage == nil || !strings.Contains(damage.Error(), file.DamagedPath()) {
					t.Fatalf("damage %v, %v", damage, err)
				}
				expect.Equal(t, "4 4", first(t, s, deviceplugin.Kubelet{Err: errors.New("no socket")}, share("a", "0")),
					"units taken by a pod on any GPU")
			}
			expect.Equal(t, "4 4", first(t, s, gives(share("a", "")), share("a", "0")), "units taken by a pod on any GPU")
			if kept, err := os.ReadFile(file.DamagedPath()); err != nil || string(kept) != content {
				t.Errorf("set aside is %q, %v", kept, err)
			}
			// A pod that comes later is seen as it comes; the other one counts everywhere until it ends.
			s = opened(t, dir)
			expect.Equal(t, "4 8", first(t, s, gives(share("a", ""), share("b", "")), share("a", "0"), share("b", "1")),
				"units taken")
			expect.Equal(t, "0 4", first(t, opened(t, dir), gives(share("b", "")), share("b", "0")), "units taken")
		})
	}
}
