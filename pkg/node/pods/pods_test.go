// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// processes has the pods with processes, and the error for pods whose processes cannot be read.
type processes struct{ sync.Map }

func (p *processes) Running(pod types.UID) (bool, error) {
	found, runs := p.Load(pod)
	err, _ := found.(error)
	return runs && err == nil, err
}

// heard is a Follower that keeps what it is told.
type heard struct {
	sync.Mutex
	told []string
}

func (h *heard) tell(format string, args ...any) {
	h.Lock()
	defer h.Unlock()
	h.told = append(h.told, fmt.Sprintf(format, args...))
}

func (h *heard) Saw(before, pod *corev1.Pod) {
	if before == nil {
		h.tell("new %s", pod.UID)
	} else if before.UID != pod.UID {
		h.tell("%s was %s", pod.UID, before.UID)
	}
}

func (h *heard) Deleted(pod *corev1.Pod, runs bool) { h.tell("deleted %s %t", pod.UID, runs) }

func (h *heard) Ended(pod *corev1.Pod) { h.tell("ended %s", pod.UID) }

// node is a watched node in a bubble of synctest.
type node struct {
	*Picture
	*heard
	running *processes
	client  *fake.Clientset
}

func newNode(t *testing.T) node {
	t.Helper()
	n := node{heard: &heard{}, client: fake.NewClientset(), running: &processes{}}
	n.Picture = New(n.running)
	w, err := NewWatch(n.Picture, n.client, "n1", n.heard, func(err error) { t.Error(err) })
	expect.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.Run(ctx, func() { n.tell("listed") })
	}()
	t.Cleanup(func() {
		cancel()
		<-stopped
	})
	synctest.Wait()
	n.hears(t, "listed")
	return n
}

// hears checks what the Follower was told since the last time.
func (n node) hears(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	n.heard.Lock()
	defer n.heard.Unlock()
	expect.Equal(t, want, n.told, "told")
	n.told = nil
}

// user returns a pod that uses claim c.
func user(name string, uid types.UID) *corev1.Pod {
	pod := plain(name, uid)
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("c")}}
	return pod
}

func plain(name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: uid},
		Spec: corev1.PodSpec{NodeName: "n1"}}
}

func mirror(uid, static types.UID) *corev1.Pod {
	pod := plain("static", uid)
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: string(static)}
	return pod
}

func (n node) add(t *testing.T, pods ...*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		expect.NoError(t, n.client.Tracker().Add(pod))
	}
	synctest.Wait()
}

func (n node) remove(t *testing.T, name string) {
	t.Helper()
	expect.NoError(t, n.client.CoreV1().Pods("team").Delete(t.Context(), name, metav1.DeleteOptions{}))
	synctest.Wait()
}

func (n node) users(t *testing.T, want ...types.UID) {
	t.Helper()
	expect.Equal(t, want, n.UsersOf("team", "c"), "users")
}

// Deleted pods use their claims until they have no processes. A pod without processes gets a moment to start one.
func TestUsersOfClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.running.Store(types.UID("b1"), true)
		n.add(t, user("a", "a1"), user("b", "b1"), plain("none", "n1"))
		n.users(t, "a1", "b1")
		expect.Equal(t, false, n.AnyLeaves("team", "c", []types.UID{"n1"}), "a pod leaves")
		left := n.Left.Next()
		n.remove(t, "none")
		select {
		case <-left:
			t.Error("told of a pod that uses no claim")
		default:
		}
		n.remove(t, "b")
		<-left
		if !n.AnyLeaves("team", "c", nil) || !n.AnyLeaves("team", "d", []types.UID{"b1"}) || n.AnyLeaves("other", "c", nil) {
			t.Error("not known which claim the deleted pod used")
		}
		time.Sleep(time.Hour)
		n.users(t, "a1", "b1")
		n.running.Delete(types.UID("b1"))
		time.Sleep(2 * sweepInterval)
		n.users(t, "a1")
		left = n.Left.Next()
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		expect.NoError(t, n.client.Tracker().Update(pods, user("a", "a2"), "team"))
		synctest.Wait()
		<-left
		n.users(t, "a1", "a2")
		time.Sleep(startsWithin + 2*sweepInterval)
		n.users(t, "a2")
		n.hears(t, "new a1", "new b1", "new n1", "deleted n1 false", "deleted b1 true", "ended b1", "deleted a1 false",
			"new a2", "ended a1")
	})
}

// A pod whose processes cannot be read does not end if it was seen to run, and does not count as running otherwise.
func TestPodsOfWhichItCannotBeReadWhetherTheyRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		unread := errors.New("too many open files")
		n.running.Store(types.UID("known"), true)
		n.running.Store(types.UID("unknown"), unread)
		n.add(t, plain("known", "known"), plain("unknown", "unknown"))
		n.remove(t, "known")
		n.remove(t, "unknown")
		n.running.Store(types.UID("known"), unread)
		time.Sleep(time.Hour)
		n.hears(t, "new known", "new unknown", "deleted known true", "deleted unknown false")
		if there, leaving := n.Pods(); len(there) != 0 || len(leaving) != 1 || leaving[0].UID != "known" {
			t.Errorf("there are %v, and these leave: %v", there, leaving)
		}
		n.running.Delete(types.UID("known"))
		time.Sleep(2 * sweepInterval)
		n.hears(t, "ended known")
	})
}

// A static pod runs on when its mirror is deleted, and is the same pod under the next mirror, also if only an earlier
// process saw the first one. The kubelet knows the static pod by another UID.
func TestMirrorsOfAStaticPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.running.Store(types.UID("s"), true)
		n.add(t, mirror("m1", "s"))
		n.remove(t, "static")
		if known := n.KnownAs(map[types.UID]bool{"s": true, "m1": true}); len(known) > 0 {
			t.Errorf("known are %v, of which the API server has none", known)
		}
		n.add(t, mirror("m2", "s"))
		if known := n.KnownAs(map[types.UID]bool{"s": true}); known["s"] == nil || known["s"].UID != "m2" {
			t.Errorf("known are %v", known)
		}
		n.hears(t, "new m1", "deleted m1 true", "m2 was m1")
		n.Delete(mirror("m0", "s"))
		n.hears(t, "deleted m0 true", "m2 was m0")
		if _, leaving := n.Pods(); len(leaving) > 0 {
			t.Errorf("these leave: %v", leaving)
		}
		// All who may write pods can write that annotation: it hides no processes of the pod's own.
		n.running.Store(types.UID("own"), true)
		n.Delete(mirror("own", "forged"))
		n.hears(t, "deleted own true")
	})
}

// readings are processes that take a while to be read: what happens meanwhile, and whether the pods run then.
type readings struct {
	meanwhile func()
	runs      bool
}

func (r *readings) Running(types.UID) (bool, error) {
	r.meanwhile()
	return r.runs, nil
}

// Whoever asks the picture does not wait for the disk, and what comes while it is read counts.
func TestSweepReadsControlGroupsBesideThePicture(t *testing.T) {
	disk, follower := &readings{meanwhile: func() {}, runs: true}, &heard{}
	p := New(disk)
	p.follower = follower
	p.Delete(mirror("m1", "s"))
	disk.runs = false
	read := 0
	disk.meanwhile = func() {
		if !p.mu.TryLock() {
			t.Error("the picture is locked while control groups are read")
			return
		}
		p.mu.Unlock()
		if read++; read == 1 {
			p.saw(mirror("m2", "s"))
		}
	}
	expect.Equal(t, false, p.sweep(), "pods leave")
	if read == 0 {
		t.Error("no control group was read")
	}
	expect.Equal(t, []string{"deleted m1 true", "m2 was m1"}, follower.told, "told")
}
