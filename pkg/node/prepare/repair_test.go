// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// repairer works for the node as it is now.
func (n *node) repairer() *Repairer { return &Repairer{Preparer: n.Preparer, Now: time.Now} }

// loseState removes the state directory, and all of the process that used it.
func (n *node) loseState(t *testing.T) {
	t.Helper()
	if err := os.RemoveAll(n.stateDir); err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	if err := n.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// prepared prepares claims that the API server then knows.
func (n *node) prepared(t *testing.T, ctx context.Context, claims ...*resourceapi.ResourceClaim) []state.Record {
	t.Helper()
	for _, c := range claims {
		n.api.claims = append(n.api.claims, c)
		if _, err := n.Prepare(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	return n.records(t, ctx)
}

func (n *node) records(t *testing.T, ctx context.Context) []state.Record {
	t.Helper()
	records, err := n.Prepared(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// podOf is a pod that uses the claim, and of which a container was started or not.
func podOf(c *resourceapi.ResourceClaim, containerID string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "card", ResourceClaimName: &c.Name}},
			Containers: []corev1.Container{
				{Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "card"}}}}},
		},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ContainerID: containerID}}},
	}
}

func TestRecordsAreMadeAgainOfWhatTheAPIServerKnows(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, n *node){
		"directory removed": func(t *testing.T, n *node) { n.loseState(t) },
		"directory emptied": func(t *testing.T, n *node) {
			paths, err := filepath.Glob(filepath.Join(n.stateDir, "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range paths {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
			n.restart(t)
		},
		"directory removed under a plugin that goes on": func(t *testing.T, n *node) {
			if err := os.RemoveAll(n.stateDir); err != nil {
				t.Fatal(err)
			}
		},
		"one record removed": func(t *testing.T, n *node) {
			if err := os.Remove(filepath.Join(n.stateDir, "share.json")); err != nil {
				t.Fatal(err)
			}
		},
		"one record damaged": func(t *testing.T, n *node) {
			if err := os.Truncate(filepath.Join(n.stateDir, "share.json"), 20); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			n := newNode(t)
			n.isolated = map[mode.Mode]string{mode.Share: "none"}
			want := n.prepared(t, ctx, sharesOf("share", 0, 3, 4), wholeGPUs("whole", 1, 2), sharesOf("other", 0, 5))
			specs := n.specs(t)

			lose(t, n)
			if err := n.repairer().Repair(ctx); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, n.records(t, ctx)); diff != "" {
				t.Errorf("records (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(specs, n.specs(t)); diff != "" {
				t.Errorf("CDI specs (-before +after):\n%s", diff)
			}
			if _, err := n.Prepare(ctx, sharesOf("late", 0, 4)); err == nil || !strings.Contains(err.Error(), "promised twice") {
				t.Errorf("of the GPU's 15 GiB 12 are granted, and 4 more were: %v", err)
			}
			for _, c := range n.api.claims {
				if err := n.Unprepare(ctx, c.UID); err != nil {
					t.Error(err)
				}
			}
			if left := n.files(t); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// specs are the contents of all CDI specs.
func (n *node) specs(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(n.cdiDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(path)] = string(content)
	}
	return out
}

// Without the API server nobody knows whose the specs are.
func TestSpecsStayUntilTheAPIServerAnswers(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	n.prepared(t, ctx, sharesOf("u1", 0, 12))
	n.loseState(t)
	n.api.err = errors.New("connection refused")
	r := n.repairer()
	if err := r.Repair(ctx); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("it is not said what is wrong: %v", err)
	}
	if specs := n.specs(t); len(specs) != 1 {
		t.Errorf("specs %v: that of a running claim was removed", specs)
	}
	limit, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := n.Prepare(limit, sharesOf("u2", 0, 12)); !errors.Is(err, errIncomplete) {
		t.Errorf("a claim was prepared, or refused with %v, while it was not known who has the GPU", err)
	}
	n.api.err = nil
	if err := r.Repair(ctx); err != nil {
		t.Fatal(err)
	}
	if records := n.records(t, ctx); len(records) != 1 {
		t.Errorf("records %v, want that of the running claim", records)
	}
}

// While it is not known what a claim has whose record is damaged, nobody else is given it.
func TestADamagedRecordDoesNotFreeTheGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		n := newNode(t)
		n.isolated = map[mode.Mode]string{mode.Share: "none"}
		n.prepared(t, ctx, sharesOf("u1", 0, 12))
		damage := func() {
			if err := os.Truncate(filepath.Join(n.stateDir, "u1.json"), 20); err != nil {
				t.Fatal(err)
			}
		}
		damage()
		if _, err := n.Prepare(ctx, sharesOf("u2", 0, 12)); !errors.Is(err, errIncomplete) {
			t.Errorf("another claim was prepared, or refused with %v", err)
		}
		if err := n.repairer().Repair(ctx); err != nil {
			t.Fatal(err)
		}
		damage()
		// One that comes meanwhile waits for the record.
		var repairing sync.WaitGroup
		defer repairing.Wait()
		repairing.Go(func() {
			time.Sleep(completeLimit / 2)
			if err := n.repairer().Repair(ctx); err != nil {
				t.Error(err)
			}
		})
		if _, err := n.Prepare(ctx, sharesOf("u3", 0, 3)); err != nil {
			t.Errorf("the GPU has 15 GiB, of which 12 are granted, and 3 more were refused: %v", err)
		}
		if _, err := n.Prepare(ctx, sharesOf("u4", 0, 1)); err == nil || !strings.Contains(err.Error(), "promised twice") {
			t.Errorf("one GiB too many: %v", err)
		}
	})
}

// Only what was prepared is entered without the checks of a claim that is prepared.
func TestOnlyPreparedClaimsAreEnteredAgain(t *testing.T) {
	share := func() *resourceapi.ResourceClaim { return sharesOf("u1", 0, 3) }
	again := func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
		c.Status.Allocation.Devices.Results[0].ShareID = ptr.To(types.UID("another"))
		return c
	}
	deleted := func(pod *corev1.Pod) *corev1.Pod {
		pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		return pod
	}
	for name, tc := range map[string]struct {
		// spec is what the spec was written for; nil for none.
		spec, now *resourceapi.ResourceClaim
		pod       *corev1.Pod
		entered   bool
	}{
		"spec":                               {spec: share(), now: share(), entered: true},
		"pod started, no spec":               {now: share(), pod: podOf(share(), "containerd://1"), entered: true},
		"pod not started, no spec":           {now: share(), pod: podOf(share(), "")},
		"no pod, no spec":                    {now: share()},
		"pod being deleted, no spec":         {now: share(), pod: deleted(podOf(share(), "containerd://1"))},
		"spec of an earlier allocation":      {spec: share(), now: again(share())},
		"spec, claim with another name":      {spec: share(), now: sharesOf("u2", 0, 3)},
		"spec, claim is not allocated":       {spec: share(), now: emptyClaim("u1")},
		"spec, claim is allocated elsewhere": {spec: share(), now: nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			n := newNode(t)
			if tc.spec != nil {
				n.prepared(t, ctx, tc.spec)
			}
			n.loseState(t)
			n.api.claims = nil
			if tc.now != nil && len(tc.now.Status.Allocation.Devices.Results) > 0 {
				n.api.claims = []*resourceapi.ResourceClaim{tc.now}
			}
			if tc.pod != nil {
				n.api.pods = []*corev1.Pod{tc.pod}
			}
			if err := n.repairer().Repair(ctx); err != nil {
				t.Fatal(err)
			}
			want := 0
			if tc.entered {
				want = 1
			}
			if records, specs := n.records(t, ctx), n.specs(t); len(records) != want || len(specs) != want {
				t.Errorf("records %v and specs %v, want %d of each", records, specs, want)
			}
		})
	}
}

// What was lost with one GPU must not keep the others from being used, nor all claims
// of the cluster be listed all the time.
func TestAClaimThatCannotBeEnteredHoldsUpNobody(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	n.prepared(t, ctx, wholeGPUs("u3", 3))
	n.loseState(t)
	m := machine()
	m.GPUs = m.GPUs[:3]
	n.SetInventory(&Inventory{Machine: m, Base: fakeBase{}})
	now := time.Unix(0, 0)
	r := &Repairer{Preparer: n.Preparer, Now: func() time.Time { return now }}
	for range 60 {
		if err := r.Repair(ctx); err == nil || !strings.Contains(err.Error(), "claim team/claim-u3") {
			t.Fatalf("it is not said which claim is not counted: %v", err)
		}
		now = now.Add(10 * time.Second)
	}
	if n.api.lists > 10 {
		t.Errorf("all claims were listed %d times in ten minutes", n.api.lists)
	}
	if specs := n.specs(t); len(specs) != 1 {
		t.Errorf("the spec of the claim is gone: %v", specs)
	}
	if _, err := n.Prepare(ctx, wholeGPUs("u1", 1)); err != nil {
		t.Errorf("another GPU cannot be used: %v", err)
	}
}

func TestSpecsThatSomebodyRemovedAreWrittenAgain(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	n.prepared(t, ctx, sharesOf("u1", 0, 3), wholeGPUs("u2", 1))
	before := n.specs(t)
	if err := os.Remove(filepath.Join(n.cdiDir, cdi.SpecName("u1")+".json")); err != nil {
		t.Fatal(err)
	}
	if err := n.repairer().Repair(ctx); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, n.specs(t)); diff != "" {
		t.Errorf("CDI specs (-before +after):\n%s", diff)
	}
	if n.api.lists != 0 {
		t.Errorf("all claims of the cluster were listed %d times although all records are there", n.api.lists)
	}
}
