// SPDX-License-Identifier: Apache-2.0

// Package watch reads every two seconds what processes hold of the node's GPUs, has
// pkg/node/audit judge it, and tells it in Events. It evicts pods if it is told to, and touches
// nothing else: no process is ended.
package watch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/beat"
	"github.com/gpushare/dra-driver-gpushare/internal/news"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// DefaultInterval is how often the GPUs are read.
const DefaultInterval = 2 * time.Second

// Options are what a Watch works with.
type Options struct {
	NodeName string
	// OwnPod is the UID of the pod that this process runs in. What else is in its namespace
	// is the driver's, or an administrator's.
	OwnPod types.UID
	// GPUs is an *nvml.Uses, Processes are those of the node.
	GPUs interface {
		Read(ctx context.Context) ([]gpu.Use, error)
	}
	Processes interface {
		Places(pid int) ([]podcgroup.Place, error)
		Program(pid int) (string, error)
	}
	// Supervisor is gpu-mps-supervisor's process, 0 if there is none.
	Supervisor func() (pid int, err error)
	// OfPlugin reports whether the kubelet has it that a device plugin gave the pod GPUs. An error means that this cannot
	// be had.
	OfPlugin func(ctx context.Context, pod audit.Pod) (bool, error)
	// OfDriver reports whether it is known that another DRA driver gave the pod the GPU; one that is away tells it no
	// more.
	OfDriver func(pod audit.Pod, uuid string) bool
	Pods     *Pods
	Granted  func(ctx context.Context) (audit.Granted, error)
	// Counted is what the driver counts for containers whose memory it limits; nil for none.
	Counted func(ctx context.Context) map[string][]audit.Counted
	Client  kubernetes.Interface
	// Events are those of pods, NodeEvents of the node.
	Events     *report.Reporter
	NodeEvents report.NodeEvents
	Clock      clock.Clock
	Interval   time.Duration
	// ExemptNamespaces are further namespaces whose pods may use any GPU.
	ExemptNamespaces []string
	MPSOverheadMiB   int64
	// ClientSlots is how many processes MPS serves on a GPU.
	ClientSlots int
	Eviction    audit.Eviction
}

// Watch is an audit of one node.
type Watch struct {
	Options
	tracker *audit.Tracker
	peaks   audit.Peaks
	others  others
	// supervisor are the pods that gpu-mps-supervisor was last seen in, outermost first.
	supervisor []types.UID
	// tellsMPS says that a client of MPS was seen.
	tellsMPS bool
	// told is what was told last, evicted which pods were evicted, or to be.
	told    map[told]bool
	evicted map[types.UID]*attempt
	news    news.Teller

	mu       sync.Mutex
	snapshot audit.Snapshot
}

// told is what was told under a reason.
type told struct {
	kind audit.Kind
	pod  types.UID
}

// New returns a Watch, which has to Run.
func New(o Options) *Watch {
	return &Watch{Options: o, tracker: audit.NewTracker(), told: map[told]bool{}, evicted: map[types.UID]*attempt{},
		others: others{client: o.Client, nodeName: o.NodeName, ofPlugin: o.OfPlugin, ofDriver: o.OfDriver,
			known: map[question]answer{}}}
}

// Run reads and judges until the context ends.
func (w *Watch) Run(ctx context.Context) {
	for {
		w.Look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-beat.Late(w.Clock, w.Interval): // the GPUs are asked for their health at the beat
		}
	}
}

// Snapshot returns the last snapshot, and false before the GPUs have been read once. It may be called while Run runs.
func (w *Watch) Snapshot() (audit.Snapshot, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.snapshot, !w.snapshot.Time.IsZero()
}

// Look reads and judges once. Run does it again and again.
func (w *Watch) Look(ctx context.Context) {
	uses, err := w.GPUs.Read(ctx)
	// What is not known of one GPU keeps nothing from the others.
	if len(uses) == 0 && err != nil {
		w.say(ctx, err)
		return
	}
	now := w.Clock.Now()
	in, grantedErr := w.input(ctx, uses)
	w.say(ctx, errors.Join(err, grantedErr))
	judged := audit.Judge(in)
	var answered []string
	if grantedErr == nil {
		for _, use := range uses {
			answered = append(answered, use.UUID)
		}
		w.tracker.Observe(now, w.confirm(ctx, judged.Findings, now), answered)
		w.tell(ctx)
		w.evict(ctx, now)
	}
	w.peaks.Observe(judged.Claims, in.Claims)
	holding, found := w.tracker.Counts()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.snapshot = audit.Snapshot{Time: now, GPUs: uses, Claims: judged.Claims, Peaks: w.peaks.List(),
		Holding: holding, Found: found}
}

// input finds out whose the processes are, and what was granted. Where there are no processes,
// nobody is asked. An error is one of Granted, beside all else.
func (w *Watch) input(ctx context.Context, uses []gpu.Use) (audit.Input, error) {
	in := audit.Input{GPUs: uses, Owners: map[int]audit.Owner{}}
	if w.Counted != nil {
		in.Counted = w.Counted(ctx)
	}
	if len(in.Counted) == 0 && !slices.ContainsFunc(uses, func(use gpu.Use) bool { return len(use.Processes) > 0 }) {
		return in, nil
	}
	var err error
	in.Granted, err = w.Granted(ctx)
	uids := map[types.UID]bool{}
	for _, counted := range in.Counted {
		for _, c := range counted {
			uids[c.Pod] = true
		}
	}
	for _, use := range uses {
		for _, p := range use.Processes {
			w.tellsMPS = w.tellsMPS || use.TellsMPS && p.MPSClient
			if _, known := in.Owners[p.PID]; known {
				continue
			}
			places, err := w.Processes.Places(p.PID)
			if err != nil {
				// It ended, or it is in none of our PID namespaces.
				continue
			}
			var owner audit.Owner
			for _, place := range places {
				owner.Places = append(owner.Places, audit.Place{Pod: place.Pod, Container: place.Container})
				uids[place.Pod] = true
			}
			in.Owners[p.PID] = owner
		}
	}
	in.Pods, in.PodsUnread = w.Pods.Of(ctx, uids, in.Claims)
	w.readPrograms(ctx, &in)
	in.Rules = audit.Rules{ExemptNamespaces: map[string]bool{}, MPSOverheadMiB: w.MPSOverheadMiB, TellsMPS: w.tellsMPS,
		ClientSlots: w.ClientSlots}
	for _, namespace := range w.ExemptNamespaces {
		in.ExemptNamespaces[namespace] = true
	}
	if own := w.Pods.namespaceOf(w.OwnPod); own != "" {
		in.ExemptNamespaces[own] = true
	}
	return in, err
}

// readPrograms reads the programs of processes that are in no known pod.
func (w *Watch) readPrograms(ctx context.Context, in *audit.Input) {
	for pid, owner := range in.Owners {
		known := false
		for _, place := range owner.Places {
			known = known || in.Pods[place.Pod] != nil
		}
		if known {
			continue
		}
		program, err := w.Processes.Program(pid)
		if err != nil {
			delete(in.Owners, pid)
			continue
		}
		owner.Program = program
		owner.OfSupervisor = owner.NamedMPSServer() && w.ofSupervisor(ctx, owner)
		in.Owners[pid] = owner
	}
}

// confirm leaves out what other drivers have granted, and device plugins.
func (w *Watch) confirm(ctx context.Context, findings []audit.Finding, now time.Time) []audit.Finding {
	out := findings[:0]
	for _, f := range findings {
		if len(f.Unread) > 0 || f.AsksPlugin {
			granted, err := w.others.granted(ctx, f, now)
			if err != nil {
				klog.FromContext(ctx).V(2).Info("Nothing is said of a pod on a GPU, for it is not known what it was given", "pod",
					klog.KRef(f.Pod.Namespace, f.Pod.Name), "gpu", f.Index, "err", err)
			}
			if granted || err != nil {
				continue
			}
		}
		out = append(out, f)
	}
	return out
}

var reasonOf = map[audit.Kind]string{
	audit.OverShare:   v1alpha1.ReasonShareExceeded,
	audit.NoGrant:     v1alpha1.ReasonUsedWithoutGrant,
	audit.BesideMPS:   v1alpha1.ReasonUsedBesideMPS,
	audit.NoPod:       v1alpha1.ReasonUsedByNoPod,
	audit.ClientSlots: v1alpha1.ReasonClientSlots,
	audit.PastLimit:   v1alpha1.ReasonMemoryPastLimit,
	audit.GonePod:     v1alpha1.ReasonUsedByGonePod,
}

// tell says what holds, and takes back what does not hold any more.
func (w *Watch) tell(ctx context.Context) {
	holding := w.tracker.Holding()
	now := map[told]bool{}
	for _, t := range audit.Tell(holding, w.Eviction) {
		about := told{t.Kind, t.Pod.UID}
		now[about] = true
		if !w.told[about] {
			klog.FromContext(ctx).Info("GPUs are not used as they were granted", "finding", t.Kind, "pod",
				klog.KRef(t.Pod.Namespace, t.Pod.Name), "message", t.Message)
		}
		if t.Kind.OnNode() {
			w.NodeEvents.Warn(reasonOf[t.Kind], t.Message)
		} else {
			w.Events.Warn(reference(t.Pod), reasonOf[t.Kind], t.Message)
		}
	}
	for about := range w.told {
		switch {
		case now[about]:
		case about.kind.OnNode():
			w.NodeEvents.Clear(reasonOf[about.kind])
		default:
			w.Events.Clear(about.pod, reasonOf[about.kind])
		}
	}
	w.told = now
	w.forgetEvicted(holding)
}

// say logs an error once.
func (w *Watch) say(ctx context.Context, err error) {
	if w.news.IsError(err) {
		klog.FromContext(ctx).Error(err, "What GPUs are used for is not known of all of them, will try again", "every",
			w.Interval)
	}
}
