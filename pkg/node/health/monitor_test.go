// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// node is a node's monitor, its file, and what it told.
type node struct {
	t      *testing.T
	clock  *testclock.FakePassiveClock
	file   string
	boot   string
	told   []string
	events []string
}

func newNode(t *testing.T) *node {
	return &node{t: t, clock: testclock.NewFakePassiveClock(begin), boot: "boot-1",
		file: filepath.Join(t.TempDir(), "health.json")}
}

func (n *node) Warn(reason, message string) {
	n.events = append(n.events, "Warning "+reason+" "+message)
}
func (n *node) Normal(reason, message string) {
	n.events = append(n.events, "Normal "+reason+" "+message)
}
func (n *node) Clear(string) {}

// begun is a Monitor that starts as it should.
func (n *node) begun() *Monitor {
	n.t.Helper()
	m, err := n.start()
	expect.NoError(n.t, err)
	return m
}

func (n *node) start() (*Monitor, error) {
	n.told = nil
	return NewMonitor(n.t.Context(), Options{Ignored: DefaultIgnored(), File: n.file, BootID: n.boot, Events: n,
		Clock: n.clock, Changed: func(unhealthy map[string]Unhealthy) {
			var reasons []string
			for _, uuid := range []string{"GPU-a", "GPU-b"} {
				if u, ok := unhealthy[uuid]; ok {
					reasons = append(reasons, uuid+"="+u.Reason)
				}
			}
			n.told = append(n.told, strings.Join(reasons, " "))
		}})
}

func (n *node) after(d time.Duration) { n.clock.SetTime(n.clock.Now().Add(d)) }

func xid(uuid string, number uint64) gpu.Event {
	return gpu.Event{UUID: uuid, Kind: gpu.EventXID, XID: number}
}

func well(uuid string) gpu.Condition { return gpu.Condition{UUID: uuid, Recovery: gpu.RecoveryNone} }

func TestFirstEventIsToldAtOnceAndOthersWithinASecond(t *testing.T) {
	n := newNode(t)
	m := n.begun()
	m.Event(t.Context(), xid("GPU-a", 79))
	m.Event(t.Context(), xid("GPU-b", 95))
	expect.Equal(t, []string{"GPU-a=xid-79"}, n.told, "at once")
	n.after(reportInterval)
	m.Observe(t.Context(), []gpu.Condition{well("GPU-a"), well("GPU-b")})
	for range 6 {
		n.after(reportInterval)
		m.Observe(t.Context(), []gpu.Condition{well("GPU-a"), well("GPU-b")})
	}
	expect.Equal(t, []string{"GPU-a=xid-79", "GPU-a=xid-79 GPU-b=xid-95", ""}, n.told, "told")
	if len(n.events) != 3 || !strings.Contains(n.events[1], "GPU-a: XID 79") || !strings.Contains(n.events[1], "GPU-b") ||
		!strings.HasPrefix(n.events[2], "Normal GPUHealthy") {
		t.Errorf("Events %q", n.events)
	}
}

// What is told is a write to the API server. GPUs that come and go without end cost one a
// second, and each is told within two seconds of its first error.
func TestGPUsThatFlapAreToldOnceASecond(t *testing.T) {
	n := newNode(t)
	var told []time.Time
	m, err := NewMonitor(t.Context(), Options{File: n.file, BootID: n.boot, Events: n, Clock: n.clock,
		Changed: func(map[string]Unhealthy) { told = append(told, n.clock.Now()) }})
	expect.NoError(t, err)
	const step, gpus = 100 * time.Millisecond, 8
	random, end := rand.New(rand.NewPCG(1, 2)), begin.Add(time.Minute)
	failed := map[string]time.Time{}
	for tick := 0; n.clock.Now().Before(end); tick++ {
		uuid := fmt.Sprintf("GPU-%d", random.IntN(gpus))
		if _, known := failed[uuid]; !known {
			failed[uuid] = n.clock.Now()
		}
		m.Event(t.Context(), xid(uuid, 79))
		if tick%10 == 5 {
			var conditions []gpu.Condition
			for i := range gpus {
				c := well(fmt.Sprintf("GPU-%d", i))
				if random.IntN(2) == 0 {
					c = gpu.Condition{UUID: c.UUID, Failure: gpu.FailureLost}
				}
				conditions = append(conditions, c)
			}
			m.Observe(t.Context(), conditions)
		}
		for uuid, since := range failed {
			if _, unhealthy := m.reported[uuid]; !unhealthy && n.clock.Since(since) > 2*time.Second {
				t.Fatalf("%s failed at %s and is not told at %s", uuid, since, n.clock.Now())
			}
		}
		// Tell again, as if each had recovered: the hold keeps real ones from it.
		if tick%7 == 0 {
			m.tracker.gpus = map[string]*tracked{}
			failed = map[string]time.Time{}
		}
		n.after(step)
	}
	if len(told) < 30 {
		t.Errorf("told %d times in a minute: too few to show anything", len(told))
	}
	for i := 1; i < len(told); i++ {
		if apart := told[i].Sub(told[i-1]); apart < reportInterval {
			t.Errorf("told at %s and %s later", told[i-1], apart)
		}
	}
	t.Logf("told %d times in a minute", len(told))
}

// While NVIDIA's driver is replaced no GPU answers, for a minute or more: that is told once,
// and that it is over.
func TestDriverThatGoesAndComesBackIsToldTwice(t *testing.T) {
	n := newNode(t)
	m := n.begun()
	observe := func(times int, failure gpu.Failure) {
		for range times {
			var conditions []gpu.Condition
			for _, uuid := range []string{"GPU-a", "GPU-b"} {
				c := well(uuid)
				if c.Failure = failure; failure != "" {
					c.Recovery, c.Message = gpu.RecoveryUnknown, "no driver"
				}
				conditions = append(conditions, c)
			}
			m.Observe(t.Context(), conditions)
			n.after(reportInterval)
		}
	}
	observe(10, "")
	observe(90, gpu.FailureDriver)
	// The one before ends with the driver, and another one goes on.
	m = n.begun()
	again := n.told
	observe(10, "")
	expect.Equal(t, []string{"GPU-a=no-driver GPU-b=no-driver"}, again, "told by the next plugin")
	expect.Equal(t, []string{"GPU-a=no-driver GPU-b=no-driver", ""}, n.told, "told")
	var unhealthy, healthy int
	for _, event := range n.events {
		unhealthy += strings.Count(event, "Warning GPUUnhealthy")
		healthy += strings.Count(event, "Normal GPUHealthy")
	}
	if unhealthy != 2 || healthy != 1 {
		t.Errorf("Events %q, want that it began by both plugins, and once that it is over", n.events)
	}
}

func TestHealthOutlivesTheProcessAndNotTheBoot(t *testing.T) {
	n := newNode(t)
	m := n.begun()
	m.Event(t.Context(), xid("GPU-a", 79))
	for name, tc := range map[string]struct {
		boot string
		want []string
	}{
		"the same boot": {"boot-1", []string{"GPU-a=xid-79"}},
		"another boot":  {"boot-2", nil},
	} {
		n.boot = tc.boot
		next := n.begun()
		expect.Equal(t, tc.want, n.told, "%s: told", name)
		expect.Equal(t, len(tc.want), len(next.tracker.Unhealthy()), "%s: unhealthy", name)
		n.boot = "boot-1"
		expect.NoError(t, save(n.file, n.boot, m.tracker.Unhealthy()))
	}
}

// What only a recovery action ends, a restart does not: the driver tells of none here, and the error came when the GPU
// was unhealthy already.
func TestErrorAfterAnotherReasonOutlivesTheProcess(t *testing.T) {
	for name, tc := range map[string]struct {
		then func(m *Monitor)
		want int
	}{
		"no error": {func(*Monitor) {}, 0},
		"an error": {func(m *Monitor) { m.Event(t.Context(), xid("GPU-a", 119)) }, 1},
		"a reset due": {func(m *Monitor) {
			m.Observe(t.Context(), []gpu.Condition{{UUID: "GPU-a", Recovery: gpu.RecoveryReset}})
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			m := n.begun()
			answers := func(times int, c gpu.Condition) {
				for c.UUID = "GPU-a"; times > 0; times-- {
					m.Observe(t.Context(), []gpu.Condition{c})
					n.after(reportInterval)
				}
			}
			answers(3, gpu.Condition{Failure: gpu.FailureNoAnswer})
			tc.then(m)
			answers(2, gpu.Condition{Recovery: gpu.RecoveryUnknown})
			m = n.begun()
			answers(10, gpu.Condition{Recovery: gpu.RecoveryUnknown})
			expect.Equal(t, tc.want, len(m.tracker.Unhealthy()), "GPUs that are unhealthy after the restart")
		})
	}
}

func TestDamagedFile(t *testing.T) {
	for name, content := range map[string]string{"no JSON": "{", "another version": `{"version":7}`, "empty": ""} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			expect.NoError(t, os.WriteFile(n.file, []byte(content), 0o600))
			m, err := n.start()
			expect.Error(t, err, n.file)
			m.Event(t.Context(), xid("GPU-a", 79))
			if _, err := n.start(); err != nil || len(n.told) != 1 {
				t.Errorf("afterwards: %v, told %q", err, n.told)
			}
		})
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"version":1,"bootID":"b","gpus":{"GPU-a":{"reason":"lost","message":"m"}}}`))
	f.Add([]byte(`{"version":1,"gpus":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(t.TempDir(), "health.json")
		expect.NoError(t, os.WriteFile(file, data, 0o600))
		known, err := load(file, "b")
		if err != nil && known != nil {
			t.Errorf("%v beside %v", known, err)
		}
		NewTracker(nil, known).Unhealthy()
	})
}
