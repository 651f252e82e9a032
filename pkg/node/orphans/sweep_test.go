// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// sweeps is a node and what the API server says of its claims.
type sweeps struct {
	preparetest.Node
	*prepare.Preparer
	*Sweeper
	stateDir, cdiDir string
	// nodeName is that of the node, whose disk it may be.
	nodeName string
	api      preparetest.Cluster
	clock    *testingclock.FakeClock
	// running are the pods that have processes; unknown says why that is not known. users are
	// those that use a claim, by its name.
	running map[types.UID]bool
	unknown error
	users   map[string][]types.UID
	told    []Orphan
	// specs, if set, stands between the Preparer and its CDI specs.
	specs func(cdi.Dir) prepare.Specs
}

func (s *sweeps) Running(pod types.UID) (bool, error) { return s.running[pod], s.unknown }

func (s *sweeps) UsersOf(_, name string) []types.UID { return s.users[name] }

// takes prepares the claims.
func (s *sweeps) takes(t *testing.T, claims ...*resourceapi.ResourceClaim) {
	t.Helper()
	for _, c := range claims {
		_, err := s.Prepare(t.Context(), c)
		expect.NoError(t, err)
	}
}

func newSweeps(t *testing.T) *sweeps {
	t.Helper()
	s := &sweeps{stateDir: filepath.Join(t.TempDir(), "claims"), cdiDir: t.TempDir(), nodeName: "n1",
		clock:   testingclock.NewFakeClock(time.Unix(0, 0)),
		running: map[types.UID]bool{}}
	store := s.start(t, "boot-1")
	expect.NoError(t, store.SetComplete())
	return s
}

// start is that of a plugin, which knows of orphans what the one before did.
func (s *sweeps) start(t *testing.T, boot string) *state.Store {
	t.Helper()
	store, err := state.Open(filepath.Dir(s.stateDir), s.nodeName)
	expect.NoError(t, err)
	specs := prepare.Specs(cdi.Dir(s.cdiDir))
	if s.specs != nil {
		specs = s.specs(cdi.Dir(s.cdiDir))
	}
	s.Preparer = prepare.New(prepare.Options{
		Pool: s.nodeName + "/gpu", Store: preparetest.Store{Store: store}, Specs: specs, BootID: boot,
		Isolation: isolation.NewRegistry(isolation.Config{}),
		Cluster:   &s.api, Node: s,
		Listener: preparetest.Listener{OnDamaged: func(_ context.Context, d state.Damaged) { t.Error(d) }},
	})
	m := &gpu.Machine{}
	for i := range 4 {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), MemoryMiB: 16130})
	}
	s.SetInventory(&prepare.Inventory{Machine: m, Base: preparetest.Base("")})
	before := s.Sweeper
	s.Sweeper = New(Options{Claims: s.Preparer, Cluster: &s.api, BootID: boot, Clock: s.clock,
		OnOrphans: func(told []Orphan) { s.told = told }})
	if before != nil {
		s.found = before.found
	}
	return store
}

// wholeGPU is a claim that was allocated a GPU, and is reserved for pods.
func wholeGPU(uid string, index int, pods ...types.UID) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "claim-" + uid, UID: types.UID(uid)},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
	}
	c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
		{Request: "gpu", Driver: "gpu.aliyun.com", Pool: "n1/gpu", Device: fmt.Sprintf("gpu-%d", index)}}
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: string(pod), UID: pod})
	}
	return c
}

// uids are those of the claims that are prepared, and of those that were told to be
// orphans.
func (s *sweeps) uids(t *testing.T) (prepared, told []types.UID) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	records, err := s.Prepared(ctx)
	expect.NoError(t, err)
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
	s.clock.Step(d)
	if _, err := s.sweep(ctx, nil); (err != nil) != (len(s.api.Away) > 0) {
		t.Errorf("error %v, but these cannot be looked up: %v", err, s.api.Away)
	}
	gotPrepared, gotTold := s.uids(t)
	expect.Equal(t, [][]types.UID{prepared, told}, [][]types.UID{gotPrepared, gotTold}, "prepared, and told to be orphans")
}

type uids = []types.UID

func TestSweep(t *testing.T) {
	s := newSweeps(t)
	s.takes(t, wholeGPU("u0", 0, "pu0"), wholeGPU("u1", 1, "pu1"), wholeGPU("u2", 2, "pu2"))
	s.api.Claims = []*resourceapi.ResourceClaim{wholeGPU("u0", 0, "pu0")}
	s.api.Away = map[string]bool{"claim-u2": true}
	s.after(t, 0, uids{"u0", "u1", "u2"}, nil)
	s.after(t, 59*time.Second, uids{"u0", "u1", "u2"}, uids{"u1"})
	s.api.Claims = append(s.api.Claims, wholeGPU("u1", 1, "pu1"))
	s.after(t, 0, uids{"u0", "u1", "u2"}, nil)
	// It is there, and was allocated again; then one of its name is created again.
	s.api.Claims[1] = wholeGPU("u1", 3, "pu1")
	s.after(t, 4*time.Second, uids{"u0", "u1", "u2"}, nil)
	s.api.Claims[1] = wholeGPU("u1", 1)
	s.api.Claims[1].UID = "new"
	s.after(t, time.Minute, uids{"u0", "u2"}, nil)
	s.start(t, "boot-2")
	s.api.Claims = nil
	s.after(t, 0, uids{"u2"}, nil)
}

// The image of a machine can have records of claims that the node that it was taken of has still.
func TestSweepReleasesWhatAnotherNodePrepared(t *testing.T) {
	s := newSweeps(t)
	s.takes(t, wholeGPU("u0", 0, "p0"))
	s.api.Claims = []*resourceapi.ResourceClaim{wholeGPU("u0", 0, "p0")}
	s.nodeName = "n2"
	s.start(t, "boot-of-n2")
	s.after(t, 0, nil, nil)
}

// Whatever the API server says, what a process may use is not released; nor where
// nobody knows.
func TestSweepReleasesNothingInUse(t *testing.T) {
	s := newSweeps(t)
	s.takes(t, wholeGPU("u0", 0, "p0"), wholeGPU("u1", 1))
	s.running["p0"] = true
	s.after(t, 0, uids{"u0", "u1"}, nil)
	s.after(t, time.Hour, uids{"u0", "u1"}, uids{"u0", "u1"})
	expect.Equal(t, "p0", s.told[0].User, "the user is")
	if s.told[1].Unknown == nil {
		t.Error("it is known who uses a claim that was reserved for nobody")
	}
	s.running["p0"], s.unknown = false, errors.New("no control groups")
	s.after(t, time.Hour, uids{"u0", "u1"}, uids{"u0", "u1"})
	s.unknown = nil
	s.after(t, 0, uids{"u1"}, uids{"u1"})
	// The kubelet knows.
	expect.NoError(t, s.Unprepare(t.Context(), "u1"))
}

// A pod that comes to use a claim later keeps it from being released as well, also when
// it is gone for the API server and the plugin was restarted.
func TestSweepNotesWhoUsesAClaim(t *testing.T) {
	s := newSweeps(t)
	s.takes(t, wholeGPU("u0", 0, "first"), wholeGPU("u1", 1, "first"))
	s.api.Claims = []*resourceapi.ResourceClaim{
		wholeGPU("u0", 0, "first", "second"), wholeGPU("u1", 1, "first"),
	}
	s.users = map[string][]types.UID{"claim-u1": {"third"}}
	s.after(t, 0, uids{"u0", "u1"}, nil)
	s.users = nil
	s.start(t, "boot-1")
	s.running["second"], s.running["third"] = true, true
	for _, uid := range []types.UID{"u0", "u1"} {
		expect.Error(t, s.Unprepare(t.Context(), uid), "processes still run of the pod")
	}
}

// What an orphan holds stays held while it cannot be looked up: its GPUs are not offered for a moment.
func TestSweepKeepsWhatItCannotLookUp(t *testing.T) {
	away := func(s *sweeps) string { return s.stateDir + "-away" }
	for name, fault := range map[string]struct{ begin, end func(s *sweeps) error }{
		"the API server does not answer": {
			func(s *sweeps) error { s.api.Away = map[string]bool{"claim-u0": true}; return nil },
			func(s *sweeps) error { s.api.Away = nil; return nil },
		},
		"the records cannot be read": {
			func(s *sweeps) error { return os.Rename(s.stateDir, away(s)) },
			func(s *sweeps) error { return os.Rename(away(s), s.stateDir) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			s := newSweeps(t)
			s.takes(t, wholeGPU("u0", 0, "p0"))
			s.running["p0"] = true
			s.after(t, 0, uids{"u0"}, nil)
			s.after(t, sweepNotice, uids{"u0"}, uids{"u0"})
			expect.NoError(t, fault.begin(s))
			for range 2 {
				s.clock.Step(sweepGrace)
				if _, err := s.sweep(ctx, nil); err == nil {
					t.Error("it is not told that it failed")
				}
				if len(s.told) != 1 || s.told[0].UID != "u0" || s.told[0].User != "p0" {
					t.Errorf("told %+v", s.told)
				}
			}
			expect.NoError(t, fault.end(s))
			s.after(t, 0, uids{"u0"}, uids{"u0"})
			// Since when it is one is not forgotten.
			s.running["p0"] = false
			s.after(t, 0, nil, nil)
		})
	}
}

// A pod that came back after a reboot keeps what it has, as one that was never away; and the kubelet has its time.
func TestSweepAfterAReboot(t *testing.T) {
	s := newSweeps(t)
	s.takes(t, wholeGPU("back", 0, "p-back"), wholeGPU("gone", 1, "p-gone"))
	s.start(t, "boot-2")
	s.takes(t, wholeGPU("back", 0, "p-back"))
	s.running["p-back"] = true
	s.after(t, 0, uids{"back"}, nil)
	s.after(t, time.Hour, uids{"back"}, uids{"back"})
	s.running["p-back"] = false
	s.after(t, 0, nil, nil)
}

// stuck is a directory of CDI specs of which nothing can be removed.
type stuck struct{ prepare.Specs }

func (stuck) Remove(string) error { return errors.New("in use") }

// A claim that is gone and cannot be unprepared stays an orphan, which says why, and is tried again.
func TestSweepTellsWhatCannotBeUnprepared(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	s := newSweeps(t)
	s.takes(t, wholeGPU("u0", 0, "p0"))
	s.specs = func(d cdi.Dir) prepare.Specs { return stuck{d} }
	s.start(t, "boot-1")
	sweep := func(d time.Duration) error {
		s.clock.Step(d)
		_, err := s.sweep(ctx, nil)
		return err
	}
	expect.NoError(t, sweep(0))
	for range 2 {
		err := sweep(time.Minute)
		if len(s.told) != 1 || s.told[0].Kept == nil || !errors.Is(err, s.told[0].Kept) {
			t.Fatalf("told %+v, error %v", s.told, err)
		}
	}
	s.specs = nil
	s.start(t, "boot-1")
	s.after(t, time.Second, nil, nil)
}

// madeAnew has claim u1 created again, under its name and reserved for pods.
func (s *sweeps) madeAnew(pods ...types.UID) *resourceapi.ResourceClaim {
	c := wholeGPU("u1", 2, pods...)
	c.UID = "new"
	s.api.Claims = []*resourceapi.ResourceClaim{c}
	return c
}

// The pods of a claim that was created again under the same name use nothing of the one before.
func TestSweepOfAClaimThatWasMadeAnew(t *testing.T) {
	s := newSweeps(t)
	s.takes(t, wholeGPU("u1", 1, "p1"))
	c := s.madeAnew("p2")
	s.users = map[string][]types.UID{"claim-u1": {"p1", "p2", "joined"}}
	s.running["joined"] = true
	s.after(t, 0, uids{"u1"}, nil) // p2 waits still
	s.takes(t, c)
	s.running["p2"] = true
	s.after(t, sweepGrace, uids{"new", "u1"}, uids{"u1"})
	expect.Equal(t, "joined", s.told[0].User, "the user is")
	// Nor does who uses the one before hold the new one.
	s.running["p2"], s.api.Claims = false, nil
	s.after(t, 0, uids{"new", "u1"}, uids{"u1"})
	s.after(t, sweepGrace, uids{"u1"}, uids{"u1"})
	s.running["joined"] = false
	s.after(t, 0, nil, nil)
}

// Which of two claims of a name a pod uses is known by their records: it has processes only when its claim is prepared.
// The clocks of node and API server tell nothing, and what a claim is reserved for little: kube-controller-manager
// reserves it by name. Claim u1 is created again while p2 has processes.
func TestSweepKnowsAPodOfAClaimThatWasMadeAnew(t *testing.T) {
	for name, tc := range map[string]struct {
		// recorded are the pods of u1, reserved and joined those of the new claim before and after it was prepared, if it
		// was.
		recorded, reserved uids
		prepared           bool
		joined             uids
		held               bool
	}{
		"of the new one":                              {uids{"p1"}, uids{"p2"}, true, nil, false},
		"joined the new one later":                    {uids{"p1"}, nil, true, uids{"p2"}, false},
		"of the new one, and gone for the API server": {uids{"p1"}, uids{"p2"}, true, uids{"p3"}, false},
		"of the one before":                           {uids{"p1", "p2"}, uids{"p2"}, true, nil, true},
		"of the one before, and the new one waits":    {uids{"p1", "p2"}, uids{"p2"}, false, nil, true},
		"joined the one before":                       {uids{"p1"}, uids{"p2"}, false, nil, true},
		"joined the one before, unreserved":           {uids{"p1"}, nil, false, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSweeps(t)
			s.takes(t, wholeGPU("u1", 1, tc.recorded...))
			c, after := s.madeAnew(tc.reserved...), uids(nil)
			if tc.prepared {
				after = uids{"new"}
				s.takes(t, c)
			}
			if tc.joined != nil {
				s.madeAnew(tc.joined...)
			}
			s.users, s.running["p2"] = map[string][]types.UID{"claim-u1": {"p2"}}, true
			s.after(t, 0, append(after, "u1"), nil)
			if tc.held {
				s.after(t, sweepGrace, append(after, "u1"), uids{"u1"})
				s.running["p2"] = false
			}
			s.after(t, sweepGrace, after, nil)
		})
	}
}

// A pod that joined the claim before is known to have it also when the one that was created again is prepared, and
// when it is gone for the API server and the plugin was restarted.
func TestSweepRemembersAPodOfTheClaimBefore(t *testing.T) {
	s := newSweeps(t)
	s.takes(t, wholeGPU("u1", 1, "p1"))
	c := s.madeAnew("p2", "p3")
	s.users, s.running["p2"] = map[string][]types.UID{"claim-u1": {"p2"}}, true
	s.after(t, 0, uids{"u1"}, nil)
	s.takes(t, c)
	s.after(t, sweepGrace, uids{"new", "u1"}, uids{"u1"})
	s.users = nil
	s.start(t, "boot-1")
	s.after(t, sweepGrace, uids{"new", "u1"}, uids{"u1"})
	s.running["p2"] = false
	s.after(t, 0, uids{"new"}, nil)
}
