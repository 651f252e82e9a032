// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// found is what a pass finds on a node of two GPUs that asks for a mode by its label and has
// published another one; "" for none.
func found(t *testing.T, label string, published mode.Mode) snapshot {
	t.Helper()
	backends := isolation.NewRegistry(isolation.Config{MPSDir: t.TempDir(), CGPUProc: "/proc/no_such_module"})
	machine := twoGPUs()
	node := &nodeFacts{labels: map[string]string{ack.NodeLabelSchedule: label}}
	s := snapshot{given: given{machine: machine, node: node}, pool: "n1/gpu", now: time.Unix(1000, 0),
		asked: node.asks(mode.Asked{}, backends)}
	s.preflighted = cluster.Features{Shares: true, Counters: true}
	if published != "" {
		var err error
		if s.served, err = servedModes(mode.Offer{Mode: published}, backends); err != nil {
			t.Fatal(err)
		}
		before := desired{mode: published, served: s.served}
		s.checkpoint.Offers(before.offer())
	}
	checkIsolation(machine, s.asked.served, s.served)
	return s
}

// told is what a plan says under a reason.
func (p plan) told(reason string) string {
	at := slices.IndexFunc(p.events, func(e event) bool { return e.reason == reason })
	if at < 0 {
		return "nothing"
	}
	return p.events[at].message
}

func (p plan) devices() string { return describeDevices(devicesIn(p.resources)) }

func TestPlan(t *testing.T) {
	unlisted := errors.New("no records")
	orphan := recordOf("gone", grantOf(mode.Exclusive, "gpu-1", 1, "GPU-1"))
	for name, test := range map[string]struct {
		label     string
		published mode.Mode
		given     func(s *snapshot)
		// devices are published, and the checkpoint says mode and closed.
		devices string
		mode    mode.Mode
		closed  bool
		lacks   lack
		waits   bool
		again   bool
		err     error
		// event is part of what is told under reason.
		reason, event string
	}{
		"a new node": {label: "share", devices: shares, mode: mode.Share},
		"as it is":   {label: "share", published: mode.Share, devices: shares, mode: mode.Share},
		"another mode is asked for": {label: "default", published: mode.Share, devices: shareClosed, mode: mode.Share,
			again: true},
		"closed for too short a time": {label: "default", published: mode.Share,
			given:   func(s *snapshot) { s.closedSince = s.now.Add(1 - mode.Settle) },
			devices: shareClosed, mode: mode.Share, again: true},
		"closed for long enough": {label: "default", published: mode.Share,
			given: func(s *snapshot) { s.closedSince = s.now.Add(-mode.Settle) }, lacks: lacksOccupants},
		"closed, and somebody has a device": {label: "default", published: mode.Share, given: func(s *snapshot) {
			s.closedSince, s.occupants = s.now.Add(-mode.Settle), &allocations{names: []string{"pod team/a"}}
		}, devices: shareClosed, mode: mode.Share, closed: true, again: true, reason: v1alpha1.ReasonModeSwitchWaiting,
			event: "change to mode exclusive when these have ended: pod team/a"},
		"closed, and nobody has": {label: "default", published: mode.Share, given: func(s *snapshot) {
			s.closedSince, s.occupants = s.now.Add(-mode.Settle), &allocations{}
		}, devices: whole, mode: mode.Exclusive, reason: v1alpha1.ReasonModeSwitchWaiting},
		"the mode before is asked for again": {label: "share", published: mode.Share, given: func(s *snapshot) {
			s.closedSince, s.checkpoint.Closed = s.now.Add(-mode.Settle), true
		}, devices: shares, mode: mode.Share, reason: v1alpha1.ReasonModeSwitchWaiting},
		"no isolation for the mode": {label: "mps", devices: "", reason: v1alpha1.ReasonModeNotServed,
			event: "mode mps needs isolation mps, which is not available"},
		"its daemons are being started": {label: "mps", published: mode.Share, given: func(s *snapshot) {
			s.daemonsStarted = s.now.Add(1 - mpsStartLimit)
		}, waits: true, reason: v1alpha1.ReasonModeNotServed, event: "nothing"},
		"its daemons do not come": {label: "mps", published: mode.Share, given: func(s *snapshot) {
			s.daemonsStarted = s.now.Add(-mpsStartLimit)
		}, devices: shareClosed, mode: mode.Share, again: true, reason: v1alpha1.ReasonModeNotServed, event: "not available"},
		"the isolation of the published mode goes": {label: "mps", published: mode.MPS, devices: byMPSClosed,
			mode: mode.MPS, reason: v1alpha1.ReasonIsolationUnavailable, event: "GPU 1 is closed to new claims"},
		"the cluster is too old": {label: "dynamic", published: mode.Dynamic, given: func(s *snapshot) {
			s.tooOld = errors.New("needs another one")
		}, devices: everyModeClosed, mode: mode.Dynamic, again: true,
			reason: v1alpha1.ReasonModeNotServed, event: "needs another one"},
		"what is prepared cannot be listed": {label: "share", published: mode.Share,
			given: func(s *snapshot) { s.unlisted = unlisted }, err: unlisted},
		"nor has it to": {label: "default", published: mode.Exclusive,
			given: func(s *snapshot) { s.unlisted = unlisted }, devices: whole, mode: mode.Exclusive},
		"a claim that is gone holds a GPU": {label: "default", published: mode.Exclusive, given: func(s *snapshot) {
			s.records, s.orphans = []state.Record{orphan}, map[types.UID]string{"gone": "it runs"}
		}, devices: "gpu-0 gpu-1!", mode: mode.Exclusive, reason: v1alpha1.ReasonHeldByGoneClaim,
			event: "GPU 1 by claim team/gone (it runs)"},
		"something could not be read": {label: "share", given: func(s *snapshot) { s.failed = unlisted }, err: unlisted,
			reason: v1alpha1.ReasonOtherDriver},
		"sets that may be allocated": {label: "topology", published: mode.Topology, lacks: lacksRetained},
		"sets that may be allocated are known": {label: "topology", published: mode.Topology, given: func(s *snapshot) {
			s.retained = retainedSets{machine: s.machine, sets: [][]int{{0, 1}}}
		}, devices: "gpu-0-topology gpu-1-topology gpus-0-1!", mode: mode.Topology},
	} {
		t.Run(name, func(t *testing.T) {
			s := found(t, test.label, test.published)
			if test.given != nil {
				test.given(&s)
			}
			p, err := s.plan()
			if !errors.Is(err, test.err) || p.lacks != test.lacks || p.waits != test.waits {
				t.Fatalf("error %v, lacks %q, waits %t", err, p.lacks, p.waits)
			}
			if got := p.told(test.reason); test.reason != "" && (!strings.Contains(got, test.event) ||
				test.event == "" && got != "") {
				t.Errorf("told %q under %s, want %q", got, test.reason, test.event)
			}
			if err != nil || p.waits || p.lacks != lacksNothing {
				return
			}
			if got := p.devices(); got != test.devices || p.again != test.again {
				t.Errorf("publishes %q, again %t, want %q, %t", got, p.again, test.devices, test.again)
			}
			if c := p.checkpoint; c.Published != test.mode || c.Closed != test.closed {
				t.Errorf("remembers mode %q, closed %t, want %q, %t", c.Published, c.Closed, test.mode, test.closed)
			}
			if second, err := s.plan(); err != nil || !reflect.DeepEqual(p, second) {
				t.Errorf("the second plan of the same snapshot is another one: %+v, %v", second, err)
			}
		})
	}
}

// What the API server would not keep is not published. What was published before is not forgotten
// as long as it has not been left.
func TestPlanOfWhatTheAPIServerWouldNotKeep(t *testing.T) {
	for name, test := range map[string]struct {
		label             string
		published, remain mode.Mode
	}{
		"as before":     {"share", mode.Share, mode.Share},
		"on a new node": {"share", "", ""},
		"another mode":  {"topology", mode.Share, ""},
	} {
		s := found(t, test.label, test.published)
		s.closedSince, s.occupants = s.now.Add(-mode.Settle), &allocations{}
		s.retained.machine = s.machine
		s.missing = &cluster.MissingFeatureError{}
		p, err := s.plan()
		expect.NoError(t, err)
		if p.devices() != "" || !p.again || p.checkpoint.Published != test.remain ||
			p.checkpoint.Wanted != s.asked.mode {
			t.Errorf("%s: publishes %q, again %t, remembers %+v", name, p.devices(), p.again, p.checkpoint)
		}
	}
}

// What is written, and when, is planned, too: by what the API server has of what was published last.
func TestPlanOfAPublication(t *testing.T) {
	refused := errors.New("refused")
	for name, test := range map[string]struct {
		label string
		// given is applied after mode share was published.
		given          func(s *snapshot)
		writes, closes bool
		lacks          lack
		again          bool
		refused        error
		remembers      func(memory) bool
	}{
		"nothing new": {label: "share"},
		"other devices": {label: "share", given: func(s *snapshot) { s.machine.GPUs = s.machine.GPUs[:1] },
			writes: true},
		"what the API server keeps is not known": {label: "share", given: func(s *snapshot) { s.preflighted.Shares = false },
			lacks: lacksPreflight},
		"fields were dropped": {label: "share", given: func(s *snapshot) { s.dropped = 1 }, lacks: lacksPreflight},
		"fields were dropped, and are kept": {label: "share", given: func(s *snapshot) { s.dropped, s.droppedSeen = 1, 1 },
			writes: true, remembers: func(m memory) bool { return m.lastDropped == 1 }},
		"fields were dropped again": {label: "share", given: func(s *snapshot) {
			s.dropped, s.droppedSeen, s.rewrite = 1, 1, s.rewrite.Plus(askAgain, s.now)
		}, again: true},
		"closing": {label: "default", writes: true, closes: true, again: true},
		"closing, when an opening is on its way": {label: "default", given: func(s *snapshot) { s.reopened = true },
			writes: true, lacks: lacksOpening, again: true},
		"opening": {label: "share", given: func(s *snapshot) { s.closedSince, s.last = s.now, nil }, writes: true,
			remembers: func(m memory) bool { return m.closedSince.IsZero() && m.reopened }},
		"a refusal": {label: "share", given: func(s *snapshot) { s.refusals, s.refused = 1, refused }, lacks: lacksStored},
		"a refusal that stays": {label: "share", given: func(s *snapshot) {
			s.refusals, s.refused, s.stored = 1, refused, &[]resourceapi.ResourceSlice{}
		}, refused: refused, remembers: func(m memory) bool { return !m.reread.IsDue(time.Unix(1000, 0)) }},
	} {
		t.Run(name, func(t *testing.T) {
			before, err := found(t, "share", mode.Share).plan()
			expect.NoError(t, err)
			s := found(t, test.label, mode.Share)
			s.memory = before.memory
			if test.given != nil {
				test.given(&s)
			}
			p, err := s.plan()
			expect.NoError(t, err)
			if p.writes != test.writes || p.closes != test.closes || p.lacks != test.lacks || p.again != test.again {
				t.Errorf("writes %t, closes %t, lacks %q, again %t", p.writes, p.closes, p.lacks, p.again)
			}
			expect.ErrorIs(t, p.refused, test.refused)
			expect.Equal(t, test.writes, reflect.DeepEqual(p.last, &p.resources) && p.last != s.last,
				"what is written is remembered")
			if test.remembers != nil && !test.remembers(p.memory) {
				t.Errorf("remembers %+v", p.memory)
			}
		})
	}
	s := found(t, "default", mode.Share)
	p, err := s.plan()
	expect.NoError(t, err)
	s.memory = p.memory
	p, err = s.plan()
	expect.NoError(t, err)
	expect.Equal(t, lacksClosing, p.lacks, "once the closing is published, the plan lacks")
}

func TestDevicePluginCounts(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		counted, there bool
		goneSince      time.Time
		want           bool
		wantSince      time.Time
	}{
		"never one":     {},
		"it comes":      {there: true, want: true},
		"it comes back": {counted: true, there: true, goneSince: now.Add(-time.Second), want: true},
		"it goes":       {counted: true, want: true, wantSince: now},
		"gone for a moment": {counted: true, goneSince: now.Add(1 - devicePluginGrace), want: true,
			wantSince: now.Add(1 - devicePluginGrace)},
		"gone for long enough": {counted: true, goneSince: now.Add(-devicePluginGrace)},
	} {
		got, since := devicePluginCounts(test.counted, test.there, test.goneSince, now)
		if got != test.want || !since.Equal(test.wantSince) {
			t.Errorf("%s: %t since %s, want %t since %s", name, got, since, test.want, test.wantSince)
		}
	}
}

// counting counts how often it is asked what is prepared.
type counting struct {
	*bench
	n int
}

func (c *counting) Prepared(ctx context.Context) ([]state.Record, error) {
	c.n++
	return c.bench.Prepared(ctx)
}

// A pass decides on one state of the node: also one that waits to change its mode, has shares to
// spread, and holds GPUs for claims that are gone.
func TestAPassReadsWhatIsPreparedOnce(t *testing.T) {
	b := newBench(t)
	counts := &counting{bench: b}
	b.Claims = counts
	b.records = []state.Record{recordOf("held", shareOf(0, 4))}
	b.orphans = map[types.UID]string{"held": "it runs"}
	pass := func(when string) {
		t.Helper()
		counts.n = 0
		if _, err := b.Publisher.reconcile(t.Context()); err != nil || counts.n != 1 {
			t.Errorf("%s: what is prepared was read %d times, %v", when, counts.n, err)
		}
	}
	b.label(map[string]string{ack.NodeLabelSchedule: "share", ack.NodeLabelPlacement: "spread"})
	expect.NoError(t, b.restore(t.Context()))
	pass("at the start")
	b.mode("topology")
	pass("closing")
	b.clock.Step(mode.Settle)
	pass("waiting")
	b.records = nil
	pass("changing")
}
