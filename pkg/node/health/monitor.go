// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/statefile"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// reportInterval is the least time between two times that Changed is called, each of which
// costs a write to the API server. It is also how often GPUs are asked.
const reportInterval = time.Second

// logInterval is the least time between two lines in the log about the same event: a program
// can cause thousands of them.
const logInterval = 10 * time.Second

// Options are what a Monitor works with.
type Options struct {
	// Ignored are the XIDs that say nothing of the GPU.
	Ignored []XID
	// File keeps which GPUs are unhealthy beyond the process, until the node is booted
	// again, which BootID tells.
	File   string
	BootID string
	Events report.NodeEvents
	Clock  clock.PassiveClock
	// Changed is called with the unhealthy GPUs, by UUID, when they are others than before.
	Changed func(unhealthy map[string]Unhealthy)
}

// Monitor keeps track of which GPUs are unhealthy, reports it, and keeps it in a file. It is safe for
// concurrent use.
type Monitor struct {
	Options

	mu         sync.Mutex
	tracker    *Tracker
	reported   map[string]Unhealthy
	reportedAt time.Time
	// saved is whether the file has what was reported, notSaved the last error about that in the log.
	saved    bool
	notSaved string
	// logged is when each event was last in the log.
	logged map[gpu.Event]time.Time
}

// NewMonitor returns a Monitor that knows what an earlier one had written to its file, and
// reports it. With an error, which is that the file cannot be read, it works, too: the GPUs are
// asked anyway.
func NewMonitor(ctx context.Context, o Options) (*Monitor, error) {
	known, err := load(o.File, o.BootID)
	m := &Monitor{Options: o, tracker: NewTracker(o.Ignored, known), reported: map[string]Unhealthy{},
		logged: map[gpu.Event]time.Time{}}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.update(ctx)
	return m, err
}

// Event notes an event of the driver.
func (m *Monitor) Event(ctx context.Context, e gpu.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Clock.Now()
	if last, ok := m.logged[e]; !ok || now.Sub(last) >= logInterval {
		m.logged[e] = now
		klog.FromContext(ctx).Info("The driver reports an event of a GPU", "uuid", e.UUID, "kind", e.Kind, "xid", e.XID)
	}
	m.tracker.Event(e, now)
	m.update(ctx)
}

// Observe notes what the GPUs answer. Call it once a second.
func (m *Monitor) Observe(ctx context.Context, conditions []gpu.Condition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.Clock.Now()
	m.tracker.ObserveAll(conditions, now)
	m.update(ctx)
}

// update saves and reports which GPUs are unhealthy, if that changed, but not more often than each
// reportInterval. A save that failed is tried again by the next call.
func (m *Monitor) update(ctx context.Context) {
	if m.Clock.Since(m.reportedAt) < reportInterval {
		return
	}
	unhealthy := m.tracker.Unhealthy()
	same := maps.EqualFunc(m.reported, unhealthy, Unhealthy.Equal)
	if same && m.saved {
		return
	}
	logger := klog.FromContext(ctx)
	if err := save(m.File, m.BootID, unhealthy); err != nil {
		m.saved = false
		if m.notSaved != err.Error() {
			m.notSaved = err.Error()
			logger.Error(err, "Which GPUs are unhealthy is forgotten when the plugin restarts")
		}
	} else {
		m.saved, m.notSaved = true, ""
	}
	if same {
		return
	}
	for uuid, u := range unhealthy {
		if before, ok := m.reported[uuid]; !ok || !before.Equal(u) {
			logger.Info("A GPU is unhealthy", "uuid", uuid, "reason", u.Reason, "message", u.Message)
		}
	}
	for uuid := range m.reported {
		if _, ok := unhealthy[uuid]; !ok {
			logger.Info("A GPU is healthy again", "uuid", uuid)
		}
	}
	m.report(unhealthy)
	m.reported, m.reportedAt = unhealthy, m.Clock.Now()
	m.Changed(unhealthy)
}

// mostReported is how many GPUs an Event names.
const mostReported = 8

func (m *Monitor) report(unhealthy map[string]Unhealthy) {
	if len(unhealthy) == 0 {
		m.Events.Clear(v1alpha1.ReasonUnhealthy)
		if len(m.reported) > 0 {
			m.Events.Normal(v1alpha1.ReasonHealthy, "All GPUs of the node are healthy again and take claims")
		}
		return
	}
	m.Events.Clear(v1alpha1.ReasonHealthy)
	lines := make([]string, 0, len(unhealthy))
	for _, uuid := range slices.Sorted(maps.Keys(unhealthy)) {
		lines = append(lines, fmt.Sprintf("%s: %s", uuid, unhealthy[uuid].Message))
	}
	if more := len(lines) - mostReported; more > 0 {
		lines = append(lines[:mostReported], fmt.Sprintf("and %d more", more))
	}
	m.Events.Warn(v1alpha1.ReasonUnhealthy, "These GPUs take no new claims until the driver has nothing to recover: "+
		strings.Join(lines, "; "))
}

// stored is the format of the file.
type stored struct {
	Version int                  `json:"version"`
	BootID  string               `json:"bootID"`
	GPUs    map[string]Unhealthy `json:"gpus"`
}

const version = 1

func storedIn(path string) statefile.File[stored] {
	return statefile.File[stored]{Path: path, Check: func(s stored) error {
		if s.Version != version {
			return fmt.Errorf("it is of version %d, this plugin knows %d", s.Version, version)
		}
		return nil
	}}
}

// load reads the file. What was before the last boot does not matter: each GPU was
// initialised again.
func load(path, bootID string) (map[string]Unhealthy, error) {
	s, _, err := storedIn(path).Load()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read which GPUs are unhealthy: %w: the GPUs are asked again", err)
	case s.BootID != bootID:
		return nil, nil
	}
	return s.GPUs, nil
}

func save(path, bootID string, unhealthy map[string]Unhealthy) error {
	if err := storedIn(path).Store(stored{Version: version, BootID: bootID, GPUs: unhealthy}); err != nil {
		return fmt.Errorf("write which GPUs are unhealthy: %w", err)
	}
	return nil
}
