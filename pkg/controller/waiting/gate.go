// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
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

// stays notes that a pod was judged and stays, and returns after how long to judge it again. The controller judges it
// earlier if its claims are made before that.
func (h *held) stays(now time.Time, why string) time.Duration {
	h.looks++
	again := heldAgain.After(h.looks)
	if why != heldForClaim {
		h.next = now.Add(again)
	}
	return again
}

// heldOf returns what is known of a pod at the gate, after change has changed it.
func (n *Nominator) heldOf(pod *corev1.Pod, change func(*held)) held {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.know(pod.UID)
	change(&s.held)
	return s.held
}

// pass opens the gate for a pod that has a nomination, that gets none, or that has waited for gateMost. It opens the
// gate of costly claims only when the scheduler's search is sure to be short, however long that takes.
func (n *Nominator) pass(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	h, now := n.heldOf(pod, func(*held) {}), n.Clock.Now()
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
				n.Events.Warn(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonClaimWaiting, heldAt+v.held)
			}
			var again time.Duration
			n.heldOf(pod, func(h *held) { again = h.stays(now, v.held) })
			return again, nil
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
	n.heldOf(pod, func(h *held) { h.opened = n.Clock.Now() })
	return 0, nil
}

// release opens the gate where no nodes are nominated. There nobody judges pods at the gate of costly claims: they
// stay, and are told.
func (r *Reconciler) release(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	if placement.AtCostlyGate(pod) {
		r.Events.Warn(report.Pod(pod.Namespace, pod.Name, pod.UID), v1alpha1.ReasonClaimWaiting, heldAt+heldByNobody)
		return 0, nil
	}
	if opened, err := open(ctx, r.Gates, pod, ""); err != nil || opened {
		return 0, err
	}
	return gateAgain, nil
}

// open removes a pod's gates, and pins the pod to the node, unless that is empty. It returns false if the pod has
// changed meanwhile, or is gone.
func open(ctx context.Context, client metadata.Interface, pod *corev1.Pod, node string) (bool, error) {
	operations := []operation{{"test", "/metadata/uid", string(pod.UID)}}
	for i, gate := range slices.Backward(pod.Spec.SchedulingGates) {
		if placement.IsGate(gate) {
			path := fmt.Sprintf("/spec/schedulingGates/%d", i)
			operations = append(operations, operation{"test", path + "/name", gate.Name}, operation{"remove", path, nil})
		}
	}
	if node != "" {
		// The API server accepts such a change while the pod is at a gate.
		operations = append(operations, operation{"add", "/spec/affinity", scheduling.PinnedTo(node, pod.Spec.Affinity)})
	}
	opened, err := podstate.Patch(ctx, client, pod, types.JSONPatchType, operations)
	if err != nil {
		return false, fmt.Errorf("take the scheduling gate off pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return opened, nil
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

const nominatedPath = "/status/nominatedNodeName"

// nominate nominates a node for a pod, none where it is empty. The API server takes the patch only while the pod is
// this one, without a node, and nominated is what it was when the node was chosen: else it is false.
func nominate(ctx context.Context, client metadata.Interface, pod *corev1.Pod, node string) (bool, error) {
	test := func(path, value string) operation {
		if value == "" {
			return operation{"test", path, nil}
		}
		return operation{"test", path, value}
	}
	write := operation{"add", nominatedPath, node}
	if node == "" {
		write = operation{"remove", nominatedPath, nil}
	}
	written, err := podstate.Patch(ctx, client, pod, types.JSONPatchType, []operation{
		test("/metadata/uid", string(pod.UID)), test("/spec/nodeName", ""),
		test(nominatedPath, pod.Status.NominatedNodeName), write}, "status")
	if err != nil {
		return false, fmt.Errorf("nominate node %q for pod %s/%s: %w", node, pod.Namespace, pod.Name, err)
	}
	return written, nil
}
