// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
)

// allocateMost is how long the allocator may look at one node: its search is exhaustive. The
// scheduler lets it have as long (filterTimeout of its plugin DynamicResources).
const allocateMost = 10 * time.Second

// Situation is a cluster as its scheduler sees it at one moment.
type Situation struct {
	Nodes []*corev1.Node
	// Slices and Claims are those of all drivers and namespaces: what is left out is
	// not offered, or not taken.
	Slices  []*resourceapi.ResourceSlice
	Claims  []*resourceapi.ResourceClaim
	Classes []*resourceapi.DeviceClass
}

// Room is where a pod finds devices now.
type Room struct {
	// Nodes are all nodes, by name.
	Nodes []NodeRoom
	// Refused is why the scheduler gives up before it has looked at all nodes; nil if it
	// does not.
	Refused error
}

// NodeRoom is whether a pod finds devices on a node.
type NodeRoom struct {
	Name string
	// GPUs is how many of them the driver offers there.
	GPUs int
	// Closed is why the pod cannot be on the node, whatever is free; empty if it can.
	Closed string
	// Fits says whether the scheduler's allocator finds all devices there, Devices which.
	Fits    bool
	Devices []string
	// Lacks say why it does not, Farthest is the one that stands most in the way.
	Lacks    []Lack
	Farthest Lack
}

// Open says whether the pod would get all its devices on the node.
func (n *NodeRoom) Open() bool { return n.Fits && n.Closed == "" }

// Fits says whether there is a node on which the pod would get all its devices now.
func (r *Room) Fits() bool {
	return r.Refused == nil && slices.ContainsFunc(r.Nodes, func(n NodeRoom) bool { return n.Open() })
}

// FindRoom looks at what is free, on each node. Whether the claims fit there is found out by
// the scheduler's allocator, as the scheduler uses it; only the words for it are found here.
// An error is that of a claim, or the context's.
func FindRoom(ctx context.Context, s Situation, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (Room, error) {
	may, err := where(pod, claims)
	if err != nil {
		return Room{}, err
	}
	var unallocated []*resourceapi.ResourceClaim
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			unallocated = append(unallocated, claim)
		}
	}
	state := stockallocator.Nothing()
	for _, claim := range s.Claims {
		if claim.Status.Allocation != nil {
			stockallocator.Hold(&state, claim.Status.Allocation.Devices.Results)
		}
	}
	compiled := stockallocator.Expressions(compiledMost)
	byName := stockallocator.Classes(s.Classes)
	allocator, err := structured.NewAllocator(ctx, stockallocator.Features(), state, byName, s.Slices, compiled)
	if err != nil {
		return Room{}, fmt.Errorf("set up the scheduler's allocator: %w", err)
	}
	return findRoom(ctx, s, pod, unallocated, may, newLooker(s, state, compiled), allocator)
}

// findRoom asks an allocator of one node after the other.
func findRoom(ctx context.Context, s Situation, pod *corev1.Pod, unallocated []*resourceapi.ResourceClaim, may usable,
	l *looker, allocator structured.Allocator) (Room, error) {
	var room Room
	var late, lateOnClosed error
	for _, node := range slices.SortedFunc(slices.Values(s.Nodes), byNodeName) {
		found := NodeRoom{Name: node.Name, Closed: closedTo(ctx, node, pod, may)}
		if o := l.offers[node.Name]; o != nil {
			found.GPUs = o.gpus
		}
		skipped := late
		if skipped == nil && found.Closed != "" {
			skipped = lateOnClosed
		}
		if skipped != nil {
			found.Lacks = []Lack{{Text: "not looked at: " + skipped.Error()}}
			room.Nodes = append(room.Nodes, found)
			continue
		}
		err := found.look(ctx, allocator, node, unallocated)
		switch {
		case err != nil && ctx.Err() != nil:
			return Room{}, fmt.Errorf("look for devices on node %s: %w", node.Name, context.Cause(ctx))
		case errors.Is(err, context.DeadlineExceeded):
			// The next node would take as long, and who asks waits.
			err = fmt.Errorf("timed out trying to allocate devices of node %s, after %v", node.Name, allocateMost)
			found.Lacks = []Lack{{Text: err.Error()}}
			if lateOnClosed = err; found.Closed == "" {
				late, room.Refused = err, cmp.Or(room.Refused, err)
			}
		case err != nil:
			found.Lacks = []Lack{{Text: err.Error()}}
			// A node that the pod cannot be on is passed over before its devices are looked at,
			// and of some errors, such as an invalid pool, the scheduler passes over the node alone.
			if found.Closed == "" && room.Refused == nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
				room.Refused = err
			}
		case !found.Fits:
			found.Lacks, found.Farthest = l.lacks(ctx, node.Name, unallocated)
		}
		room.Nodes = append(room.Nodes, found)
	}
	return room, nil
}

func byNodeName(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) }

// look asks the scheduler's allocator for devices of the node.
func (n *NodeRoom) look(ctx context.Context, allocator structured.Allocator, node *corev1.Node,
	claims []*resourceapi.ResourceClaim) error {
	if len(claims) == 0 {
		n.Fits = true
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, allocateMost)
	defer cancel()
	results, err := allocator.Allocate(ctx, node, claims)
	if err != nil {
		return err
	}
	n.Fits = len(results) == len(claims)
	devices := map[string]bool{}
	for _, result := range results {
		for _, device := range result.Devices.Results {
			devices[device.Device] = true
		}
	}
	n.Devices = slices.Sorted(maps.Keys(devices))
	return nil
}

// closedTo says why a pod cannot be on a node, as far as the node itself says; empty if it can.
func closedTo(ctx context.Context, node *corev1.Node, pod *corev1.Pod, may usable) string {
	if !may(node) {
		return "the pod's nodeSelector, its affinity or its other claims exclude it"
	}
	if node.Spec.Unschedulable && !tolerated(pod, corev1.Taint{Key: corev1.TaintNodeUnschedulable,
		Effect: corev1.TaintEffectNoSchedule}, klog.FromContext(ctx)) {
		return "it takes no new pods (kubectl uncordon " + node.Name + " ends that)"
	}
	for _, taint := range node.Spec.Taints {
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated(pod, taint, klog.FromContext(ctx)) {
			return "the pod does not tolerate its taint " + taint.ToString()
		}
	}
	return ""
}

func tolerated(pod *corev1.Pod, taint corev1.Taint, log klog.Logger) bool {
	return corev1helpers.TolerationsTolerateTaint(log, pod.Spec.Tolerations, &taint, false)
}
