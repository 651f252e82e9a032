// SPDX-License-Identifier: Apache-2.0

// Package spread tells a node whose shares are spread of a claim that waits for what the node
// holds back for the sake of evenness: several shares of one GPU, several GPUs at once, a GPU
// that is ahead of the others. The node's plugin does not see who waits; here the
// scheduler's allocator finds a node on which a waiting pod's claims fit if nothing is held
// back.
package spread

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const (
	// patience is how long a pod waits before a node is told of it: the GPUs go round
	// faster. quiet is for how long the node must not have offered anything new: while it
	// does, the round goes on.
	patience = 3 * time.Second
	quiet    = 2 * time.Second
	// again is when a pod is looked at again that was not helped, at first, seldom when one is that
	// waits for something else.
	again  = 2 * time.Second
	seldom = time.Minute
	// alikeFor is for how long pods are taken to find no room because one like them did not.
	alikeFor = 10 * time.Second
	// nodesMost is how many nodes are looked at for a pod at one time: the next look goes on with others.
	nodesMost = 50
)

// rarer is when a pod is looked at again after so many looks in a row that did not help it, retold
// when a single one for which so many nodes were told: others may have taken what they let go.
var (
	rarer  = backoff.Doubling{Least: again, Most: seldom}
	retold = backoff.Doubling{Least: again, Most: alikeFor}
)

// Config is what the controller works with.
type Config struct {
	// Cache is asked for pods without a node and those of gangs, nodes, ResourceSlices, claims and DeviceClasses.
	Cache  *cache.Reader
	Client Client
	Nodes  typedcorev1.NodeInterface
	Clock  clock.PassiveClock
	// Engine finds where pods fit.
	Engine *scheduling.Engine
}

// Client reads claims, and the rules by which administrators taint devices.
type Client interface {
	typedresourcev1.ResourceClaimsGetter
	typedresourcev1.DeviceTaintRulesGetter
}

// waiter is a pod that waits, or the pods of a gang that do.
type waiter struct {
	// first is the first of them that was seen, since is when it was.
	first types.UID
	since time.Time
	// told is how often a node was told of it, missed how often in a row none had room.
	told, missed int
	// after is the node after which the next look begins. One that was told may lack for it what is not
	// seen here, CPUs for example.
	after string
}

type teller struct {
	Config
	pods    cache.Unscheduled
	gangs   cache.OfGangs
	slices  cache.Slices
	claims  cache.Claims
	classes cache.Classes
	nodes   cache.Nodes
	work    *manager.Controller

	mu sync.Mutex
	// changed is when a node last offered something else.
	changed map[string]time.Time

	// waiters, by key, and none, the kinds of pods that are taken to find no room, are the reconciler's: a crowd of a
	// kind is one search.
	waiters map[string]*waiter
	none    map[string]none
}

// none is until when pods of a kind are taken to find no room, and the node after which the next
// of them begins.
type none struct {
	until time.Time
	after string
}

// New makes the controller. It is to be run with one worker.
func New(cfg Config) *manager.Controller {
	c := cfg.Cache
	t := &teller{
		Config: cfg, pods: c.UnscheduledPods(), gangs: c.PodsOfGangs(), slices: c.Slices(), claims: c.Claims(),
		classes: c.Classes(), nodes: c.Nodes(), changed: map[string]time.Time{}, waiters: map[string]*waiter{},
		none: map[string]none{},
	}
	t.work = manager.NewController("spread", t.reconcile)
	t.pods.On(cache.Handler[*corev1.Pod]{Seen: t.sawPod, Changed: func(before, after *corev1.Pod) {
		was, waited := podstate.Unschedulable(before)
		if said, _ := podstate.Unschedulable(after); said != was || !waited {
			t.sawPod(after)
		}
	}})
	t.slices.On(cache.Handler[*view.Slice]{Seen: t.sawSlice, Gone: t.forgetSlice})
	return t.work
}

func (t *teller) sawPod(pod *corev1.Pod) {
	if _, waits := podstate.Unschedulable(pod); waits && len(pod.Spec.ResourceClaims) > 0 {
		t.work.Enqueue(keyOf(pod))
	}
}

func (t *teller) sawSlice(slice *view.Slice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slice.Spread {
		t.changed[slice.Node] = t.Clock.Now()
	} else {
		t.forgetUnspread(slice.Node)
	}
}

func (t *teller) forgetSlice(slice *view.Slice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetUnspread(slice.Node)
}

// forgetUnspread forgets a node none of whose slices is of shares that are spread; mu is held. One that offers nothing
// at the moment is not forgotten.
func (t *teller) forgetUnspread(node string) {
	of := t.slices.OnNode(node)
	if !slices.ContainsFunc(of, func(s *view.Slice) bool { return s.Spread }) &&
		(len(of) == 0 || slices.ContainsFunc(of, func(s *view.Slice) bool { return len(s.GPUs) > 0 })) {
		delete(t.changed, node)
	}
}

// reconcile is a manager.Reconcile; the key is a pod's, or a gang's.
func (t *teller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	group := t.together(key)
	if len(group) == 0 {
		delete(t.waiters, key)
		return 0, nil
	}
	pod, w := group[0], t.waiters[key]
	if w == nil || !slices.ContainsFunc(group, func(pod *corev1.Pod) bool { return pod.UID == w.first }) {
		w = &waiter{first: pod.UID, since: t.Clock.Now()}
		t.waiters[key] = w
	}
	said, _ := podstate.Unschedulable(pod)
	t.mu.Lock()
	spread := len(t.changed) > 0
	t.mu.Unlock()
	if !spread || !forDevices(pod, said) {
		return seldom, nil
	}
	needed := t.least(group)
	alike := kindOf(group, needed)
	if left := t.none[alike].until.Sub(t.Clock.Now()); alike != "" && left > 0 {
		w.after = t.none[alike].after
		return left, nil
	}
	seekers, err := t.seekers(ctx, group)
	if err != nil {
		return 0, err
	}
	if len(seekers) == 0 {
		w.missed++
		return rarer.After(w.missed), nil
	}
	found, next, err := t.room(ctx, seekers, needed, w.after)
	if err != nil {
		return 0, err
	}
	if len(found) == 0 {
		w.after = next
		t.noneFor(alike, next)
		w.missed++
		return rarer.After(w.missed), nil
	}
	w.missed = 0
	still, told, err := t.tellAll(ctx, w, key, found)
	// A node on which something goes on has no others told again and again.
	if err != nil || still > 0 && (!told || t.Clock.Since(w.since) < patience) {
		return still, err
	}
	w.after = next
	w.told++
	// What else it waits for is not seen here: nodes are told of it less and less.
	if groupOf(pod) != "" {
		return max(still, rarer.After(w.told)), nil
	}
	return retold.After(w.told), nil
}

// forDevices reports whether a pod may wait for GPUs. What the scheduler says of a gang does not
// always tell.
func forDevices(pod *corev1.Pod, said string) bool {
	return strings.Contains(said, podstate.NoDevices) || groupOf(pod) != "" && !strings.Contains(said, "Insufficient ")
}

// tellAll tells nodes of what waits for all of them. It returns after how long to do so again, where it
// is too early for one, and whether any was told.
func (t *teller) tellAll(
	ctx context.Context, w *waiter, key string, rooms []room,
) (early time.Duration, told bool, err error) {
	for _, r := range rooms {
		still, err := t.tellOf(ctx, w, r)
		if err != nil {
			return 0, told, err
		}
		if still > 0 {
			early = min(cmp.Or(early, still), still)
			continue
		}
		told = true
		klog.FromContext(ctx).Info("A pod waits for what the node holds back to spread shares", "pod", key, "node", r.node)
	}
	return early, told, nil
}

// tellOf tells a node of what waits for it. It returns for how long that is too early.
func (t *teller) tellOf(ctx context.Context, w *waiter, r room) (time.Duration, error) {
	now := t.Clock.Now()
	waiting := placement.Waiting{Claim: string(r.claim), At: now.UTC()}
	for _, g := range r.shares {
		waiting.GiB, waiting.Shares = max(waiting.GiB, g.asked.Units), max(waiting.Shares, g.asked.Shares)
	}
	// Several shares of one GPU are offered without making any uneven; for all else a pod has
	// to have waited while nothing went on.
	if w.told > 0 || waiting.Shares == 1 {
		t.mu.Lock()
		still := max(patience-now.Sub(w.since), quiet-now.Sub(t.changed[r.node]))
		t.mu.Unlock()
		if still > 0 {
			return still, nil
		}
		for _, g := range r.shares {
			waiting.GPUs = append(waiting.GPUs, g.needed())
		}
	}
	return 0, t.tell(ctx, r.node, waiting)
}

// kindOf is the same for pods that go to the same nodes with claims of the same templates, and of which
// as many are needed at once; empty where claims are a pod's own.
func kindOf(group []*corev1.Pod, needed int) string {
	kinds := []string{strconv.Itoa(needed), group[0].Namespace}
	for _, pod := range group {
		where, err := scheduling.Question(pod, nil)
		if err != nil {
			return ""
		}
		kind := string(where[:])
		for _, c := range pod.Spec.ResourceClaims {
			if c.ResourceClaimTemplateName == nil {
				return ""
			}
			kind += "/" + *c.ResourceClaimTemplateName
		}
		kinds = append(kinds, kind)
	}
	return strings.Join(slices.Compact(kinds), " ")
}

func (t *teller) noneFor(alike, after string) {
	now := t.Clock.Now()
	maps.DeleteFunc(t.none, func(_ string, n none) bool { return !n.until.After(now) })
	if alike != "" {
		t.none[alike] = none{now.Add(alikeFor), after}
	}
}

func (t *teller) tell(ctx context.Context, node string, w placement.Waiting) error {
	text, err := w.Encode()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{v1alpha1.AnnotationWaiting: text}},
	})
	if err != nil {
		return fmt.Errorf("encode an annotation of node %s: %w", node, err)
	}
	_, err = t.Nodes.Patch(
		ctx,
		node,
		types.MergePatchType,
		patch,
		metav1.PatchOptions{FieldManager: v1alpha1.ControllerName},
	)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("tell node %s that claim %s waits: %w", node, w.Claim, err)
	}
	return nil
}
