// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

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
	// Closed is what keeps the pod from the node, whatever is free.
	Closed Closed
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
func (n *NodeRoom) Open() bool { return n.Fits && n.Closed.By == Open }

// Fits says whether there is a node on which the pod would get all its devices now.
func (r *Room) Fits() bool {
	return r.Refused == nil && slices.ContainsFunc(r.Nodes, func(n NodeRoom) bool { return n.Open() })
}

// Nearness orders nodes: those with room, then those of which most of what is asked for is
// there, then those that are closed to the pod.
func (n *NodeRoom) Nearness() int {
	switch {
	case n.Open():
		return 3 * int(Suits)
	case n.Closed.By == Open:
		return int(Suits) + int(n.Farthest.Step)
	default:
		return int(n.Farthest.Step)
	}
}

// Finder looks for room in one Snapshot, for as many pods as ask. It is for one goroutine at a
// time.
type Finder struct {
	// nodes are all of them, by name, closed what Snapshot.Closed is.
	nodes     []*corev1.Node
	closed    map[string]Closed
	allocator *Allocator
	looker    *looker
}

// NewFinder makes the Finder of a snapshot.
func (e *Engine) NewFinder(ctx context.Context, s Snapshot) (*Finder, error) {
	allocator, err := e.Allocator(ctx, s, nil)
	if err != nil {
		return nil, err
	}
	return &Finder{s.byName(), s.Closed, allocator, newLooker(s, allocator.held, e.compiled)}, nil
}

// FindRoom is what a new Finder finds.
func (e *Engine) FindRoom(ctx context.Context, s Snapshot, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (
	Room, error) {
	f, err := e.NewFinder(ctx, s)
	if err != nil {
		return Room{}, err
	}
	return f.Find(ctx, pod, claims)
}

// Find looks at what is free, on each node. Whether the claims fit there is found out by the
// scheduler's allocator, as the scheduler uses it; only what they lack is found here. An error
// is that of a claim, or the context's.
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
	may, err := Possible(pod, claims)
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
		found := NodeRoom{Name: node.Name, Closed: ClosedTo(ctx, node, pod, may)}
		if found.Closed.By == Open {
			found.Closed = f.closed[node.Name]
		}
		if o := f.looker.offers[node.Name]; o != nil {
			found.GPUs = o.gpus
		}
		if first && found.Closed.By == ByPod {
			room.Nodes = append(room.Nodes, found)
			continue
		}
		skipped := late
		if skipped == nil && found.Closed.By != Open {
			skipped = lateOnClosed
		}
		if skipped != nil {
			found.Lacks = []Lack{{Kind: NotLookedAt, Err: skipped}}
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
			err = fmt.Errorf("timed out trying to allocate devices of node %s, after %v", node.Name, nodeMost)
			found.Lacks = []Lack{{Kind: Failed, Err: err}}
			if lateOnClosed = err; found.Closed.By == Open {
				late, room.Refused = err, cmp.Or(room.Refused, err)
			}
		case err != nil:
			found.Lacks = []Lack{{Kind: Failed, Err: err}}
			// A node that the pod cannot be on is passed over before its devices are looked at,
			// and of some errors, such as an invalid pool, the scheduler passes over the node alone.
			if found.Closed.By == Open && room.Refused == nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
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

// look asks the scheduler's allocator for devices of the node.
func (n *NodeRoom) look(ctx context.Context, allocator *Allocator, node *corev1.Node,
	claims []*resourceapi.ResourceClaim) (err error) {
	if n.Allocations, n.Fits, err = allocator.Fit(ctx, node, claims, nodeMost); err != nil {
		return err
	}
	devices := map[string]bool{}
	for _, result := range n.Allocations {
		for _, device := range result.Devices.Results {
			devices[device.Device] = true
		}
	}
	n.Devices = slices.Sorted(maps.Keys(devices))
	return nil
}
