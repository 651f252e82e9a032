// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/audit"
)

func asked(uids ...types.UID) map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, uid := range uids {
		out[uid] = true
	}
	return out
}

func TestPodsThatAreWatched(t *testing.T) {
	var pods Pods
	named := func(name, mirrors string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		if mirrors != "" {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: mirrors}
		}
		return p
	}
	handler := pods.Handler()
	victim, static := named("victim", ""), named("static", "hash")
	for _, p := range []*corev1.Pod{victim, static, named("liar", "victim"), named("other-liar", "hash")} {
		handler.OnAdd(p, true)
	}
	got := pods.Of(t.Context(), asked("victim", "hash", "liar", "nobody"), nil)
	if len(got) != 3 || got["victim"] != victim || got["hash"] != static {
		t.Errorf("pods %v, want those that the kubelet knows by these UIDs", got)
	}
	handler.OnDelete(static)
	handler.OnDelete(cache.DeletedFinalStateUnknown{Obj: victim})
	if got := pods.Of(t.Context(), asked("victim", "hash"), nil); len(got) > 0 {
		t.Errorf("pods %v, of which none is there", got)
	}
}

// Where pods are not watched, those of a claim are read when one of them is on a GPU, and
// that not often.
func TestPodsThatAreNotWatched(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Unix(1000, 0))
	reads := map[string]int{}
	var failure error
	pods := Pods{Clock: clock, Fetch: func(_ context.Context, namespace, name string) ([]*corev1.Pod, error) {
		reads[namespace+"/"+name]++
		return []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p"}}}, failure
	}}
	claims := []audit.Claim{{Namespace: "team", Name: "a", Pods: []types.UID{"p"}},
		{Namespace: "team", Name: "b", Pods: []types.UID{"q"}}}
	for range 6 {
		if got := pods.Of(t.Context(), asked("p", "nobody"), claims); len(got) != 1 || got["p"] == nil {
			t.Fatalf("pods %v", got)
		}
		clock.Step(2 * time.Second)
	}
	if reads["team/a"] != 2 || len(reads) != 1 {
		t.Errorf("read %v, want claim a twice in 10 s", reads)
	}
	failure = errors.New("down")
	clock.Step(time.Minute)
	if got := pods.Of(t.Context(), asked("p"), claims); got["p"] == nil {
		t.Error("a pod was forgotten, although nothing new is known")
	}
	if got := pods.Of(t.Context(), asked(), claims); len(got) > 0 || len(pods.byUID) > 0 {
		t.Errorf("pods %v are kept that are on no GPU", pods.byUID)
	}
}
