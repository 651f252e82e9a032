// SPDX-License-Identifier: Apache-2.0

// Package health decides which of a node's GPUs are healthy, from what the driver tells of
// them: events, and answers to being asked every second. A GPU that is not gets no new
// claims; it gets them again, without a restart, when the driver has nothing more to
// recover.
package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

const (
	// holdAtLeast is how long a GPU has to have been well before it is healthy again, and
	// goodAnswers how many good answers in a row it has to have given. The time doubles
	// with each relapse within relapseWindow, up to holdAtMost: a GPU that comes and goes
	// costs the API server a write each time, and its pods their work.
	holdAtLeast   = 5 * time.Second
	holdAtMost    = 5 * time.Minute
	relapseWindow = 10 * time.Minute
	goodAnswers   = 3
)

// Unhealthy says why a GPU takes no new claims.
type Unhealthy struct {
	// Reason is short and stable, such as "xid-79", "lost" or "recovery-gpu-reset": the
	// value of the taint.
	Reason string `json:"reason"`
	// Message says it in words.
	Message string `json:"message"`
	// Since is when it began.
	Since time.Time `json:"since"`
	// NeedsAction is that there was an event, at first or since, or that the driver asked for a recovery action. Good
	// answers do not end that: only the recovery action "none" does.
	NeedsAction bool `json:"needsAction,omitempty"`
}

// Equal reports whether both mean the same.
func (u Unhealthy) Equal(v Unhealthy) bool {
	return u.Reason == v.Reason && u.Message == v.Message && u.Since.Equal(v.Since) && u.NeedsAction == v.NeedsAction
}

// Tracker knows which GPUs are unhealthy. It is pure; the time is told. It is not safe for
// concurrent use.
type Tracker struct {
	ignored []XID
	// gpus are GPUs, and instances of GPUs in MIG mode, by UUID.
	gpus map[string]*tracked
	// instances are those of GPUs in MIG mode, by the UUIDs of these and then their own.
	instances map[string]map[string]gpu.InstanceID
}

// tracked is what is known of one GPU.
type tracked struct {
	unhealthy *Unhealthy
	// lastBad is when something was last wrong, as far as that is known, good the number of good answers since.
	lastBad time.Time
	good    int
	// recovered is when it last became healthy, relapses how often it did not stay so.
	recovered time.Time
	relapses  int
}

// NewTracker returns a Tracker of GPUs that were unhealthy when a former one was asked
// last, by UUID. Events of the ignored XIDs mean nothing to it.
func NewTracker(ignored []XID, known map[string]Unhealthy) *Tracker {
	t := &Tracker{ignored: ignored, gpus: map[string]*tracked{}, instances: map[string]map[string]gpu.InstanceID{}}
	for uuid, u := range known {
		u.NeedsAction = u.NeedsAction || needsAction(u.Reason)
		t.gpus[uuid] = &tracked{unhealthy: &u, lastBad: u.Since}
	}
	return t
}

// Unhealthy returns the GPUs that are, and the instances of GPUs in MIG mode that are by themselves, by UUID.
func (t *Tracker) Unhealthy() map[string]Unhealthy {
	out := map[string]Unhealthy{}
	for uuid, g := range t.gpus {
		if g.unhealthy != nil {
			out[uuid] = *g.unhealthy
		}
	}
	return out
}

// Event notes an event of the driver. One of an unknown GPU changes nothing: Observe shows within a
// second which GPU it was.
func (t *Tracker) Event(e gpu.Event, now time.Time) {
	if e.UUID == "" || e.Kind == gpu.EventRecoveryChanged || e.Kind == gpu.EventMIGChanged {
		return
	}
	reason, message := string(e.Kind), meaningOf[e.Kind]
	if e.Kind == gpu.EventXID {
		xid := XID(e.XID)
		if slices.Contains(t.ignored, xid) {
			return
		}
		reason, message = fmt.Sprintf("xid-%d", e.XID), xid.String()
	}
	for _, uuid := range t.affected(e) {
		g := t.gpu(uuid)
		g.bad(reason, message, now)
		g.unhealthy.NeedsAction = true
	}
}

// affected are the UUIDs that an event is about: those of instances where it is about one, none if no claim can
// have that, and the GPU's if its instances are not known.
func (t *Tracker) affected(e gpu.Event) []string {
	instances, known := t.instances[e.UUID]
	if !e.OfInstance || !known {
		return []string{e.UUID}
	}
	var affected []string
	for uuid, id := range instances {
		if id.GI == e.Instance.GI && (id.CI == e.Instance.CI || e.Instance.CI == gpu.NoCI) {
			affected = append(affected, uuid)
		}
	}
	return affected
}

var meaningOf = map[gpu.EventKind]string{
	gpu.EventDoubleBitECC: "a double bit ECC error",
	gpu.EventRemapFailure: "a memory page or row that failed could not be replaced",
	gpu.EventPoison:       "a fatal memory error (poison)",
	gpu.EventUnavailable:  "the driver calls the GPU unavailable",
}

// needsAction is Unhealthy.NeedsAction by the reason: files of before have no more.
func needsAction(reason string) bool {
	return !slices.Contains([]string{string(gpu.FailureLost), string(gpu.FailureNoAnswer), string(gpu.FailureError),
		string(gpu.FailureDriver)}, reason)
}

// ObserveAll notes what all GPUs answer. An instance that none of them lists is gone, and forgotten.
func (t *Tracker) ObserveAll(conditions []gpu.Condition, now time.Time) {
	there, sure := map[string]bool{}, len(conditions) > 0
	for _, c := range conditions {
		t.Observe(c, now)
		sure = sure && c.Failure == ""
		for uuid := range c.Instances {
			there[uuid] = true
		}
	}
	for uuid := range t.gpus {
		if sure && isInstance(uuid) && !there[uuid] {
			delete(t.gpus, uuid)
		}
	}
}

// isInstance tells the UUIDs of MIG devices from those of GPUs, as NVIDIA's tools do.
func isInstance(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// Observe notes a GPU's answer.
func (t *Tracker) Observe(c gpu.Condition, now time.Time) {
	if c.Instances == nil {
		delete(t.instances, c.UUID)
	} else {
		t.instances[c.UUID] = c.Instances
	}
	t.observeGPU(c, now)
	for uuid := range c.Instances {
		if t.gpus[uuid] != nil {
			t.observeInstance(t.gpus[uuid], c, now)
		}
	}
}

// observeInstance notes, for an instance that is unhealthy by itself, what its GPU answers. What is wrong with the
// whole GPU makes the GPU unhealthy, not the instance.
func (t *Tracker) observeInstance(g *tracked, c gpu.Condition, now time.Time) {
	switch {
	case c.Failure != "" || c.Recovery != gpu.RecoveryUnknown && c.Recovery != gpu.RecoveryNone:
		g.lastBad, g.good = now, 0
	case g.unhealthy == nil || g.unhealthy.NeedsAction && c.Recovery != gpu.RecoveryNone:
	default:
		g.answered(now)
	}
}

func (t *Tracker) observeGPU(c gpu.Condition, now time.Time) {
	g := t.gpus[c.UUID]
	wrong := c.Failure != "" || c.Recovery != gpu.RecoveryUnknown && c.Recovery != gpu.RecoveryNone
	if g == nil && !wrong {
		return
	}
	g = t.gpu(c.UUID)
	switch {
	case c.Failure != "":
		g.bad(string(c.Failure), c.Message, now)
	case wrong:
		g.bad("recovery-"+string(c.Recovery), fmt.Sprintf("the driver asks for the recovery action %q", c.Recovery), now)
		g.unhealthy.NeedsAction = true
	case g.unhealthy == nil:
	case g.unhealthy.NeedsAction && c.Recovery != gpu.RecoveryNone:
		// The driver does not tell whether the GPU is well again.
	default:
		g.answered(now)
	}
}

func (t *Tracker) gpu(uuid string) *tracked {
	if t.gpus[uuid] == nil {
		t.gpus[uuid] = &tracked{}
	}
	return t.gpus[uuid]
}

// bad makes the GPU unhealthy. It keeps the first reason: those that follow are mostly its
// consequences.
func (g *tracked) bad(reason, message string, now time.Time) {
	g.lastBad, g.good = now, 0
	if g.unhealthy != nil {
		return
	}
	if !g.recovered.IsZero() && now.Sub(g.recovered) < relapseWindow {
		g.relapses++
	} else {
		g.relapses = 0
	}
	g.unhealthy = &Unhealthy{Reason: reason, Message: message, Since: now}
}

func (g *tracked) answered(now time.Time) {
	if g.lastBad.After(now) {
		// It is of before a restart, and the clock was set back since.
		g.lastBad = now
	}
	g.good++
	if g.good < goodAnswers || now.Sub(g.lastBad) < g.hold() {
		return
	}
	g.unhealthy, g.recovered = nil, now
}

// hold is how long the GPU has to have been well before it is healthy.
func (g *tracked) hold() time.Duration {
	return backoff.Doubling{Least: holdAtLeast, Most: holdAtMost}.After(g.relapses + 1)
}
