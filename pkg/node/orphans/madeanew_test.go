// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
)

// madeAnew is claim u1 anew, under its name and reserved for p2, which started so long after that.
func madeAnew(s *sweeps, after *time.Duration) {
	made := time.Unix(1_000_000, 0)
	c := wholeGPU("u1", 2, "p2")
	c.UID, c.CreationTimestamp = "new", metav1.NewTime(made)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p2", UID: "p2"}}
	if after != nil {
		pod.Status.StartTime = &metav1.Time{Time: made.Add(*after)}
	}
	s.api.claims, s.api.pods = []*resourceapi.ResourceClaim{c}, []*corev1.Pod{pod}
}

// The pods of a claim that was made anew under the same name use nothing of the one before.
func TestSweepOfAClaimThatWasMadeAnew(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	s := newSweeps(t)
	if _, err := s.Prepare(ctx, wholeGPU("u1", 1, "p1")); err != nil {
		t.Fatal(err)
	}
	madeAnew(s, new(time.Second))
	s.users, s.running["p2"] = map[string][]types.UID{"claim-u1": {"p1", "p2", "joined"}}, true
	s.running["joined"] = true
	s.after(t, 0, uids{"u1"}, nil)
	s.after(t, sweepGrace, uids{"u1"}, uids{"u1"})
	if user := s.told[0].User; user != "joined" {
		t.Errorf("the user is %q", user)
	}
	s.running["joined"] = false
	s.after(t, 0, nil, nil)
}

// A pod of the claim that was made anew may be known to use the one before: an earlier version has entered it in the
// record, or it ran before and has what the claim of that time was allocated.
func TestSweepKnowsAPodOfAClaimThatWasMadeAnew(t *testing.T) {
	for name, tc := range map[string]struct {
		recorded uids
		started  *time.Duration
		prepared uids
	}{
		"it started later":                {uids{"p1", "p2"}, new(time.Minute), nil},
		"it started in that second":       {uids{"p1", "p2"}, new(0 * time.Second), nil},
		"it has not started":              {uids{"p1", "p2"}, nil, nil},
		"it ran before":                   {uids{"p1", "p2"}, new(-time.Second), uids{"u1"}},
		"it ran before, and joined later": {uids{"p1"}, new(-time.Second), uids{"u1"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			s := newSweeps(t)
			if _, err := s.Prepare(ctx, wholeGPU("u1", 1, tc.recorded...)); err != nil {
				t.Fatal(err)
			}
			madeAnew(s, tc.started)
			s.users, s.running["p2"] = map[string][]types.UID{"claim-u1": {"p2"}}, true
			s.after(t, 0, uids{"u1"}, nil)
			s.after(t, sweepGrace, tc.prepared, tc.prepared)
			s.running["p2"] = false
			s.after(t, 0, nil, nil)
		})
	}
}
