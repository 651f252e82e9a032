// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const (
	// gateMost is how long a pod stays at the gate once this controller has seen it there: where a nomination takes
	// longer, the pod goes to the scheduler without.
	gateMost = 5 * time.Second
	// gateAgain is when a gate is opened again that the API server kept shut.
	gateAgain = 5 * time.Second
)

// heldByOthers reports whether a pod is at the gate of somebody else, such as Kueue.
func heldByOthers(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.SchedulingGates,
		func(g corev1.PodSchedulingGate) bool { return !placement.IsGate(g) })
}

// held is what is known of a pod at the gate: since when the gate alone holds it, and when the gate was opened, zero
// while it is not. At the gate of costly claims, looks counts the judgements after which the pod stayed, and next is
// the earliest time of the next one.
type held struct {
	since, opened, next time.Time
	looks               int
}

// gates are the pods at the gate.
type gates struct {
	mu   sync.Mutex
	held map[types.UID]held
}

// see notes a pod as it is now.
func (g *gates) see(pod *corev1.Pod, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !placement.AtGate(pod) || heldByOthers(pod) {
		delete(g.held, pod.UID)
	} else if _, is := g.held[pod.UID]; !is {
		g.held[pod.UID] = held{since: now}
	}
}

// forget forgets a pod that waits no more.
func (g *gates) forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.held, uid)
}

// of is what is known of a pod.
func (g *gates) of(uid types.UID) held {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held[uid]
}

// opened notes that a pod's gate is open, which the cache does not show yet.
func (g *gates) opened(uid types.UID, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h, is := g.held[uid]; is {
		h.opened = now
		g.held[uid] = h
	}
}

// stays notes that a pod was judged and stays, and returns after how long to judge it again. The controller judges it
// earlier if its claims are made before that.
func (g *gates) stays(uid types.UID, now time.Time, held string) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.held[uid]
	h.looks++
	again := heldAgain.After(h.looks)
	if held != heldForClaim {
		h.next = now.Add(again)
	}
	g.held[uid] = h
	return again
}

// pass opens the gate for a pod that has a nomination, that gets none, or that has waited for gateMost. It opens the
// gate of costly claims only when the scheduler's search is sure to be short, however long that takes.
func (n *Nominator) pass(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	h, now := n.gates.of(pod.UID), n.Clock.Now()
	if heldByOthers(pod) || !h.opened.IsZero() && now.Sub(h.opened) < underway {
		return 0, nil
	}
	var v verdict
	if placement.AtCostlyGate(pod) {
		if wait := h.next.Sub(now); wait > 0 {
			return wait, nil
		}
		var err error
		if v, err = n.judge(ctx, pod); err != nil {
			return 0, err
		}
		if v.held != "" {
			if v.held != heldForClaim || h.looks > 0 { // each pod with a template's claim is looked at before that is made
				n.Events.Warn(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonClaimWaiting,
					"the pod waits at the scheduling gate "+v1alpha1.GateCostlyClaims+": "+v.held)
			}
			return n.gates.stays(pod.UID, now, v.held), nil
		}
	}
	left := gateMost
	if !h.since.IsZero() {
		left -= now.Sub(h.since)
	}
	if left > 0 && v.node == "" && n.nominable(pod) {
		looking, cancel := context.WithTimeout(ctx, left)
		_, err := n.look(looking, pod)
		cancel()
		if err != nil {
			klog.FromContext(ctx).V(2).Info("A pod goes to the scheduler without a nomination", "pod", klog.KObj(pod),
				"err", err)
		}
	}
	switch opened, err := open(ctx, n.Pods, pod, v.node); {
	case ctx.Err() != nil && err != nil:
		return 0, err
	case err != nil:
		klog.FromContext(ctx).Error(err, "A pod waits at its gate; will try again", "pod", klog.KObj(pod))
		return gateAgain, nil
	case !opened:
		return gateAgain, nil
	}
	n.gates.opened(pod.UID, n.Clock.Now())
	return 0, nil
}

// open removes a pod's gates, and pins the pod to the node, unless that is empty. It returns false if the pod has
// changed meanwhile, or is gone.
func open(ctx context.Context, client typedcorev1.PodsGetter, pod *corev1.Pod, node string) (bool, error) {
	operations := []operation{{"test", "/metadata/uid", string(pod.UID)}}
	for i, gate := range slices.Backward(pod.Spec.SchedulingGates) {
		if placement.IsGate(gate) {
			path := fmt.Sprintf("/spec/schedulingGates/%d", i)
			operations = append(operations, operation{"test", path + "/name", gate.Name}, operation{"remove", path, nil})
		}
	}
	if node != "" {
		operations = append(operations, operation{"add", "/spec/affinity", pinnedTo(node, pod.Spec.Affinity)})
	}
	patch, err := json.Marshal(operations)
	if err != nil {
		return false, fmt.Errorf("write a patch: %w", err)
	}
	_, err = client.Pods(pod.Namespace).Patch(ctx, pod.Name, types.JSONPatchType, patch,
		metav1.PatchOptions{FieldManager: v1alpha1.ControllerName})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("take the scheduling gate off pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return true, nil
}
