// SPDX-License-Identifier: Apache-2.0

// Package defragment has pods with GPUs go to other nodes, as an option, by evicting them: as package scheduling/moves
// plans it, so many an hour, and none while a pod of the last batch waits. Or it only tells what it would do.
//
// What it is about to do is written down before, in an annotation of the controller's Lease, with the time: so a new
// leader evicts nobody a second time, and no more than the rest of the hour's number.
package defragment

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/procs"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling/moves"
)

// Setting is what the controller does, by the names that users know.
type Setting string

const (
	// Off: nothing. DryRun: it tells which pods it would evict. Evict: it evicts them.
	Off    Setting = "none"
	DryRun Setting = "dry-run"
	Evict  Setting = "evict"
)

const (
	// everything is the only key.
	everything = "*"
	// interval is how often the cluster is looked at, or seldom where planning takes more than 1/planPart of the time;
	// it may take planMost at once.
	interval = 5 * time.Second
	seldom   = 5 * time.Minute
	planPart = 100
	planMost = 20 * time.Second
	// batchMost is how many pods are evicted at the same time.
	batchMost = 10
	// settling is how long the pods of a batch may take to be made again.
	settling = 30 * time.Second
	// window is the time in which so many pods are evicted.
	window = time.Hour
)

// Config is what the controller works with.
type Config struct {
	// Cache is asked for live pods, the cluster and PodDisruptionBudgets.
	Cache  *cache.Reader
	Pods   typedcorev1.PodsGetter
	Claims typedresourcev1.ResourceClaimsGetter
	Rules  typedresourcev1.DeviceTaintRulesGetter
	// Leases are those of the driver's namespace.
	Leases typedcoordinationv1.LeaseInterface
	Engine *scheduling.Engine
	Events *report.Reporter
	Clock  clock.PassiveClock
	// Setting is DryRun or Evict, Most how many pods are evicted in an hour.
	Setting Setting
	Most    int
	// Busy is told when moves are planned, and done when they are; nil for nobody.
	Busy procs.Busy
	// Moved counts pods: planned ones that are not evicted, and evicted ones.
	Moved func(Outcome)
}

// Outcome is what became of a planned move.
type Outcome string

const (
	// Planned: it was told. Evicted: the pod was evicted.
	Planned Outcome = "planned"
	Evicted Outcome = "evicted"
)

// Defragmenter has pods go to other nodes.
type Defragmenter struct {
	Config
	work    *manager.Controller
	pods    cache.Live
	caches  cache.Cluster
	budgets *cache.Objects[*policyv1.PodDisruptionBudget]
	// last is the plan of the round before, told the one that was told or made last.
	last, told string
	refused    podstate.RefusedPods
	// known are pods as the API server had them.
	known map[types.UID]scheduling.Pod
	// record is what was read or written last, for Planned.
	record atomic.Pointer[record]
}

// New makes a Defragmenter.
func New(cfg Config) *Defragmenter {
	c := cfg.Cache
	d := &Defragmenter{Config: cfg, pods: c.LivePods(), caches: c.Cluster(), budgets: c.Budgets(),
		refused: podstate.RefusedPods{}, known: map[types.UID]scheduling.Pod{}}
	d.work = manager.NewController("defragment", func(ctx context.Context, _ string) (time.Duration, error) {
		return d.round(ctx)
	})
	d.caches.Nodes.On(cache.Handler[*cache.Node]{Seen: func(*cache.Node) { d.work.EnqueueAfter(everything, interval) }})
	d.pods.On(cache.Handler[*corev1.Pod]{Gone: func(pod *corev1.Pod) { cfg.Events.Forget(pod.UID) }})
	return d
}

// Controller is what is to be run, by one worker.
func (d *Defragmenter) Controller() *manager.Controller { return d.work }

// round looks at the cluster once.
func (d *Defragmenter) round(ctx context.Context) (time.Duration, error) {
	if !d.Cache.Synced() {
		return interval, nil
	}
	now, pods := d.Clock.Now(), d.pods.List()
	r, err := d.readRecord(ctx, now)
	if err != nil {
		return 0, err
	}
	left := min(d.Most-len(r.Moves), batchMost)
	if waits := r.waits(pods, now); waits || left <= 0 {
		klog.FromContext(ctx).V(4).Info("No pod is moved for now", "waits", waits, "movedInAnHour", len(r.Moves))
		return interval, nil
	}
	done := d.Busy.Begin()
	plan, err := d.plan(ctx, pods, r, left, now)
	done()
	again := min(max(interval, planPart*d.Clock.Since(now)), seldom)
	if err != nil {
		return 0, err
	}
	key := keyOf(plan)
	if key != d.last || key == d.told {
		d.last = key
		return again, nil
	}
	d.told = key
	if len(plan.Moves) == 0 {
		klog.FromContext(ctx).V(2).Info("No pod should be on another node", "reason", plan.Why)
		return again, nil
	}
	gain := gainOf(plan)
	klog.FromContext(ctx).Info("Pods should be on other nodes", "moves", key, "gain", gain, "setting", d.Setting)
	if d.Setting != Evict {
		d.tell(plan, gain)
		return again, nil
	}
	// The same moves may be right again.
	d.last, d.told = "", ""
	return again, d.evict(ctx, plan, gain, r, now)
}

// plan plans the moves of a batch.
func (d *Defragmenter) plan(ctx context.Context, pods []*corev1.Pod, r record, most int, now time.Time) (*moves.Plan,
	error) {
	rules, _, err := cache.DeviceTaintRules(ctx, d.Rules)
	if err != nil {
		return nil, fmt.Errorf("pods may be moved in vain without the DeviceTaintRules: %w", err)
	}
	snapshot, err := d.caches.Snapshot(view.NewPools(true), rules)
	if err != nil {
		return nil, err
	}
	d.forget(pods, now)
	c := moves.Cluster{Snapshot: snapshot, Pods: pods, Budgets: d.budgets.List(), Engine: d.Engine, Read: d.readOnce,
		Stays: func(pod *corev1.Pod) bool { return r.moved(pod) || now.Before(d.refused[pod.UID]) }}
	ctx, cancel := context.WithTimeout(ctx, planMost)
	defer cancel()
	return c.Plan(ctx, moves.Question{Most: most})
}

// readOnce is read, once for each version of a pod.
func (d *Defragmenter) readOnce(ctx context.Context, cached *corev1.Pod) (scheduling.Pod, error) {
	read, known := d.known[cached.UID]
	if known && read.Pod.ResourceVersion == cached.ResourceVersion {
		return read, nil
	}
	read, err := d.read(ctx, cached)
	if err == nil && read.Pod != nil {
		d.known[cached.UID] = read
	}
	return read, err
}

// read reads a pod as the API server has it.
func (d *Defragmenter) read(ctx context.Context, cached *corev1.Pod) (scheduling.Pod, error) {
	pod, err := podstate.Current(ctx, d.Pods, cached.Namespace, cached.Name, cached.UID)
	if pod == nil || err != nil {
		return scheduling.Pod{}, err
	}
	claims, there, err := podstate.Claims(ctx, d.Claims, pod)
	if err != nil || !there {
		return scheduling.Pod{}, err
	}
	if own := pod.Status.ExtendedResourceClaimStatus; own != nil {
		claim, err := d.Claims.ResourceClaims(pod.Namespace).Get(ctx, own.ResourceClaimName, metav1.GetOptions{})
		if err != nil {
			return scheduling.Pod{}, fmt.Errorf("look at the claim of pod %s: %w", klog.KObj(cached), err)
		}
		claims = append(claims, claim)
	}
	return scheduling.Pod{Pod: pod, Claims: claims}, nil
}

// forget forgets pods that are gone, and refusals that are long ago.
func (d *Defragmenter) forget(pods []*corev1.Pod, now time.Time) {
	there := podstate.ByUID(pods)
	maps.DeleteFunc(d.known, func(uid types.UID, _ scheduling.Pod) bool { return there[uid] == nil })
	d.refused.Forget(now, there)
}

// keyOf is the same for the same moves.
func keyOf(p *moves.Plan) string {
	var parts []string
	for _, m := range p.Moves {
		parts = append(parts, fmt.Sprintf("%s (%s > %s)", klog.KObj(m.Pod), m.From, m.To))
	}
	return strings.Join(parts, ", ")
}

// gainOf says what moves bring, without names of others' pods.
func gainOf(p *moves.Plan) string {
	var parts []string
	for _, of := range []struct {
		n    int
		what string
	}{{len(p.Waiting), "waiting pods with room"}, {p.GPUs, "free GPUs"}, {p.Nodes, "free nodes"}} {
		if of.n > 0 {
			parts = append(parts, fmt.Sprintf("%s +%d", of.what, of.n))
		}
	}
	if len(parts) == 0 {
		parts = append(parts, fmt.Sprintf("fragmented GPUs %+.1f", -p.Saved))
	}
	return strings.Join(parts, ", ")
}
