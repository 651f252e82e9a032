// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// heldAgain is after how long the controller judges a pod again that stayed at the gate of costly claims.
var heldAgain = backoff.Doubling{Least: 2 * time.Second, Most: 30 * time.Second}

// heldAt begins what a pod is told that stays at the gate of costly claims. The reasons come after it.
const (
	heldAt       = "the pod waits at the scheduling gate " + v1alpha1.GateCostlyClaims + ": "
	heldForClaim = "a claim of the pod does not exist yet"
	heldForRoom  = "no node has room for the pod's GPUs and lets the scheduler finish its search within 200 ms"
	heldForGood  = "no node that the pod may use lets the scheduler finish its search for the GPUs within 200 ms: " +
		"request fewer devices, with fewer requests and alternatives, or tie requests to one GPU by the constraint " +
		"matchAttribute (docs/security.md#the-schedulers-time)"
	heldByNobody = "the setting BEST_NODE, without which nobody finds out what its claims cost the scheduler, is off. " +
		"An administrator sets it, or removes the gate (docs/packing.md#the-gate)"
)

// verdict is a decision about a pod at the gate of costly claims. The pod stays if held has a reason. Otherwise it goes
// on, pinned to node unless that is empty.
type verdict struct{ held, node string }

// judge finds out whether a pod may cost the scheduler too much on some node. For such a pod it nominates a node to pin
// it to.
func (n *Nominator) judge(ctx context.Context, pod *corev1.Pod) (verdict, error) {
	claims, there, err := n.wishes.made(ctx, pod)
	if err != nil || !there {
		return verdict{held: heldForClaim}, err
	}
	unallocated := slices.DeleteFunc(slices.Clone(claims),
		func(c *resourceapi.ResourceClaim) bool { return c.Status.Allocation != nil })
	n.mu.Lock()
	classes := n.chooser.classesOf()
	n.mu.Unlock()
	w, err := newWish(pod, unallocated, scheduling.ClaimForExtended(pod, classes.of))
	if err != nil {
		return verdict{}, err
	}
	if len(unallocated) == len(pod.Spec.ResourceClaims) {
		n.remember(pod, w, classes)
	}
	inTime, err := n.searched(ctx, pod, claims, w)
	if err != nil {
		return verdict{}, err
	}
	dear := 0
	for _, ends := range inTime {
		if !ends {
			dear++
		}
	}
	switch dear {
	case 0:
		return verdict{}, nil
	case len(inTime):
		return verdict{held: heldForGood}, nil
	}
	if n.nominable(pod) {
		if _, err := n.look(ctx, pod); err != nil {
			return verdict{}, err
		}
	}
	// What was nominated by may be another claim, which was deleted since.
	if node := n.written(pod.UID); inTime[node] {
		return verdict{node: node}, nil
	}
	return verdict{held: heldForRoom}, nil
}

// searched returns the nodes with devices that a pod may use, and whether the scheduler searches each of them in time.
func (n *Nominator) searched(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim, w *wish) (
	map[string]bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.chooser.refresh(); err != nil {
		return nil, err
	}
	may, err := scheduling.Possible(pod, claims)
	if err != nil {
		return nil, err
	}
	inTime := map[string]bool{}
	for name, node := range n.chooser.known {
		if len(node.published) > 0 && may(node.Node) {
			inTime[name] = n.chooser.endsInTime(ctx, node, w.kind.question, w.claims)
		}
	}
	return inTime, ctx.Err()
}

// made are the claims of a pod as they are, not as a template has them that may have been made again since. Their names
// are those of others' claims, too, for which the same is found out. It is false while one of them is not there.
func (w *wishes) made(ctx context.Context, pod *corev1.Pod) ([]*resourceapi.ResourceClaim, bool, error) {
	claims, there, err := podstate.Claims(ctx, w.client, pod)
	for i, claim := range claims {
		claims[i] = &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: strconv.Itoa(i)}, Spec: claim.Spec,
			Status: resourceapi.ResourceClaimStatus{Allocation: claim.Status.Allocation}}
	}
	return claims, there, err
}

// written returns the node that this controller or an earlier leader has nominated for a pod, once the API server has
// it.
func (n *Nominator) written(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.pods[uid]; s != nil && s.written {
		return s.nominated
	}
	return ""
}

// excluded reports whether a pod cannot use a node, whatever is left of the node's GPUs.
func (c *chooser) excluded(ctx context.Context, on *node, pod *corev1.Pod, may scheduling.Where, w *wish) bool {
	return c.closed(ctx, on, pod, may, w.requests) ||
		w.kind.costly && !c.endsInTime(ctx, on, w.kind.question, w.claims)
}

// endings has the answers of EndsInTime for some claims, found with one version of the DeviceClasses.
type endings struct {
	classes uint64
	known   []ending
}

// ending is the answer for all nodes that offer these shapes.
type ending struct {
	shapes []view.Shape
	inTime bool
}

// endsInTime is scheduling.Engine.EndsInTime, called once for all nodes that are alike.
func (c *chooser) endsInTime(ctx context.Context, on *node, of scheduling.QuestionID,
	claims []*resourceapi.ResourceClaim) bool {
	known, _ := c.endings.Get(of)
	e, _ := known.(*endings)
	if e == nil || e.classes != c.classes.version || len(e.known) >= kindsMost {
		e = &endings{classes: c.classes.version}
		c.endings.Add(of, e)
	}
	if i := slices.IndexFunc(e.known, func(k ending) bool { return slices.Equal(k.shapes, on.shapes) }); i >= 0 {
		return e.known[i].inTime
	}
	inTime, err := c.engine.EndsInTime(ctx, on.Node, on.published, c.classes.all, claims)
	if err == nil {
		e.known = append(e.known, ending{on.shapes, inTime})
	}
	return inTime
}

// pinnedAdvice returns what the owner of a pod can do that waits for the node to which it is pinned. It is empty for
// other pods, and for those of DaemonSets.
func pinnedAdvice(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" ||
		pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil ||
		pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
				return "The pod is pinned to node " + field.Values[0] + ". Delete it: a new pod can use another node"
			}
		}
	}
	return ""
}
