// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
)

// reservedFor reserves the claim for pods.
func reservedFor(c *resourceapi.ResourceClaim, pods ...types.UID) *resourceapi.ResourceClaim {
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: string(pod), UID: pod})
	}
	return c
}

// sweeps is a node and what the API server says of its claims.
type sweeps struct {
	*node
	*Sweeper
	now  time.Time
	told []Orphan
}

func newSweeps(t *testing.T) *sweeps {
	t.Helper()
	s := &sweeps{node: newNode(t), now: time.Unix(0, 0)}
	s.running = map[types.UID]bool{}
	s.Sweeper = &Sweeper{
		Preparer: s.node.Preparer, Grace: time.Minute, Notice: 5 * time.Second, Now: func() time.Time { return s.now },
		OnOrphans: func(told []Orphan) { s.told = told },
	}
	return s
}

// uids are those of the claims that are prepared, and of those that were told to be
// orphans.
func (s *sweeps) uids(t *testing.T) (prepared, told []types.UID) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	records, err := s.node.Prepared(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		prepared = append(prepared, r.UID)
	}
	for _, l := range s.told {
		told = append(told, l.UID)
	}
	return prepared, told
}

func (s *sweeps) after(t *testing.T, d time.Duration, prepared, told []types.UID) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	s.now = s.now.Add(d)
	if _, err := s.Sweep(ctx, nil); (err != nil) != (len(s.api.away) > 0) {
		t.Errorf("error %v, but these cannot be looked up: %v", err, s.api.away)
	}
	gotPrepared, gotTold := s.uids(t)
	if diff := cmp.Diff([][]types.UID{prepared, told}, [][]types.UID{gotPrepared, gotTold}); diff != "" {
		t.Errorf("prepared, and told to be orphans (-want +got):\n%s", diff)
	}
}

type uids = []types.UID

func TestSweep(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	s := newSweeps(t)
	for i, uid := range []string{"u0", "u1", "u2"} {
		if _, err := s.Prepare(ctx, reservedFor(wholeCards(uid, i), types.UID("p"+uid))); err != nil {
			t.Fatal(err)
		}
	}
	s.api.claims = []*resourceapi.ResourceClaim{reservedFor(wholeCards("u0", 0), "pu0")}
	s.api.away = map[string]bool{"claim-u2": true}
	s.after(t, 0, uids{"u0", "u1", "u2"}, nil)
	s.after(t, 59*time.Second, uids{"u0", "u1", "u2"}, uids{"u1"})
	s.api.claims = append(s.api.claims, reservedFor(wholeCards("u1", 1), "pu1"))
	s.after(t, 0, uids{"u0", "u1", "u2"}, nil)
	// It is there, and was allocated anew; then one of its name is made anew.
	s.api.claims[1] = reservedFor(wholeCards("u1", 3), "pu1")
	s.after(t, 4*time.Second, uids{"u0", "u1", "u2"}, nil)
	s.api.claims[1] = wholeCards("u1", 1)
	s.api.claims[1].UID = "new"
	s.after(t, time.Minute, uids{"u0", "u2"}, nil)
	s.options.BootID = "boot-2"
	s.api.claims = nil
	s.after(t, 0, uids{"u2"}, nil)
}

// Whatever the API server says, what a process may use is not released; nor where
// nobody knows.
func TestSweepReleasesNothingInUse(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	s := newSweeps(t)
	if _, err := s.Prepare(ctx, reservedFor(wholeCards("u0", 0), "p0")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(ctx, wholeCards("u1", 1)); err != nil {
		t.Fatal(err)
	}
	s.running["p0"] = true
	s.after(t, 0, uids{"u0", "u1"}, nil)
	s.after(t, time.Hour, uids{"u0", "u1"}, uids{"u0", "u1"})
	if user := s.told[0].User; user != "p0" {
		t.Errorf("the user is %q", user)
	}
	if s.told[1].Unknown == nil {
		t.Error("it is known who uses a claim that was reserved for nobody")
	}
	s.running["p0"], s.unknown = false, errors.New("no control groups")
	s.after(t, time.Hour, uids{"u0", "u1"}, uids{"u0", "u1"})
	s.unknown = nil
	s.after(t, 0, uids{"u1"}, uids{"u1"})
	// The kubelet knows.
	if err := s.Unprepare(ctx, "u1"); err != nil {
		t.Error(err)
	}
}

// A pod that comes to use a claim later keeps it from being released as well, also when
// it is gone for the API server and the plugin was started anew.
func TestSweepNotesWhoUsesAClaim(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	s := newSweeps(t)
	for i, uid := range []string{"u0", "u1"} {
		if _, err := s.Prepare(ctx, reservedFor(wholeCards(uid, i), "first")); err != nil {
			t.Fatal(err)
		}
	}
	s.api.claims = []*resourceapi.ResourceClaim{
		reservedFor(wholeCards("u0", 0), "first", "second"), reservedFor(wholeCards("u1", 1), "first"),
	}
	s.users = map[string][]types.UID{"claim-u1": {"third"}}
	s.after(t, 0, uids{"u0", "u1"}, nil)
	s.users = nil
	s.restart(t)
	s.running["second"], s.running["third"] = true, true
	for _, uid := range []types.UID{"u0", "u1"} {
		if err := s.Unprepare(ctx, uid); err == nil || !strings.Contains(err.Error(), "processes still run of the pod") {
			t.Errorf("claim %s, which a pod uses that came later: %v", uid, err)
		}
	}
}

// The kubelet asks to unprepare what a pod had that was deleted by force while its
// containers stop.
func TestUnprepareWaitsForProcesses(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	if _, err := n.Prepare(ctx, reservedFor(wholeCards("u0", 0), "p0")); err != nil {
		t.Fatal(err)
	}
	n.running = map[types.UID]bool{"p0": true}
	if err := n.Unprepare(ctx, "u0"); err == nil ||
		!strings.Contains(err.Error(), "processes still run of the pod with UID p0") {
		t.Errorf("unprepared while a process runs: %v", err)
	}
	if _, err := n.Prepare(ctx, reservedFor(wholeCards("u1", 0), "p1")); err == nil ||
		!strings.Contains(err.Error(), "promised twice") {
		t.Errorf("another's claim for the GPU: %v", err)
	}
	// The claim is allocated anew, elsewhere.
	if _, err := n.Prepare(ctx, reservedFor(wholeCards("u0", 2), "p2")); err == nil ||
		!strings.Contains(err.Error(), "the claim was allocated anew: processes still run of the pod with UID p0") {
		t.Errorf("the claim with another GPU: %v", err)
	}
	if diff := cmp.Diff(uids{"u0", "u0", "u0"}, n.contended); diff != "" {
		t.Errorf("claims that somebody wants released (-want +got):\n%s", diff)
	}
	n.running = nil
	if err := n.Unprepare(ctx, "u0"); err != nil {
		t.Error(err)
	}
	if _, err := n.Prepare(ctx, reservedFor(wholeCards("u1", 0), "p1")); err != nil {
		t.Error(err)
	}
	// What is not known keeps no pod from ending, and a reboot ends all processes.
	n.unknown = errors.New("no control groups")
	if err := n.Unprepare(ctx, "u1"); err != nil {
		t.Error(err)
	}
	n.unknown, n.running = nil, map[types.UID]bool{"p3": true}
	if _, err := n.Prepare(ctx, reservedFor(wholeCards("u3", 0), "p3")); err != nil {
		t.Fatal(err)
	}
	n.options.BootID = "boot-2"
	if err := n.Unprepare(ctx, "u3"); err != nil {
		t.Error(err)
	}
}
