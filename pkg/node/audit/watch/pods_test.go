// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
)

func asked(uids ...types.UID) map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, uid := range uids {
		out[uid] = true
	}
	return out
}

// nothingRuns is a node on which no pod has processes.
type nothingRuns struct{}

func (nothingRuns) Running(types.UID) (bool, error) { return false, nil }

func TestPodsThatAreWatched(t *testing.T) {
	watched := Pods{Watched: pods.New(nothingRuns{})}
	named := func(name, mirrors string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		if mirrors != "" {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: mirrors}
		}
		return p
	}
	handler := watched.Watched.Handler()
	victim, static := named("victim", ""), named("static", "hash")
	for _, p := range []*corev1.Pod{victim, static, named("liar", "victim"), named("other-liar", "hash")} {
		handler.OnAdd(p, true)
	}
	got, _ := watched.Of(t.Context(), asked("victim", "hash", "liar", "nobody"), nil)
	if len(got) != 3 || got["victim"] != victim || got["hash"] != static {
		t.Errorf("pods %v, want those that the kubelet knows by these UIDs", got)
	}
	handler.OnDelete(static)
	handler.OnDelete(cache.DeletedFinalStateUnknown{Obj: victim})
	got, _ = watched.Of(t.Context(), asked("victim", "hash"), nil)
	expect.Equal(t, 0, len(got), "pods %v, of which none is there", got)
}

// Where pods are not watched, those of a claim are read when one of them is on a GPU, and
// that not often; those of all claims when a pod is on a GPU that nobody knows.
func TestPodsThatAreNotWatched(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1000, 0))
	reads := map[string]int{}
	var failure error
	joined := false // q has joined claim b
	fetched := Pods{Clock: clock, Fetch: func(_ context.Context, _, name string) ([]*corev1.Pod, error) {
		reads[name]++
		if failure != nil {
			return nil, failure
		}
		out := []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID("p" + name)}}}
		if name == "b" && joined {
			out = append(out, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "q", UID: "q"}})
		}
		return out, nil
	}}
	claims := []audit.Claim{{Namespace: "team", Name: "a", Pods: []types.UID{"pa"}},
		{Namespace: "team", Name: "b", Pods: []types.UID{"pb"}}}
	looks := func(times, known int, uids ...types.UID) {
		t.Helper()
		for range times {
			clock.Step(2 * time.Second)
			got, _ := fetched.Of(t.Context(), asked(uids...), claims)
			expect.Equal(t, known, len(got), "pods %v", got)
		}
	}
	read := func(a, b int) {
		t.Helper()
		if reads["a"] != a || reads["b"] != b {
			t.Errorf("read %v, want %d of claim a and %d of b", reads, a, b)
		}
		clear(reads)
	}
	looks(1, 1, "pa")
	read(1, 0) // it is the claim's
	looks(10, 1, "pa")
	read(2, 0)
	joined = true
	looks(1, 2, "pa", "q")
	read(0, 1) // a was read just now
	looks(10, 2, "pa", "q")
	read(2, 2)
	looks(10, 2, "pa", "q", "nobody")
	read(2, 2) // one of them for nobody
	if _, unread := fetched.Of(t.Context(), asked("pa"), claims); unread {
		t.Error("all were read, and are not taken for all there are")
	}
	failure = errors.New("down")
	looks(30, 2, "pa", "q")
	if _, unread := fetched.Of(t.Context(), asked("pa"), claims); !unread {
		t.Error("pods that could not be read are taken for gone")
	}
	looks(1, 0)
	claims = nil
	if looks(1, 0); len(fetched.byUID) > 0 {
		t.Errorf("pods %v are kept of claims that are gone", fetched.byUID)
	}
}

// A node's claims are many, and pods come all the time: neither is every claim read for each of them, nor many at once,
// and each pod is found.
func TestPodsThatJoinManyClaims(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1000, 0))
	reads, perLook := 0, 0
	members := map[string][]*corev1.Pod{}
	fetched := Pods{Clock: clock, Fetch: func(_ context.Context, _, name string) ([]*corev1.Pod, error) {
		reads++
		perLook++
		return members[name], nil
	}}
	var claims []audit.Claim
	for i := range 100 {
		claims = append(claims, audit.Claim{Namespace: "team", Name: fmt.Sprint(i)})
	}
	pod := func(uid string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}}
	}
	uids := map[types.UID]bool{}
	look := func() (map[types.UID]*corev1.Pod, bool) {
		t.Helper()
		clock.Step(2 * time.Second)
		perLook = 0
		got, unread := fetched.Of(t.Context(), uids, claims)
		if perLook > fetchMost+len(uids) {
			t.Errorf("one look reads %d claims", perLook)
		}
		return got, unread
	}
	// 30 pods for which their claims were prepared: nobody else's is read.
	for i := range 30 {
		uid := fmt.Sprint("own-", i)
		claims[i].Pods, members[claims[i].Name] = []types.UID{types.UID(uid)}, []*corev1.Pod{pod(uid)}
		clear(uids)
		uids[types.UID(uid)] = true
		if got, unread := look(); len(got) != 1 || unread {
			t.Fatalf("pods %v, unread %t", got, unread)
		}
	}
	expect.Equal(t, 30, reads, "claims read for 30 pods, each of one of 100 claims")
	// 30 pods join claims that are in use: each is found in time, and they cost what one of them does.
	clear(uids)
	reads = 0
	for i := range 30 {
		uid := fmt.Sprint("joins-", i)
		members[claims[99-i].Name] = []*corev1.Pod{pod(uid)}
		uids[types.UID(uid)] = true
	}
	looks := 1
	for got, unread := look(); len(got) < 30; got, unread = look() {
		if !unread {
			t.Fatalf("%d of 30 pods are taken for all", len(got))
		}
		if looks++; looks > 12 {
			t.Fatalf("%d of 30 pods are known after %d looks", len(got), looks)
		}
	}
	if reads > 160 {
		t.Errorf("%d claims are read for 30 pods that came together, of 100 claims", reads)
	}
}
