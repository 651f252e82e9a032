// SPDX-License-Identifier: Apache-2.0

package moves

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/defragment"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling/offer"
)

// world is the cluster in which moves are tried.
type world struct {
	*Cluster
	ctx   context.Context
	nodes []*node
	// pods are the tenants as package defragment knows them.
	pods    []defragment.Pod
	tenants []tenant
	budgets *scheduling.Budgets
	index   *score.Index
	classOf func(corev1.ResourceName) *resourceapi.DeviceClass
	undo    []func()
	failed  error
	// than is the highest priority of the pods that move.
	than int32
}

// node is a node with GPUs, as it is with the moves.
type node struct {
	*corev1.Node
	published []*resourceapi.ResourceSlice
	offer     offer.GPUs
	claims    []*resourceapi.ResourceClaim
	beside    scheduling.NodeResources
	// reserved says that another pod is nominated to it, counted is what is left, nil where that has to be counted.
	reserved bool
	counted  *score.Node
	// gave says that pods have left it.
	gave int
}

// tenant is a pod that may move, with what it holds.
type tenant struct {
	offer.Placed
	// read is the pod in full, once it was read; stays says that it cannot move.
	read  *scheduling.Pod
	stays bool
}

// madeAgain are the kinds of owners that make a pod again at once, and lose nothing by its eviction but its restart.
var madeAgain = []string{"ReplicaSet", "StatefulSet", "ReplicationController"}

// world reads the cluster.
func (c *Cluster) world(ctx context.Context) *world {
	w := &world{Cluster: c, ctx: ctx, than: math.MaxInt32, budgets: scheduling.NewBudgets(c.Budgets), index: score.New(),
		classOf: scheduling.ClassOf(c.Classes)}
	pools, claims, pods := devices.Pools(c.Slices), offer.ByNode(c.Claims), map[string][]*corev1.Pod{}
	reserved := map[string]bool{}
	for _, pod := range c.Pods {
		pods[pod.Spec.NodeName] = append(pods[pod.Spec.NodeName], pod)
		if pod.Spec.NodeName == "" {
			reserved[pod.Status.NominatedNodeName] = true
		}
	}
	var placed []offer.Placed
	for _, of := range c.ByName() {
		if len(pools[of.Name]) == 0 || len(of.Status.Allocatable) == 0 {
			continue
		}
		n := &node{Node: of, published: pools[of.Name], offer: offer.Of(pools[of.Name]), claims: claims[of.Name],
			beside: scheduling.NodeResources{Allocatable: of.Status.Allocatable}, reserved: reserved[of.Name]}
		on := slices.SortedFunc(slices.Values(pods[of.Name]), func(a, b *corev1.Pod) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
		for _, pod := range on {
			n.beside.Add(requestsOf(pod))
		}
		with := n.offer.Placed(on, n.claims)
		for _, p := range with {
			if !n.reserved && w.mayMove(p) {
				w.tenants = append(w.tenants, tenant{Placed: p})
				w.pods = append(w.pods, defragment.Pod{Node: len(w.nodes), Ask: p.Ask, GPUs: p.GPUs})
			}
		}
		placed = append(placed, with...)
		w.nodes = append(w.nodes, n)
		w.index.Set(n.Name, n.score())
	}
	for _, ask := range offer.Asks(placed) {
		w.index.Learn(ask)
	}
	return w
}

// mayMove reports whether a pod may be evicted, and is made again then, with claims of its own.
func (w *world) mayMove(p offer.Placed) bool {
	pod, owner := p.Pod, metav1.GetControllerOf(p.Pod)
	return owner != nil && slices.Contains(madeAgain, owner.Kind) && pod.DeletionTimestamp == nil &&
		pod.Status.Phase == corev1.PodRunning && pod.Namespace != metav1.NamespaceSystem && scheduling.Alone(pod) &&
		corev1helpers.PodPriority(pod) <= scheduling.HighestOfUsers &&
		len(w.budgets.Of(pod)) <= 1 && w.budgets.LetGo(pod) && (w.Stays == nil || !w.Stays(pod)) &&
		!slices.ContainsFunc(p.Claims, func(c *resourceapi.ResourceClaim) bool { return len(c.Status.ReservedFor) != 1 })
}

// take counts a pod on the node.
func (n *node) take(pod *corev1.Pod, given []*resourceapi.ResourceClaim) {
	n.claims, n.counted = slices.Concat(n.claims, given), nil
	n.beside.Requested = maps.Clone(n.beside.Requested)
	n.beside.Add(requestsOf(pod))
}

func (n *node) score() score.Node {
	if n.counted == nil {
		cpu, memory := n.beside.Left(corev1.ResourceCPU), n.beside.Left(corev1.ResourceMemory)
		n.counted = &score.Node{CPU: cpu.MilliValue(), Memory: memory.Value(), GPUs: n.offer.Left(n.claims)}
	}
	return *n.counted
}

func (w *world) Nodes() int             { return len(w.nodes) }
func (w *world) Left(at int) score.Node { return w.nodes[at].score() }

func (w *world) Without(i int) score.Node {
	n := *w.nodes[w.pods[i].Node]
	n.leave(&w.tenants[i])
	return n.score()
}

// leave has a pod be on the node no more.
func (n *node) leave(t *tenant) {
	n.claims = slices.DeleteFunc(slices.Clone(n.claims), func(c *resourceapi.ResourceClaim) bool {
		return slices.Contains(t.Claims, c)
	})
	n.counted, n.beside.Requested = nil, maps.Clone(n.beside.Requested)
	n.beside.Sub(requestsOf(t.Pod))
}

func (w *world) Undo() {
	w.undo[len(w.undo)-1]()
	w.undo = w.undo[:len(w.undo)-1]
}

// Move moves a pod to a node on which the scheduler's allocator finds its devices.
func (w *world) Move(i, to int) bool {
	t, n := &w.tenants[i], w.nodes[to]
	if _, room := w.Left(to).With(w.pods[i].Ask); !room || n.reserved || t.stays || w.failed != nil ||
		corev1helpers.PodPriority(t.Pod) > w.than || !w.budgets.LetGo(t.Pod) || !w.known(t) {
		return false
	}
	given, fits := w.fit(n, *t.read)
	if !fits {
		return false
	}
	home := w.nodes[w.pods[i].Node]
	was, is, count := *home, *n, func(by int) {
		for _, b := range w.budgets.Of(t.Pod) {
			w.budgets.Allowed[b] += by
		}
	}
	home.leave(t)
	home.gave++
	n.take(t.Pod, given)
	count(-1)
	w.undo = append(w.undo, func() { *home, *n = was, is; count(1) })
	return true
}

// known reads a pod in full, once, and reports whether it can move.
func (w *world) known(t *tenant) bool {
	if t.read != nil {
		return true
	}
	read, err := w.Read(w.ctx, t.Pod)
	if w.failed = err; err != nil {
		return false
	}
	if t.stays = read.Pod == nil || read.Pod.UID != t.Pod.UID || read.Pod.DeletionTimestamp != nil ||
		unseen(&read.Pod.Spec) || !slices.ContainsFunc(read.Claims, allocated) ||
		slices.ContainsFunc(read.Claims, func(c *resourceapi.ResourceClaim) bool { return !ownedBy(c, t.Pod) }); t.stays {
		return false
	}
	again := scheduling.Pod{Pod: read.Pod}
	for _, c := range read.Claims {
		again.Claims = append(again.Claims, &resourceapi.ResourceClaim{Spec: c.Spec,
			ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name}})
	}
	t.read = &again
	return true
}

// ownedBy reports whether a claim was made for a pod, and so is made again for the next one.
func ownedBy(c *resourceapi.ResourceClaim, pod *corev1.Pod) bool {
	return slices.ContainsFunc(c.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == pod.UID })
}

// fit is what a pod would be given of a node.
func (w *world) fit(n *node, pod scheduling.Pod) ([]*resourceapi.ResourceClaim, bool) {
	if w.ctx.Err() != nil {
		w.failed = fmt.Errorf("%w: %w", errEnded, context.Cause(w.ctx))
		return nil, false
	}
	byDevices := func(name corev1.ResourceName) bool { return w.classOf(name) != nil }
	if scheduling.ClosedTo(w.ctx, n.Node, pod.Pod, scheduling.Wanted(pod.Pod)).By != scheduling.Open ||
		len(n.beside.Short(scheduling.RequestsOf(pod.Pod), byDevices)) > 0 {
		return nil, false
	}
	allocator, err := w.Engine.Allocator(w.ctx, scheduling.Snapshot{Slices: n.published, Claims: n.claims,
		Classes: w.Classes}, nil)
	if err != nil {
		w.failed = fmt.Errorf("look for devices on node %s: %w", n.Name, err)
		return nil, false
	}
	results, fits, err := allocator.Fit(w.ctx, n.Node, pod.Claims, scheduling.NewEffort(1))
	if err != nil && w.ctx.Err() != nil {
		w.failed = errors.Join(errEnded, context.Cause(w.ctx))
	}
	if err != nil || !fits {
		return nil, false
	}
	var given []*resourceapi.ResourceClaim
	for i := range results {
		given = append(given, &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &results[i]}})
	}
	return given, true
}

// letIn places a pod that waits, and reports whether it found room.
func (w *world) letIn(pod scheduling.Pod) bool {
	n, given := w.room(pod, func(n *node) bool { return !n.reserved })
	if n != nil {
		n.take(pod.Pod, given)
	}
	return n != nil
}

// room is the first of such nodes on which a pod finds room, nil for none, and what it would be given there.
func (w *world) room(pod scheduling.Pod, such func(*node) bool) (*node, []*resourceapi.ResourceClaim) {
	for _, n := range w.nodes {
		if such(n) {
			if given, fits := w.fit(n, pod); fits {
				return n, given
			}
		}
	}
	return nil, nil
}
