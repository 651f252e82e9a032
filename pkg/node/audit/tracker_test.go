// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func finding(kind Kind, pod, message string) Finding {
	return Finding{Kind: kind, Pod: Pod{"team", pod, "uid"}, Container: "main", UUID: "GPU-0", Message: message,
		MayEvict: true}
}

// What is seen once is nothing; what comes and goes is one finding; what was over for a
// while is another one.
func TestHysteresis(t *testing.T) {
	tracker, now := NewTracker(), time.Unix(1000, 0)
	all := []string{"GPU-0"}
	over := []Finding{finding(OverShare, "p", "first")}
	read := func(findings []Finding, answered []string, holding int, found int64) {
		t.Helper()
		now = now.Add(2 * time.Second)
		tracker.Observe(now, findings, answered)
		counts, total := tracker.Counts()
		if counts[OverShare] != holding || len(tracker.Holding()) != holding || total[OverShare] != found {
			t.Fatalf("%s: %d hold of %d, want %d of %d", now.Format("05"), counts[OverShare], total[OverShare], holding, found)
		}
	}
	read(over, all, 0, 0)
	read(nil, all, 0, 0)
	read(over, all, 0, 0)
	read([]Finding{finding(OverShare, "p", "second")}, all, 1, 1)
	read([]Finding{finding(OverShare, "p", "third")}, all, 1, 1)
	expect.Equal(t, "second", tracker.Holding()[0].Message, "message of when it was raised")
	for range 14 {
		read(nil, all, 1, 1)
	}
	read(over, all, 1, 1)
	for range 14 {
		read(nil, all, 1, 1)
	}
	// What does not answer tells nothing.
	for range 20 {
		read(nil, nil, 1, 1)
	}
	for range 14 {
		read(nil, all, 1, 1)
	}
	read(nil, all, 0, 1)
	read(over, all, 0, 1)
	read(over, all, 1, 2)
	// Nothing is believed for ever of what does not answer.
	for range 149 {
		read(nil, nil, 1, 2)
	}
	for range 13 {
		read(nil, nil, 1, 2)
	}
	now = now.Add(10 * time.Second)
	read(nil, nil, 0, 2)
}

// A pod that is gone has the time to end that pods have.
func TestPodThatIsGoneMayEnd(t *testing.T) {
	tracker, now := NewTracker(), time.Unix(1000, 0)
	gone := finding(GonePod, "p", "")
	for now.Before(time.Unix(1060, 0)) {
		tracker.Observe(now, []Finding{gone}, []string{"GPU-0"})
		if got := tracker.Holding(); len(got) > 0 {
			t.Fatalf("after %s it is told: %+v", now.Sub(time.Unix(1000, 0)), got)
		}
		now = now.Add(2 * time.Second)
	}
	tracker.Observe(now, []Finding{gone}, []string{"GPU-0"})
	expect.Equal(t, 1, len(tracker.Holding()), "findings that hold after a minute")
}

func TestDue(t *testing.T) {
	const grace = 10 * time.Second
	now := time.Unix(1000, 0)
	static := finding(OverShare, "static", "")
	static.MayEvict = false
	static.Pod.UID = "static"
	beside := finding(BesideMPS, "beside", "")
	beside.Pod.UID = "beside"
	findings := []Finding{finding(OverShare, "p", ""), static, beside}
	tracker := NewTracker()
	due := func(seen []Finding, kinds ...Kind) []string {
		now = now.Add(2 * time.Second)
		tracker.Observe(now, seen, []string{"GPU-0"})
		var names []string
		for _, pod := range tracker.Due(now, kinds, grace) {
			names = append(names, pod.Name)
		}
		return names
	}
	for range 6 {
		expect.Equal(t, nil, due(findings, OverShare, BesideMPS), "due before the grace time is over")
	}
	expect.Equal(t, nil, due(findings), "due for no kind")
	expect.Equal(t, []string{"p"}, due(findings, OverShare), "due for their shares")
	expect.Equal(t, []string{"beside", "p"}, due(findings, OverShare, BesideMPS), "due for their shares and beside MPS")
	expect.Equal(t, []string{"beside"}, due(findings[1:], OverShare, BesideMPS), "due while only one is seen")
}

func TestTell(t *testing.T) {
	var holding []Finding
	for range 6 {
		holding = append(holding, finding(OverShare, "p", "container x holds too much"))
	}
	nobody := Finding{Kind: NoPod, Index: 1, UUID: "GPU-1", Message: "process 7 belongs to no pod"}
	stays := finding(BesideMPS, "q", "container y")
	stays.MayEvict = false
	gone, other := finding(GonePod, "g", "process of g"), finding(GonePod, "h", "process of h")
	told := Tell(append(holding, nobody, stays, gone, other),
		Eviction{Kinds: []Kind{OverShare, BesideMPS}, After: time.Minute})
	if len(told) != 4 {
		t.Fatalf("told %+v, want four messages", told)
	}
	for i, want := range []struct{ has, hasNot string }{
		{"Container x holds too much; container x holds too much; container x holds too much; container x holds too much; " +
			"and 2 more. ", "nothing"},
		{"Process 7 belongs to no pod. ", "evicted"},
		{"Container y. ", "evicted"},
		{"Process of g; process of h. ", "evicted"},
	} {
		if !strings.HasPrefix(told[i].Message, want.has) || strings.Contains(told[i].Message, want.hasNot) {
			t.Errorf("message %q, want %q without %q", told[i].Message, want.has, want.hasNot)
		}
	}
	if !strings.HasSuffix(told[0].Message, " The pod is evicted if this lasts for 1m0s.") {
		t.Errorf("message %q does not warn", told[0].Message)
	}
	if got := Tell(holding, Eviction{}); strings.Contains(got[0].Message, "evicted") {
		t.Errorf("message %q, where nothing is evicted", got[0].Message)
	}
}

func TestParseKinds(t *testing.T) {
	kinds, err := ParseKinds("no-grant, over-share,no-grant,")
	if err != nil || !slices.Equal(kinds, []Kind{NoGrant, OverShare}) {
		t.Errorf("kinds %q, %v", kinds, err)
	}
	if kinds, err := ParseKinds(""); len(kinds) > 0 || err != nil {
		t.Errorf("kinds %q, %v, want none", kinds, err)
	}
	for _, list := range []string{"no-pod", "all", "over-share;no-grant"} {
		_, err := ParseKinds(list)
		expect.Error(t, err, list)
	}
}
