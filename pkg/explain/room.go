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
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
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
	// Closed says, by node, what keeps the pod that is asked about from nodes beside what they
	// say themselves, such as too little CPU. It may be nil.
	Closed map[string]string
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
	// Closed is why the pod cannot be on the node, whatever is free; empty if it can. Excluded
	// says that this is what the pod itself, or its claims, say.
	Closed   string
	Excluded bool
	// Fits says whether the scheduler's allocator finds all devices there, Devices which.
	Fits    bool
	Devices []string
	// Allocations are what the claims that were not allocated would get there, in their order.
	Allocations []resourceapi.AllocationResult
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

// Finder looks for room in one Situation, for as many pods as ask. It is for one goroutine at a
// time.
type Finder struct {
	// nodes are all of them, by name, closed what Situation.Closed is.
	nodes     []*corev1.Node
	closed    map[string]string
	allocator structured.Allocator
	looker    *looker
}

// NewFinder makes the Finder of a situation, which must not change while it is used.
func NewFinder(ctx context.Context, s Situation) (*Finder, error) {
	state := stockallocator.Nothing()
	for _, claim := range s.Claims {
		if claim.Status.Allocation != nil {
			stockallocator.Hold(&state, claim.Status.Allocation.Devices.Results)
		}
	}
	compiled := stockallocator.Expressions(compiledMost)
	allocator, err := structured.NewAllocator(ctx, stockallocator.Features(), state, stockallocator.Classes(s.Classes),
		s.Slices, compiled)
	if err != nil {
		return nil, fmt.Errorf("set up the scheduler's allocator: %w", err)
	}
	return &Finder{slices.SortedFunc(slices.Values(s.Nodes), byNodeName), s.Closed, allocator,
		newLooker(s, state, compiled)}, nil
}

// FindRoom is what a new Finder finds.
func FindRoom(ctx context.Context, s Situation, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (Room, error) {
	f, err := NewFinder(ctx, s)
	if err != nil {
		return Room{}, err
	}
	return f.Find(ctx, pod, claims)
}

// Find looks at what is free, on each node. Whether the claims fit there is found out by the
// scheduler's allocator, as the scheduler uses it; only the words for it are found here. An
// error is that of a claim, or the context's.
func (f *Finder) Find(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (Room, error) {
	return f.find(ctx, pod, claims, false)
}

// FindFirst is Find for who asks often: it ends at the first node with room, does not look at
// those that the pod excludes, and does not ask the allocator of nodes that lack something for
// one request alone, on which it never finds devices. Asking it is most of what Find takes.
func (f *Finder) FindFirst(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (Room, error) {
	return f.find(ctx, pod, claims, true)
}

func (f *Finder) find(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim, first bool) (Room,
	error) {
	may, err := where(pod, claims)
	if err != nil {
		return Room{}, err
	}
	unallocated := waitingOf(claims)
	f.looker.forget()
	var room Room
	var late, lateOnClosed error
	for _, node := range f.nodes {
		if err := ended(ctx, node); err != nil {
			return Room{}, err
		}
		found := NodeRoom{Name: node.Name, Closed: cmp.Or(closedTo(ctx, node, pod, may), f.closed[node.Name]),
			Excluded: !may(node)}
		if o := f.looker.offers[node.Name]; o != nil {
			found.GPUs = o.gpus
		}
		if first && found.Excluded {
			room.Nodes = append(room.Nodes, found)
			continue
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
		if first {
			var hopeless bool
			if found.Lacks, found.Farthest, hopeless = f.looker.lacks(ctx, node.Name, unallocated); hopeless {
				if err := ended(ctx, node); err != nil {
					return Room{}, err
				}
				room.Nodes = append(room.Nodes, found)
				continue
			}
			found.Lacks, found.Farthest = nil, Lack{}
		}
		err := found.look(ctx, f.allocator, node, unallocated)
		switch {
		case err != nil && ctx.Err() != nil:
			return Room{}, ended(ctx, node)
		case errors.Is(err, context.DeadlineExceeded):
			// The next node would take as long, and who asks waits.
			err = fmt.Errorf("timed out trying to allocate devices of node %s, after %v", node.Name, allocateMost)
			found.Lacks = []Lack{{Text: text.Bound(err.Error(), errorMost)}}
			if lateOnClosed = err; found.Closed == "" {
				late, room.Refused = err, cmp.Or(room.Refused, err)
			}
		case err != nil:
			found.Lacks = []Lack{{Text: text.Bound(err.Error(), errorMost)}}
			// A node that the pod cannot be on is passed over before its devices are looked at,
			// and of some errors, such as an invalid pool, the scheduler passes over the node alone.
			if found.Closed == "" && room.Refused == nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
				room.Refused = err
			}
		case !found.Fits:
			found.Lacks, found.Farthest, _ = f.looker.lacks(ctx, node.Name, unallocated)
			if err := ended(ctx, node); err != nil {
				return Room{}, err
			}
		}
		room.Nodes = append(room.Nodes, found)
		if first && found.Open() {
			break
		}
	}
	return room, nil
}

// ended is an error once the context has ended: a selector that was interrupted then counts as one
// that does not match, so that what is found of the node may be wrong.
func ended(ctx context.Context, node *corev1.Node) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("look for devices on node %s: %w", node.Name, context.Cause(ctx))
}

// waitingOf are the claims that are not allocated.
func waitingOf(claims []*resourceapi.ResourceClaim) []*resourceapi.ResourceClaim {
	var waiting []*resourceapi.ResourceClaim
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			waiting = append(waiting, claim)
		}
	}
	return waiting
}

func byNodeName(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) }

// look asks the scheduler's allocator for devices of the node.
func (n *NodeRoom) look(ctx context.Context, allocator structured.Allocator, node *corev1.Node,
	claims []*resourceapi.ResourceClaim) error {
	if len(claims) == 0 {
		n.Fits = true
		return nil
	}
	results, err := allocate(ctx, allocator, node, claims)
	if err != nil {
		return err
	}
	if n.Fits = len(results) == len(claims); n.Fits {
		n.Allocations = results
	}
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
