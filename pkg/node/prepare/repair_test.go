// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// repairer works for the node as it is now.
func (n *node) repairer() *Repairer { return &Repairer{Preparer: n.Preparer, Now: time.Now} }

// loseState removes the state directory, and all of the process that used it.
func (n *node) loseState(t *testing.T) {
	t.Helper()
	expect.NoError(t, os.RemoveAll(n.stateDir))
	n.restart(t)
	expect.NoError(t, n.Recover(t.Context()))
}

// prepared prepares claims that the API server then knows.
func (n *node) prepared(t *testing.T, claims ...*resourceapi.ResourceClaim) []state.Record {
	t.Helper()
	n.api.Claims = append(n.api.Claims, claims...)
	n.takes(t, claims...)
	return n.records(t)
}

func (n *node) records(t *testing.T) []state.Record {
	t.Helper()
	records, err := n.Prepared(t.Context())
	expect.NoError(t, err)
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
			expect.NoError(t, err)
			for _, path := range paths {
				expect.NoError(t, os.RemoveAll(path))
			}
			n.restart(t)
		},
		"directory removed under a plugin that goes on": func(t *testing.T, n *node) {
			expect.NoError(t, os.RemoveAll(n.stateDir))
		},
		"one record removed": func(t *testing.T, n *node) {
			expect.NoError(t, os.Remove(filepath.Join(n.stateDir, "share.json")))
		},
		"one record damaged": func(t *testing.T, n *node) {
			expect.NoError(t, os.Truncate(filepath.Join(n.stateDir, "share.json"), 20))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.isolated = map[mode.Mode]string{mode.Share: "none"}
			want := n.prepared(t, sharesOf("share", 0, 3, 4), wholeGPUs("whole", 1, 2), sharesOf("other", 0, 5))
			specs := n.specs(t)

			lose(t, n)
			expect.NoError(t, n.repairer().Repair(t.Context()))
			expect.Equal(t, want, n.records(t), "records")
			expect.Equal(t, specs, n.specs(t), "CDI specs")
			n.refuses(t, sharesOf("late", 0, 4), "promised twice")
			n.givesBack(t, "share", "whole", "other")
			n.leavesNothing(t)
		})
	}
}

// specs are the contents of all CDI specs.
func (n *node) specs(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(n.cdiDir, "*"))
	expect.NoError(t, err)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		expect.NoError(t, err)
		out[filepath.Base(path)] = string(content)
	}
	return out
}

// Without the API server nobody knows whose the specs are.
func TestSpecsStayUntilTheAPIServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.prepared(t, sharesOf("u1", 0, 12))
		n.loseState(t)
		n.api.err = errors.New("connection refused")
		r := n.repairer()
		expect.Error(t, r.Repair(t.Context()), "connection refused")
		expect.Equal(t, 1, len(n.specs(t)), "specs: that of a running claim")
		limit, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := n.Prepare(limit, sharesOf("u2", 0, 12))
		expect.ErrorIs(t, err, errIncomplete) // it is not known who has the GPU
		n.api.err = nil
		expect.NoError(t, r.Repair(t.Context()))
		expect.Equal(t, 1, len(n.records(t)), "records: that of the running claim")
	})
}

// While it is not known what a claim has whose record is damaged, nobody else is given it.
func TestADamagedRecordDoesNotFreeTheGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.isolated = map[mode.Mode]string{mode.Share: "none"}
		n.prepared(t, sharesOf("u1", 0, 12))
		damage := func() { expect.NoError(t, os.Truncate(filepath.Join(n.stateDir, "u1.json"), 20)) }
		damage()
		_, err := n.Prepare(t.Context(), sharesOf("u2", 0, 12))
		expect.ErrorIs(t, err, errIncomplete)
		expect.NoError(t, n.repairer().Repair(t.Context()))
		damage()
		// One that comes meanwhile waits for the record.
		var repairing sync.WaitGroup
		defer repairing.Wait()
		repairing.Go(func() {
			time.Sleep(completeLimit / 2)
			if err := n.repairer().Repair(t.Context()); err != nil {
				t.Error(err)
			}
		})
		n.takes(t, sharesOf("u3", 0, 3)) // 12 of the GPU's 15 GiB are granted
		n.refuses(t, sharesOf("u4", 0, 1), "promised twice")
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
			n := newNode(t)
			if tc.spec != nil {
				n.prepared(t, tc.spec)
			}
			n.loseState(t)
			n.api.Claims = nil
			if tc.now != nil && len(tc.now.Status.Allocation.Devices.Results) > 0 {
				n.api.Claims = []*resourceapi.ResourceClaim{tc.now}
			}
			if tc.pod != nil {
				n.api.pods = []*corev1.Pod{tc.pod}
			}
			expect.NoError(t, n.repairer().Repair(t.Context()))
			want := 0
			if tc.entered {
				want = 1
			}
			if records, specs := n.records(t), n.specs(t); len(records) != want || len(specs) != want {
				t.Errorf("records %v and specs %v, want %d of each", records, specs, want)
			}
		})
	}
}

// What was lost with one GPU must not keep the others from being used, nor all claims
// of the cluster be listed all the time.
func TestAClaimThatCannotBeEnteredHoldsUpNobody(t *testing.T) {
	n := newNode(t)
	n.prepared(t, wholeGPUs("u3", 3))
	n.loseState(t)
	m := machine()
	m.GPUs = m.GPUs[:3]
	n.SetInventory(&Inventory{Machine: m, Base: fakeBase{}})
	now := time.Unix(0, 0)
	r := &Repairer{Preparer: n.Preparer, Now: func() time.Time { return now }}
	for range 60 {
		expect.Error(t, r.Repair(t.Context()), "claim team/claim-u3")
		now = now.Add(10 * time.Second)
	}
	if n.api.lists > 10 {
		t.Errorf("all claims were listed %d times in ten minutes", n.api.lists)
	}
	expect.Equal(t, 1, len(n.specs(t)), "specs: that of the claim")
	n.takes(t, wholeGPUs("u1", 1)) // another GPU can be used
}

func TestSpecsThatSomebodyRemovedAreWrittenAgain(t *testing.T) {
	n := newNode(t)
	n.prepared(t, sharesOf("u1", 0, 3), wholeGPUs("u2", 1))
	before := n.specs(t)
	expect.NoError(t, os.Remove(filepath.Join(n.cdiDir, cdi.SpecName("u1")+".json")))
	expect.NoError(t, n.repairer().Repair(t.Context()))
	expect.Equal(t, before, n.specs(t), "CDI specs")
	expect.Equal(t, 0, n.api.lists, "times all claims of the cluster were listed although all records are there")
}
