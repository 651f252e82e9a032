// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// publisherSays is a publisherStatus.
type publisherSays publish.Status

func (p publisherSays) Status() publish.Status               { return publish.Status(p) }
func (publisherSays) Unhealthy() map[string]health.Unhealthy { return nil }

// nodeWith is a node with one GPU, whose daemon has ended, and these claims.
func nodeWith(records []state.Record, status publish.Status, used audit.Snapshot) nodeSource {
	return nodeSource{
		prepared: func(context.Context) ([]state.Record, error) { return records, nil },
		machine: func() *gpu.Machine {
			return &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-a", Model: "T4", MemoryMiB: 15360}}}
		},
		pods: func(context.Context, *gpu.Machine) (held.Reserved, error) {
			return held.Reserved{}, held.ErrPodsUnread
		},
		publisher: publisherSays(status),
		daemons:   func(string) (mps.Status, error) { return mps.Status{State: mps.Down, Restarts: 2}, nil },
		audit:     func() (audit.Snapshot, bool) { return used, true }, memoryLimits: func() map[string]string { return nil },
		clock: clocktesting.NewFakeClock(time.Unix(100, 0)), stale: auditStale,
	}
}

func recordOf(phase state.Phase, name, backend string, pods ...string) state.Record {
	r := state.Record{Phase: phase, Namespace: "ns", Name: name, PodNames: pods, Grants: []claim.Grant{{Mode: mode.MPS,
		Units: 3, Slots: 1, Isolation: backend, GPU: claim.GPU{UUID: "GPU-a", MemoryMiB: 15360}}}}
	for _, pod := range pods {
		r.Pods = append(r.Pods, types.UID(pod))
	}
	return r
}

// A claim counts from when it is prepared, and is a pod's as long as no other uses it.
func TestClaimsOfTheMetrics(t *testing.T) {
	joined := recordOf(state.Prepared, "joined", mode.IsolationNone, "first")
	joined.Pods = append(joined.Pods, "second")
	n, err := nodeWith([]state.Record{
		recordOf(state.Prepared, "one", mode.IsolationNone, "pod"),
		recordOf(state.Preparing, "cut-off", mode.IsolationNone, "pod"), joined,
	}, publish.Status{}, audit.Snapshot{}).look(t.Context())
	expect.NoError(t, err)
	var got [][2]string
	for _, c := range n.Claims {
		got = append(got, [2]string{c.Name, c.Pod})
	}
	expect.Equal(t, [][2]string{{"one", "pod"}, {"joined", ""}}, got, "claims and their pods")
	if n.Daemons != nil || n.Prepared[mode.MPS] != 2 {
		t.Errorf("daemons %v, prepared %v", n.Daemons, n.Prepared)
	}
}

// Daemons are shown where something uses them: elsewhere they have ended, and that is well.
func TestDaemonsOfTheMetrics(t *testing.T) {
	want := []metrics.Daemon{{ID: metrics.ID{UUID: "GPU-a"}, Restarts: 2}}
	for name, source := range map[string]nodeSource{
		"a claim": nodeWith([]state.Record{recordOf(state.Prepared, "one", mode.IsolationMPS)}, publish.Status{},
			audit.Snapshot{}),
		"a device": nodeWith(nil, publish.Status{Devices: []publish.DeviceStatus{{Isolation: mode.IsolationMPS}}},
			audit.Snapshot{}),
	} {
		n, err := source.look(t.Context())
		expect.NoError(t, err)
		expect.Equal(t, want, n.Daemons, "%s uses MPS", name)
	}
}

// What was used a while ago says nothing of now; what cannot be read is said beside the rest.
func TestWhatTheMetricsLeaveOut(t *testing.T) {
	source := nodeWith(nil, publish.Status{Behind: time.Second}, audit.Snapshot{Time: time.Unix(95, 0)})
	if n, err := source.look(t.Context()); err != nil || n.Audit == nil || n.Behind != 1 {
		t.Errorf("of 5 s ago: %+v, %v", n, err)
	}
	source = nodeWith(nil, publish.Status{}, audit.Snapshot{Time: time.Unix(80, 0)})
	if n, err := source.look(t.Context()); err != nil || n.Audit != nil {
		t.Errorf("of 20 s ago: %+v, %v", n, err)
	}
	broken := errors.New("expected by the test")
	source.prepared = func(context.Context) ([]state.Record, error) { return nil, broken }
	if n, err := source.look(t.Context()); !errors.Is(err, broken) || len(n.GPUs) != 1 {
		t.Errorf("without records: %+v, %v", n, err)
	}
	source = nodeWith(nil, publish.Status{}, audit.Snapshot{})
	source.machine = func() *gpu.Machine { return nil }
	_, err := source.look(t.Context())
	expect.NoErrorf(t, err, "a node without GPUs")
	source.publisher = publisherSays{GPUsUnread: true}
	_, err = source.look(t.Context())
	expect.ErrorIs(t, err, errUnreadGPUs)
}
