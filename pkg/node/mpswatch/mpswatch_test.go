// SPDX-License-Identifier: Apache-2.0

package mpswatch

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/reporttest"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// bench is a watch, and whom it told what.
type bench struct {
	*Watch
	pods  *record.FakeRecorder
	clock *testingclock.FakeClock
	node  nodeEvents
}

// nodeEvents are those of the node.
type nodeEvents struct{ *record.FakeRecorder }

func (n nodeEvents) Warn(reason, message string)   { n.Event(nil, "Warning", reason, message) }
func (n nodeEvents) Normal(reason, message string) { n.Event(nil, "Normal", reason, message) }
func (n nodeEvents) Clear(string)                  {}

func newBench(t *testing.T) *bench {
	b := &bench{pods: record.NewFakeRecorder(20), clock: testingclock.NewFakeClock(time.Now()),
		node: nodeEvents{record.NewFakeRecorder(20)}}
	names := map[types.UID]types.NamespacedName{"a": {Namespace: "team", Name: "a"}, "b": {Namespace: "team", Name: "b"},
		"c": {Namespace: "other", Name: "c"}}
	b.Watch = New(Options{Dir: mps.Dir(t.TempDir()), Clock: b.clock,
		Events: report.New(b.pods, b.clock), NodeEvents: b.node,
		Pods: func(_ context.Context, uids map[types.UID]bool) (map[types.UID]types.NamespacedName, error) {
			found := map[types.UID]types.NamespacedName{}
			for uid := range uids {
				if name, known := names[uid]; known {
					found[uid] = name
				}
			}
			return found, nil
		}})
	return b
}

func (b *bench) fault(t *testing.T, dir mps.Dir, f mps.Fault) {
	t.Helper()
	for _, uuid := range []string{"GPU-1", "GPU-2"}[:map[bool]int{true: 1, false: 2}[dir == b.Dir]] {
		expect.NoError(t, dir.SetStatus(uuid, mps.Status{State: mps.Down, Fault: &f}))
	}
	b.Look(t.Context())
}

// Whoever lost a program by another one's fault is told so, once; the node has all names, and a pod none of another
// namespace.
func TestFaultIsTold(t *testing.T) {
	b := newBench(t)
	culprit := mps.Client{PID: 11, Program: "train", Pod: "a"}
	f := mps.Fault{Seen: b.clock.Now(), Until: b.clock.Now().Add(30 * time.Second), XID: 31, Culprit: &culprit,
		Lost: []mps.Client{culprit, {PID: 12, Program: "serve", Pod: "b"}, {PID: 13, Program: "serve", Pod: "c"},
			{PID: 14, Program: "gone"}}}
	b.fault(t, b.Dir, f)
	reporttest.Told(t, b.node.FakeRecorder, "GPUMPSFault", "On GPU-1 a fatal fault of one program (XID 31)",
		"by the kernel's log process 11 (train) of pod team/a", "process 12 (serve) of pod team/b",
		"process 13 (serve) of pod other/c", "process 14 (gone)", "at the latest")
	told := map[bool]int{}
	for range 3 {
		event := <-b.pods.Events
		ofTeam := strings.Contains(event, "by the kernel's log process 11 (train) of pod team/a")
		told[ofTeam]++
		if strings.Contains(event, "other/c") == ofTeam || !strings.Contains(event, "of another namespace, which the") ||
			!strings.Contains(event, "at the latest") {
			t.Errorf("a pod is told %q", event)
		}
	}
	if told[true] != 2 || told[false] != 1 {
		t.Errorf("%v were told, want both of the namespace and the other one", told)
	}
	b.Look(t.Context())
	reporttest.Told(t, b.node.FakeRecorder)

	f.Over = b.clock.Now()
	b.fault(t, b.Dir, f)
	reporttest.Told(t, b.node.FakeRecorder, "GPUMPSFault", "takes programs again since")
	b.fault(t, b.Dir, f)
	reporttest.Told(t, b.node.FakeRecorder)
	reporttest.Told(t, b.pods)
}

func TestFaultOfWhichNobodyIsKnown(t *testing.T) {
	b := newBench(t)
	b.fault(t, b.Dir, mps.Fault{Seen: b.clock.Now(), Over: b.clock.Now(),
		Lost: []mps.Client{{PID: 12, Program: "serve", Pod: "b"}}})
	reporttest.Told(t, b.node.FakeRecorder, "neither MPS nor the kernel's log names", "since")
	reporttest.Told(t, b.pods, "the kernel's log names", "process 12 (serve) of pod team/b")
}

// The one daemon of a node has one fault, whatever the number of its GPUs.
func TestFaultOfTheDaemonForAllGPUs(t *testing.T) {
	b := newBench(t)
	b.fault(t, b.Dir.OfNode(), mps.Fault{Seen: b.clock.Now(), Lost: []mps.Client{{PID: 12, Program: "serve", Pod: "b"}}})
	reporttest.Told(t, b.node.FakeRecorder, "GPUMPSFault", "again when these have ended")
	reporttest.Told(t, b.node.FakeRecorder)
}

// A plugin that starts does not tell again what the one before it has.
func TestOldFault(t *testing.T) {
	b := newBench(t)
	b.fault(t, b.Dir, mps.Fault{Seen: b.clock.Now().Add(-2 * freshFor), Lost: []mps.Client{{PID: 12, Pod: "b"}}})
	reporttest.Told(t, b.node.FakeRecorder)
}

// A pod whose container waits for a daemon says so while it does.
func TestContainerThatWaits(t *testing.T) {
	b := newBench(t)
	release, err := b.Dir.Hold()
	expect.NoError(t, err)
	expect.NoError(t, b.Dir.SetStatus("GPU-1", mps.Status{State: mps.Late, Reason: "it is busy"}))
	ended := make(chan error, 1)
	go func() {
		ended <- b.Dir.Await(t.Context(), []string{"GPU-1"}, mps.Waiting{ID: "c", Namespace: "team", Pod: "a", UID: "a"})
	}()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if waiting, err := b.Dir.Waiting("GPU-1"); err != nil || len(waiting) > 0 {
			break
		}
	}
	b.Look(t.Context())
	reporttest.Told(t, b.pods, "GPUContainerWaiting", "waits to start on GPU-1", "it is busy")
	b.Look(t.Context())
	reporttest.Told(t, b.pods)
	expect.NoError(t, b.Dir.SetStatus("GPU-1", mps.Status{State: mps.Ready}))
	expect.Error(t, <-ended)
	b.Look(t.Context())
	expect.Equal(t, 0, len(b.waiting), "still waiting: %v", b.waiting)
	expect.Error(t, release())
}
