// SPDX-License-Identifier: Apache-2.0

// Package moves plans which pods with GPUs should be on other nodes: package defragment chooses, by the score of nodes,
// and the scheduler's allocator decides what fits where, beside the moves before. A pod moves by being evicted, so only
// pods move that are made again at once. The package is pure.
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
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/gpushare/dra-driver-gpushare/pkg/placement/defragment"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Goal is what moves are for.
type Goal string

const (
	// Any is room for the first pod that waits for which moves make some; without one, that less is lost of the GPUs.
	Any Goal = ""
	// GPU is one more free GPU, Node a node with GPUs of which nobody has any.
	GPU  Goal = "gpu"
	Node Goal = "node"
)

// Cluster is what is known of a cluster.
type Cluster struct {
	// Snapshot has the claims that are allocated.
	scheduling.Snapshot
	// Pods are those that have not ended, Budgets all PodDisruptionBudgets.
	Pods    []*corev1.Pod
	Budgets []*policyv1.PodDisruptionBudget
	Engine  *scheduling.Engine
	// Read reads a pod as the API server has it, with its claims, without a pod where it is gone. Of Pods, it may be that
	// no more is known than who they are and what they request.
	Read func(context.Context, *corev1.Pod) (scheduling.Pod, error)
	// Stays reports whether a pod is to stay for a reason of the caller's; nil is for none.
	Stays func(*corev1.Pod) bool
}

// Question is what is asked: so many moves at most, for a goal, or for a pod that waits.
type Question struct {
	Goal Goal
	For  *corev1.Pod
	Most int
}

// Move is a pod that goes from its node to another one.
type Move struct {
	Pod      *corev1.Pod
	From, To string
}

// Plan is the answer. Why says why there are no moves.
type Plan struct {
	Moves []Move
	Why   string
	// GPUs and Nodes are how many more are free then, before the pods of Waiting have theirs, which find room then and
	// not before.
	GPUs, Nodes int
	Waiting     []*corev1.Pod
	// Saved is how much less of the free GPUs is of no use to an average pod: score.Lost.Fragmented.
	Saved float64
}

// waitingMost is how many pods that wait are looked at, those with the highest priority first, in turns by namespace.
const waitingMost = 20

// savedLeast is by how much each move has to better the score of nodes where it is not for a goal: as if a fifth of a
// GPU were of use to an average pod that was of none.
const savedLeast = 0.02

// Plan answers a question.
func (c *Cluster) Plan(ctx context.Context, q Question) (*Plan, error) {
	waiting, err := c.waiting(ctx, q.For)
	if err != nil {
		return nil, err
	}
	w := c.world(ctx)
	waits := slices.DeleteFunc(slices.Clone(waiting), w.letIn)
	before := w.gains()
	switch {
	case w.failed != nil:
		return nil, w.failed
	case q.For != nil && len(waiting) == 0:
		return &Plan{Why: "the pod does not wait for GPUs, or has other requests that no plan considers"}, nil
	case q.For != nil && len(waits) == 0:
		return &Plan{Why: "the pod has room without any move"}, nil
	case len(w.tenants) == 0:
		return &Plan{Why: "no pod with GPUs may move: a pod " + mayMove}, nil
	}
	moves := w.choose(q, waits)
	if w.failed != nil {
		return nil, w.failed
	}
	return w.plan(moves, before, waits, q)
}

// gains are what moves change.
func (w *world) gains() Plan {
	p := Plan{GPUs: defragment.GPUs(w)(), Nodes: defragment.FreeNodes(w)()}
	for i, n := range w.nodes {
		w.index.Set(n.Name, w.Left(i))
	}
	p.Saved = -w.index.Lost().Fragmented
	return p
}

// mayMove is which pods may.
const mayMove = "moves only if a ReplicaSet or StatefulSet owns it, it has claims of its own, and its " +
	"PodDisruptionBudget, if it has one, allows that"

// choose finds the moves of which a question is.
func (w *world) choose(q Question, waits []scheduling.Pod) []defragment.Move {
	s := defragment.Search{World: w, Pods: w.pods, Index: w.index, Most: q.Most, Least: savedLeast}
	switch q.Goal {
	case GPU:
		return s.For(defragment.GPUs(w))
	case Node:
		return s.For(defragment.FreeNodes(w))
	}
	tried := map[scheduling.QuestionID]bool{}
	for _, pod := range waits {
		// A pod that is alike, with a higher priority or the same, has been tried.
		id, err := scheduling.Question(pod.Pod, pod.Claims)
		if err != nil || tried[id] {
			w.failed = err
			continue
		}
		tried[id] = true
		// Nobody moves for a pod of lower priority.
		w.than = corev1helpers.PodPriority(pod.Pod)
		moves := s.For(func() int {
			if n, _ := w.room(pod, func(n *node) bool { return n.gave > 0 }); n != nil {
				return 1
			}
			return 0
		})
		if w.than = math.MaxInt32; len(moves) > 0 || w.failed != nil {
			return moves
		}
	}
	if q.For != nil {
		return nil
	}
	return s.Spare()
}

// plan says what moves bring.
func (w *world) plan(moves []defragment.Move, before Plan, waits []scheduling.Pod, q Question) (*Plan, error) {
	p := &Plan{}
	if len(moves) == 0 {
		would := map[Goal]string{GPU: "free a GPU", Node: "free a node",
			Any: "make room for a pod that waits, or be worth an eviction"}[q.Goal]
		if q.For != nil {
			would = "make room for the pod"
		}
		p.Why = fmt.Sprintf("up to %d moves would not %s (pods that may move: %d)", q.Most, would, len(w.tenants))
		return p, nil
	}
	for _, m := range moves {
		p.Moves = append(p.Moves, Move{w.tenants[m.Pod].Pod, w.nodes[w.pods[m.Pod].Node].Name, w.nodes[m.Node].Name})
	}
	after := w.gains()
	p.GPUs, p.Nodes, p.Saved = after.GPUs-before.GPUs, after.Nodes-before.Nodes, after.Saved-before.Saved
	for _, pod := range waits {
		if w.letIn(pod) {
			p.Waiting = append(p.Waiting, pod.Pod)
		}
	}
	return p, w.failed
}

// waiting are the pods that wait for GPUs, in the order of the scheduler's queue; one alone, if it is named.
func (c *Cluster) waiting(ctx context.Context, only *corev1.Pod) ([]scheduling.Pod, error) {
	var pods []*corev1.Pod
	for _, pod := range c.Pods {
		if (only == nil || pod.UID == only.UID) && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil &&
			len(pod.Spec.SchedulingGates) == 0 && pod.Status.NominatedNodeName == "" && scheduling.Alone(pod) &&
			scheduling.AsksForDevices(pod, requestsOf(pod)) {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, scheduling.QueueOrder)
	var out []scheduling.Pod
	classOf := scheduling.ClassOf(c.Classes)
	for _, pod := range inTurns(pods, waitingMost) {
		read, err := c.Read(ctx, pod)
		if err != nil {
			return nil, err
		}
		if read.Pod == nil || unseen(&read.Pod.Spec) {
			continue
		}
		if own := scheduling.ClaimForExtended(read.Pod, classOf); own != nil {
			read.Claims = append(slices.Clip(read.Claims), own)
		}
		if len(read.Claims) > 0 && !slices.ContainsFunc(read.Claims, allocated) {
			out = append(out, read)
		}
	}
	return out, nil
}

// inTurns are so many of the pods, in their order: of those of a priority each namespace has one before another has its
// second. So nobody's pods keep those of others from being looked at.
func inTurns(pods []*corev1.Pod, most int) []*corev1.Pod {
	if len(pods) <= most {
		return pods
	}
	type line struct {
		priority  int32
		namespace string
	}
	behind, turns := map[line]int{}, make(map[types.UID]int, len(pods))
	for _, pod := range pods {
		of := line{corev1helpers.PodPriority(pod), pod.Namespace}
		turns[pod.UID], behind[of] = behind[of], behind[of]+1
	}
	byTurn := slices.Clone(pods)
	slices.SortStableFunc(byTurn, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(corev1helpers.PodPriority(b), corev1helpers.PodPriority(a)),
			cmp.Compare(turns[a.UID], turns[b.UID]))
	})
	chosen := byTurn[:most]
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return !slices.Contains(chosen, pod) })
}

func allocated(c *resourceapi.ResourceClaim) bool { return c.Status.Allocation != nil }

// requestsOf is what the scheduler counts of a pod, also of one that has it as the resources of the pod itself.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	requests := scheduling.RequestsOf(pod)
	if pod.Spec.Resources != nil && len(pod.Spec.Containers) == 0 {
		maps.Copy(requests, pod.Spec.Resources.Requests)
	}
	return requests
}

// unseen reports whether a pod asks for something that is not looked at here.
func unseen(spec *corev1.PodSpec) bool {
	a := spec.Affinity
	return scheduling.Unseen(spec) || spec.HostNetwork ||
		a != nil && a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 ||
		slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
		})
}

// errEnded is why a search has ended early.
var errEnded = errors.New("the search for moves takes too long: allow fewer moves, or name a goal")
